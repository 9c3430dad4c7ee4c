"""Spark's factories of Python workers, where one has to be helped up again.

A factory forks its workers from a daemon. If that dies before it has said where it listens, and the task that waits for
the address is cancelled just then (another task of its job met the same), Spark 4.3 keeps the dead daemon, without an
address: every task ends with a NullPointerException for as long as the JVM lives. A factory that is told to stop
forgets its daemon and starts another for the next task, but nobody tells it before the session ends.

The way there leads through fields that Spark does not show, so it is taken only where all is lost otherwise. No method
of SparkEnv is called: py4j would list them all first, and some name classes that PySpark does not ship.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_dead_daemons", "has_lost_its_daemon"]

log = logging.getLogger("headrace.spark")
_WITHOUT_ADDRESS = re.compile(r"NullPointerException\b(?:\s+at [^\n]*)*?\s+at [^\n]*PythonWorkerFactory")


def has_lost_its_daemon(error: BaseException) -> bool:
    """Whether a job failed because its factory has a daemon without an address."""
    return _WITHOUT_ADDRESS.search(str(error)) is not None


def forget_dead_daemons(spark: SparkSession) -> int:
    """Factories whose daemon is dead start another for their next task; how many those are. The others go on."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None

    def field(class_name: str, name: str, owner: Any) -> Any:
        found = jvm.java.lang.Class.forName(f"org.apache.spark.{class_name}").getDeclaredField(name)
        found.setAccessible(True)
        return found.get(owner)

    forgotten = 0
    try:
        env = field("SparkEnv$", "env", field("SparkEnv$", "MODULE$", None))
        factories = field("SparkEnv", "pythonWorkers", env).valuesIterator()
        while factories.hasNext():
            factory = factories.next()
            daemon = field("api.python.PythonWorkerFactory", "daemon", factory)
            if daemon is not None and not daemon.isAlive():
                factory.stop()
                forgotten += 1
    except Exception as error:  # noqa: BLE001 - another Spark has other fields, and may mend itself
        log.warning("Spark's Python daemon cannot be replaced: %s", str(error)[:200])
    return forgotten
