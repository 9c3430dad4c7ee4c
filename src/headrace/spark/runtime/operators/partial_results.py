"""Partial results in repartition topics: an upstream task groups the rows of a micro-batch before it writes them.

In front of an aggregate whose functions merge, the topic carries stored columns (`AggregateFunctions.state`) in place
of the aggregate's inputs. A record is the partial result of one row or of many rows of a group; the reader merges both
alike, so the topic has one format whether the rows of a micro-batch shrink or not.

1. All rows of a group are in the same window, so what an upstream task has judged late, and what a reader drops because
   its window has closed, is the same with and without partial results.
2. Functions whose state holds values or a sketch are left out: their partial results are as large as their rows, or
   depend on the order. Sums of doubles are in: they already depend on the cuts of micro-batches, in the last digits.
3. Moments (`stddev`, `corr`, ...) are left out: one row of them has three to six stored columns for one input.
4. A partial sum may overflow where the sum of all rows would not. Such rows are sent as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeGuard

import pyarrow as pa

from headrace.errors import UserCodeError
from headrace.spark.arrow_types import arrow_types, schema_of, type_json_of
from headrace.spark.runtime.batches.stages import fitted
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.topology.nodes import (
    Aggregate,
    BufferFunction,
    ProjectForGroup,
    SessionWindow,
    TableAggregate,
)

__all__ = ["MERGING", "PartialResults", "merges_partials", "partial_columns"]

MERGING: Final[frozenset[BufferFunction]] = frozenset(
    {"count", "sum", "min", "max", "avg", "max_by", "min_by", "bit_and", "bit_or", "bit_xor"}
)
_ENOUGH_ROWS = 16_384  # rows that wait for each other: grouping a table costs a fraction of a millisecond at least
_WORTHWHILE = 0.5  # partial results per row above which the rows are sent as they come
_MOST_HELD = 250_000  # partial results that a stage keeps in memory


def merges_partials(operator: object) -> TypeGuard[Aggregate]:
    """Whether a repartition topic in front of the operator carries partial results.

    Sessions are not merged by equal groups but by times; an aggregate of a table takes rows out again.
    """
    return (
        isinstance(operator, Aggregate)
        and not isinstance(operator, TableAggregate)
        and not isinstance(operator.window, SessionWindow)
        and all(buffer.function in MERGING for buffer in operator.buffers)
    )


def partial_columns(
    aggregate: Aggregate, projection: ProjectForGroup, texts: Sequence[str]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the columns of a topic with partial results, and their canonical texts: groups, then stored columns.

    Args:
        aggregate: The aggregate that merges them.
        projection: Of the rows that they are made of.
        texts: Canonical texts of the columns of `projection`.

    Raises:
        TopologyError: not-supported-here, for rows with a column of another than a flat type.
    """
    arrow_types(projection.columns)  # inputs do not get into the topic, but a task converts them
    text_of = {name: text for (name, _), text in zip(projection.columns, texts, strict=True)}
    groups = [(name, kind) for name, kind in projection.columns if name.startswith("g")]
    columns, shown = [*groups], [text_of[name] for name, _ in groups]
    functions = AggregateFunctions(aggregate)
    for buffer in aggregate.buffers:
        inputs = ", ".join(
            [*(text_of[name] for name in buffer.inputs), *([buffer.parameter] if buffer.parameter else [])]
        )
        for column in functions.columns_of(buffer):
            columns.append((column.name, type_json_of(column.type)))
            part = column.name.removeprefix(buffer.name)
            shown.append(f"partial {buffer.function}({inputs or '*'}){'.' + part if part else ''}")
    return tuple(columns), tuple(shown)


class PartialResults:
    """Rows of a stage on their way into a repartition topic, grouped as long as that pays. Mutable, of one micro-batch.

    Args:
        aggregate: The aggregate behind the topic.
        row_columns: Names and types (JSON) of the rows: `g0.., i0..`.
        combines: Whether rows of a group become one record at all.
    """

    def __init__(self, aggregate: Aggregate, row_columns: tuple[tuple[str, str], ...], *, combines: bool) -> None:
        self._functions = AggregateFunctions(aggregate)
        self._schema = schema_of(row_columns)
        self._helps = combines
        self._rows: list[pa.Table] = []  # not yet grouped
        self._waiting = 0  # of these
        self._held: list[pa.Table] = []  # grouped partial results
        self._holding = 0

    def lifted(self, rows: pa.Table) -> pa.Table:
        """Return each row as a partial result of its own."""
        return self._functions.lifted(fitted(rows, self._schema), by=self._functions.group_names)

    def add(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Take rows, and yield the partial results that are to be sent now."""
        self._rows.append(fitted(rows, self._schema))
        self._waiting += rows.num_rows
        if self._waiting >= _ENOUGH_ROWS:
            yield from self._group_rows()

    def rest(self) -> Iterator[pa.Table]:
        """Yield the partial results that have not been sent."""
        if self._rows:
            yield from self._group_rows()
        if len(self._held) > 1:
            self._combine_held()
        yield from self._held
        self._held, self._holding = [], 0

    def _group_rows(self) -> Iterator[pa.Table]:
        partials = self.lifted(pa.concat_tables(self._rows))
        self._rows, self._waiting = [], 0
        # 1. Once a table did not shrink by half, the others of this micro-batch are sent as they come. The next
        #    micro-batch tries again, so the decision follows the data.
        if not self._helps:
            yield partials
            return
        combined = self._combined(partials)
        if combined is None or combined.num_rows > _WORTHWHILE * partials.num_rows:
            self._helps = False
            yield partials if combined is None else combined
            return
        # 2. Held until the end of the micro-batch: groups of one table come again in the next one.
        self._held.append(combined)
        self._holding += combined.num_rows
        if self._holding > _MOST_HELD:
            self._combine_held()
            if self._holding > _MOST_HELD // 2:
                yield from self._held
                self._held, self._holding = [], 0

    def _combine_held(self) -> None:
        combined = self._combined(pa.concat_tables(self._held))
        if combined is not None:
            self._held = [combined]
            self._holding = combined.num_rows

    def _combined(self, partials: pa.Table) -> pa.Table | None:
        """Return one partial result for each group, or None if one leaves the range of its type."""
        try:
            return self._functions.combine(partials, by=self._functions.group_names)
        except UserCodeError:  # the reader judges the sum of all rows
            return None
