"""Repair of Spark's Python worker factories whose daemon died while it started.

A factory forks workers from a daemon. If the daemon dies before it has reported its address, and the task that waits
for the address is cancelled at the same moment (another task of its job failed likewise), Spark 4.3 keeps the dead
daemon without an address. Every later task then fails with a NullPointerException until the JVM ends. `stop()` makes a
factory forget its daemon and start another for the next task, but Spark calls it only when the session ends.

The factories are reachable only through private fields, so the repair runs only after such a failure. No method of
SparkEnv is called: py4j would list all of them first, and some name classes that PySpark does not ship.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from headrace.spark.spark_internals import private_field

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["forget_dead_daemons", "has_lost_its_daemon"]

log = logging.getLogger("headrace.spark")
_WITHOUT_ADDRESS = re.compile(r"NullPointerException\b(?:\s+at [^\n]*)*?\s+at [^\n]*PythonWorkerFactory")


def has_lost_its_daemon(error: BaseException) -> bool:
    """Whether a job failed because its factory has a daemon without an address."""
    return _WITHOUT_ADDRESS.search(str(error)) is not None


def forget_dead_daemons(spark: SparkSession) -> int:
    """Make factories with a dead daemon start a new one for their next task. Return the number of such factories."""

    def field(class_name: str, name: str, owner: Any) -> Any:
        return private_field(spark, class_name, name).get(owner)

    forgotten = 0
    try:
        env = field("SparkEnv$", "env", field("SparkEnv$", "MODULE$", None))
        factories = field("SparkEnv", "pythonWorkers", env).valuesIterator()
        while factories.hasNext():
            factory = factories.next()
            daemon = field("api.python.PythonWorkerFactory", "daemon", factory)
            # A healthy factory is left alone: `stop` would kill the workers of running tasks.
            if daemon is not None and not daemon.isAlive():
                factory.stop()
                forgotten += 1
    except Exception as error:  # noqa: BLE001 - another Spark release has other fields, and may recover by itself
        log.warning("Spark's Python daemon cannot be replaced: %s", str(error)[:200])
    return forgotten
