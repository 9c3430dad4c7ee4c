"""Joins in event time as `verify` computes them: Spark's own join of the rows on time, none of the operator's code.

Rows that are late in their own partition are taken out first. An outer join of a batch has a row for each row without
a partner. Here such a row leaves when no partner can come any more, so those that may still meet one are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace.spark.frames import quoted, without_hidden
from headrace.spark.stream_source import JoinedSide, KeyedJoin
from headrace.spark.topology.nodes import (
    EVENT_TIME_COLUMN,
    HIDDEN_PREFIX,
    KEY_COLUMN,
    OFFSET_COLUMN,
    TASK_COLUMN,
)
from headrace.spark.verification.verify_windows import moving_time, watermarks

__all__ = ["join_rows", "latest_partner", "least_watermark_us", "rows_not_late"]

_ROW, _NEWEST, _LATEST = (f"{HIDDEN_PREFIX}{name}" for name in ("row", "newest", "latest"))
_NEVER = -(1 << 63)


def rows_not_late(rows: DataFrame, delay_us: int, max_ahead_us: int) -> DataFrame:
    """Return rows that are not older than the watermark before them in their partition.

    Args:
        rows: With the columns of `verify_deduplication.with_places` and the event time.
        delay_us: Of the watermark.
        max_ahead_us: By how much an event time may exceed its record's timestamp and still move the watermark.
    """
    before = Window.partitionBy(TASK_COLUMN).orderBy(OFFSET_COLUMN, _ROW).rowsBetween(Window.unboundedPreceding, -1)
    placed = rows.withColumn(_ROW, F.monotonically_increasing_id())
    placed = placed.withColumn(_NEWEST, F.max(moving_time(max_ahead_us)).over(before))
    time, newest = F.unix_micros(EVENT_TIME_COLUMN), F.col(_NEWEST)
    return placed.where(time.isNull() | newest.isNull() | (time >= newest - delay_us)).drop(_ROW, _NEWEST)


def least_watermark_us(rows: DataFrame, delay_us: int, max_ahead_us: int, partitions: Iterable[int]) -> int | None:
    """Return the watermark that all partitions have passed; None while one has no row."""
    found = watermarks(rows, delay_us, max_ahead_us)
    return None if set(partitions) - found.keys() or not found else min(found.values())


def join_rows(
    join: KeyedJoin, sides: tuple[DataFrame, DataFrame], watermarks_us: tuple[int | None, int | None]
) -> DataFrame:
    """Return the rows that have left a join.

    Args:
        join: The join.
        sides: Rows of each side that are not late.
        watermarks_us: From `least_watermark_us`, of each side.
    """
    if join.kind in ("inner", "left_semi"):
        return join.as_batch(*sides)
    left, right = sides
    pairs = without_hidden(left).join(without_hidden(right), join.on, "inner")
    names = [quoted(field.name) for field in join.schema]
    found = [pairs.select(*names)]
    for number in {"left": (0,), "right": (1,), "full": (0, 1)}[join.kind]:
        alone = _without_partner(join, number, sides, watermarks_us[1 - number])
        have = set(alone.columns)
        found.append(
            alone.select(
                *(
                    F.col(quoted(field.name))
                    if field.name in have
                    else F.lit(None).cast(field.dataType).alias(field.name)
                    for field in join.schema
                )
            )
        )
    rows = reduce(lambda one, other: one.unionAll(other), found)
    return rows.withColumn(KEY_COLUMN, F.lit(None).cast("binary"))


def _without_partner(
    join: KeyedJoin, number: int, sides: tuple[DataFrame, DataFrame], watermark_us: int | None
) -> DataFrame:
    """Return the rows of a side that have no partner, and can have none any more."""
    rows = without_hidden(sides[number]).withColumn(_LATEST, latest_partner(join.sides[number]))
    alone = rows.join(without_hidden(sides[1 - number]), join.on, "left_anti")
    return alone.where(F.col(_LATEST) < (_NEVER + 1 if watermark_us is None else watermark_us))


def latest_partner(side: JoinedSide) -> Column:
    """Return the latest event time of a partner in µs; the least number for a row that matches nothing."""
    needed = [*side.key_sql, *(operand.sql for operand in side.operands)]
    matches_nothing = reduce(lambda one, other: one | other, (F.expr(sql).isNull() for sql in needed))
    bounds = [F.unix_micros(F.expr(side.operands[at].sql)) - shift_us for at, shift_us in side.bounds]
    latest = F.least(*bounds) if len(bounds) > 1 else bounds[0]
    return F.when(matches_nothing, F.lit(_NEVER)).otherwise(latest)
