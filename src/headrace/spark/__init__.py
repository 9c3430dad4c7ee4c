"""The pipeline: PySpark applications as members of a Kafka streams group.

`topology/` is pure data (no PySpark), the modules beside it read and build Spark plans, `runtime/` runs tasks as Spark
micro-batches. Importing this package loads neither PySpark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.checked_api import checked_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


@checked_function(extra="spark")
def session(app_name: str, *, preload_workers: bool = True, **settings: Any) -> SparkSession:
    """A Spark session with the settings the runtime needs; see `headrace.spark.spark_session.session`."""
    from headrace.spark.spark_session import session as build

    return build(app_name, preload_workers=preload_workers, **settings)


@checked_function(extra="spark")
def register(spark: SparkSession) -> None:
    """Register the format `headrace` in a session, for `spark.read.format("headrace")`.

    Filters on partition, offset, topic and timestamp are pushed down: `spark.sql.python.filterPushdown.enabled` is set
    in the session.

    Args:
        spark: Any session, classic or of Spark Connect.
    """
    from headrace.spark.data_source.source import register as add

    add(spark)
