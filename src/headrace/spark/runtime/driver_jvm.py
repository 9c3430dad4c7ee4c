"""Health of Spark's JVM as the driver sees it.

A micro-batch would fail at once without a JVM; an idle application would not notice.
"""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.spark.spark_internals import jvm_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DriverJvm"]

DYING_S = 0.5  # its sockets are closed before it has an exit code


class DriverJvm:
    """JVM process of the session. If the JVM started Python (spark-submit), Python cannot outlive it, so it is never
    gone.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.pid, self._process = jvm_process(spark)

    def end(self, *, may_be_dying: bool = False) -> HeadraceError | None:
        """Return how the process ended; None while it runs.

        Args:
            may_be_dying: Another sign suggests that it is ending: wait a moment for its exit code.
        """
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None and may_be_dying:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(DYING_S)
        if code is None:
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return HeadraceError(
            "jvm-died",
            f"Spark's JVM, process {self.pid}, {how}",
            "start the application again, it goes on where it stopped; signal 9 is often the kernel's, out of memory: "
            "see its log, and spark.driver.memory",
            pid=self.pid,
            exit_code=code,
        )
