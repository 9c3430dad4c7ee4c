"""Joins as of event time as `verify` computes them: Spark's join of the rows on time, and their newest versions."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headrace.spark.frames import quoted, without_hidden
from headrace.spark.stream_source import KeyedJoin
from headrace.spark.topology.nodes import EVENT_TIME_COLUMN, HIDDEN_PREFIX, KEY_COLUMN
from headrace.spark.verification.verify_joins import latest_partner

__all__ = ["versioned_rows"]

_ROW, _FROM, _NEWEST, _TIME = (f"{HIDDEN_PREFIX}{name}" for name in ("row", "from", "newest", "time"))
_BEFORE_ALL = -(1 << 63) + 1


def versioned_rows(join: KeyedJoin, left: DataFrame, right: DataFrame, watermark_us: int | None) -> DataFrame:
    """Return the rows that have left a join as of event time.

    Args:
        join: The join.
        left: Rows of the stream that are not late.
        right: Versions that are not late.
        watermark_us: Watermark that all tasks of the right side have sent; None while one has sent none.
    """
    rows = without_hidden(left).withColumn(_TIME, latest_partner(join.left))
    # Rows without a key or a time are joined with nothing, and wait for nothing.
    rows = rows.where(F.col(_TIME) < (_BEFORE_ALL if watermark_us is None else watermark_us))
    rows = rows.withColumn(_ROW, F.monotonically_increasing_id())
    shown = [quoted(name) for name in without_hidden(right).columns]
    versions = right.select(*shown, F.col(EVENT_TIME_COLUMN).alias(_FROM))
    pairs = rows.join(versions, join.on, join.kind)
    newest = pairs.withColumn(_NEWEST, F.max(_FROM).over(Window.partitionBy(_ROW)))
    valid = newest.where(F.col(_FROM).eqNullSafe(F.col(_NEWEST)))
    names = [quoted(field.name) for field in join.schema]
    return valid.select(*names).withColumn(KEY_COLUMN, F.lit(None).cast("binary"))
