"""Attribution of failures behind Spark SQL to single records: steps that find the records instead of writing anything.

A sum that overflows, a value that a sink cannot encode, a record that is larger than its topic allows: the stage that
fails has rows, not records. So the failed micro-batch is run once more with rows that carry the topic and offset of
their records, and with these steps in place of those that write. Stores are read and left as they are.

An aggregate is traced in two ways. Sums: where a group's total leaves its range, the group's records are added up one
after the other, and each that would leave the range is named; the others fit. Everything behind the aggregate (results,
sink): each record is merged with the stored value as if it were the only one, and its row goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import MAX_PREC, Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.spark.runtime.batches import sink_stage
from headrace.spark.runtime.batches.stages import Operator, StageContext
from headrace.spark.runtime.operators.aggregate_operator import AggregateOperator, RowMerging
from headrace.spark.runtime.operators.aggregate_states import StateColumn
from headrace.spark.runtime.operators.stateful_operator import by_task, open_store
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.store import StorePosition
from headrace.spark.topology.nodes import OFFSET_COLUMN, TASK_COLUMN, TOPIC_COLUMN

__all__ = ["TRACE_COLUMNS", "TracedAggregateStep", "TracedSinkStep"]

TRACE_COLUMNS = (TOPIC_COLUMN, OFFSET_COLUMN)
_RECORD_OVERHEAD = 128  # of a record batch with one record, at most
_ROW = "__headrace_row"
_EXACT = Context(prec=MAX_PREC)  # Python's own context rounds to 28 digits, decimals have up to 76


def _note(context: StageContext, table: pa.Table, row: int, reason: str) -> None:
    task, topic, offset = (table.column(name)[row].as_py() for name in (TASK_COLUMN, *TRACE_COLUMNS))
    context.bad_records.append((task, topic, offset, reason))


@dataclass(frozen=True, slots=True)
class TracedSinkStep:
    """Encodes rows as its sink does, and writes none."""

    step: Any  # TopicSinkStep or RepartitionSinkStep

    def start(self, context: StageContext) -> Operator:
        return _TracedSink(self.step.start(context), context)


class _TracedSink:
    def __init__(self, sink: sink_stage.EncodingSink, context: StageContext) -> None:
        self._sink, self._context = sink, context
        self._limit = _SizeLimit(context, sink.topic)

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        self._try(table)
        return ()

    def finish(self) -> Iterable[pa.Table]:
        return ()

    def _try(self, table: pa.Table) -> None:
        """Encode the rows; if that fails, halve them until single rows fail alone."""
        if not table.num_rows:
            return
        try:
            keys, values = self._sink.encode(table)
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an encoder raises is about a value
            # Encoders fail for a whole column. Halving costs log2(rows) encodings for one bad row; a row at a time
            # would cost all rows of a healthy table.
            if table.num_rows == 1:
                _note(self._context, table, 0, f"{self._sink.topic}: {type(error).__name__}: {error}"[:500])
                return
            middle = table.num_rows // 2
            self._try(table.slice(0, middle))
            self._try(table.slice(middle))
        else:
            self._limit.note_larger(table, keys, values)


class _SizeLimit:
    """The largest batch that a topic takes. Mutable: it is asked for once."""

    def __init__(self, context: StageContext, topic: str) -> None:
        self._context, self._topic = context, topic
        self._limit: int | None = None

    def note_larger(self, table: pa.Table, keys: Any, values: Any) -> None:
        """Note the rows whose records exceed the topic's limit, even alone in a batch and compressed."""
        from headrace.protocol.arrow_batches import encode_from_arrow

        limit = self._most_bytes()
        sizes = pc.fill_null(pc.binary_length(values), 0)
        if keys is not None:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(keys), 0))
        # 1. Raw sizes find the candidates, for all rows at once. 2. Only those are encoded alone, since compression
        #    decides.
        for row in np.flatnonzero(sizes.to_numpy(zero_copy_only=False) > limit - _RECORD_OVERHEAD).tolist():
            batches = encode_from_arrow(
                keys,
                values,
                timestamps_ms=self._context.topics.now_ms(),
                compression=self._context.plan.compression,
                indices=np.array([row], np.int64),
            )
            size = sum(len(batch) for batch in batches)
            if size > limit:
                reason = f"{self._topic}: a record of {size} bytes, max.message.bytes of the topic is {limit}"
                _note(self._context, table, row, reason)

    def _most_bytes(self) -> int:
        if self._limit is None:
            self._limit = self._context.topics.most_record_bytes(self._topic)
        return self._limit


@dataclass(frozen=True, slots=True)
class TracedAggregateStep:
    """In place of the step of an aggregate: a row for each record, merged with the stored value as if it were alone."""

    operator: AggregateOperator

    def start(self, context: StageContext) -> Operator:
        return _TracedAggregate(RowMerging(self.operator), context)


class _TracedAggregate:
    def __init__(self, merging: RowMerging, context: StageContext) -> None:
        self._merging, self._context = merging, context
        self._functions = merging.functions
        self._names = [column.name for column in self._functions.state]
        self._rows: dict[int, list[pa.Table]] = {}
        self._limit = _SizeLimit(context, merging.store.changelog_topic)

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        for task, rows in by_task(table):
            self._rows.setdefault(task, []).append(self._merging.grouped(rows))
        return ()

    def finish(self) -> Iterable[pa.Table]:
        for task in self._context.slot.tasks:
            tables = self._rows.pop(task.partition, [])
            if tables:
                yield from self._traced(task, pa.concat_tables(tables).combine_chunks())

    def _traced(self, task: Any, rows: pa.Table) -> Iterable[pa.Table]:
        groups = list(self._functions.group_names)
        # 1. One partial result per record: the columns of the record's place are grouping columns.
        partials = self._functions.lifted(rows, by=(*groups, *TRACE_COLUMNS))
        of_rows = encode_key([partials.column(name) for name in groups])
        keys = pc.unique(of_rows)
        order = order_of_keys(keys)
        if order is not None:
            keys = keys.take(order)
        group = pc.index_in(of_rows, value_set=keys).to_numpy(zero_copy_only=False)
        # 2. The stored values of the groups, read without changing them.
        stored = self._stored(task, keys)
        bad, lonely = _overflows(self._functions.state, partials, stored, group, len(keys))
        for row, reason in sorted(bad.items()):
            _note(self._context, rows, row, reason)
        # 3. What is left is merged with the stored value as if it were alone, and goes to the steps behind the
        #    aggregate: they may fail on it as well.
        good = np.flatnonzero(~lonely)
        if len(good):
            alone = self._alone(partials.take(pa.array(good)), stored, group[good])
            columns = [alone.column(name) for name in self._names]
            values = encode_rows(columns, self._merging.fingerprint)
            self._limit.note_larger(rows.take(pa.array(good)), of_rows.take(pa.array(good)), values)
            finished = self._merging.with_hidden(self._functions.finish(alone), task.partition)
            for name in TRACE_COLUMNS:
                finished = finished.append_column(name, partials.column(name).take(pa.array(good)))
            yield finished

    def _stored(self, task: Any, keys: pa.Array) -> pa.Table:
        """Return the stored partials of `keys`, null where there are none. The store does not change."""
        found: list[pa.Array] = []

        def read(old: pa.Array) -> pa.Array:
            found.append(old)
            return pa.array([b""] * len(old), pa.binary())

        store = open_store(self._context, self._merging.store, task.partition)
        position = StorePosition(batch=self._context.plan.batch, input_offsets={}, changelog_offset=0)
        # A merge that is abandoned: it reads the values behind the committed batch, whatever is prepared.
        store.merge(task.committed, position, keys, read).abandon()
        values = found[-1]  # a store whose map was full asks twice
        there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = decode_rows(values.drop_null(), [c.type for c in self._functions.state], self._merging.fingerprint)
        places = np.where(there, np.cumsum(there) - 1, 0)
        index = pa.array(places, pa.int64(), mask=~there)
        return pa.table([column.take(index) for column in rows], names=self._names)

    def _alone(self, partials: pa.Table, stored: pa.Table, group: Any) -> pa.Table:
        number = pa.array(np.arange(partials.num_rows, dtype=np.int64))
        mine = partials.select(self._names).append_column(_ROW, number)
        theirs = stored.take(pa.array(group)).append_column(_ROW, number).cast(mine.schema)
        merged = self._functions.combine(pa.concat_tables([mine, theirs]), by=(_ROW,))
        columns = {name: partials.column(name) for name in self._functions.group_names}
        return pa.table(columns | {name: merged.column(name) for name in self._names})


def _overflows(
    state: Iterable[StateColumn], partials: pa.Table, stored: pa.Table, group: Any, groups: int
) -> tuple[dict[int, str], Any]:
    """Find overflowing sums: (rows that do not fit into the sum of their group, with reasons; mask of rows that do not
    fit beside the stored value alone).
    """
    bad: dict[int, str] = {}
    lonely = np.zeros(partials.num_rows, np.bool_)
    for column in state:
        bounds = _bounds(column)
        if bounds is None:
            continue
        values, before = partials.column(column.name), stored.column(column.name)
        # 1. Filter by an upper bound that is cheap for all groups at once: the sum of magnitudes.
        # Doubles are good enough to leave out the groups that are far from the bounds: nearly all.
        sizes = np.abs(_floats(values))
        totals = np.bincount(group, sizes, groups) + np.abs(_floats(before))
        near = totals >= bounds[1] * 0.999 / bounds[2]
        for one in np.flatnonzero(near).tolist():
            # 2. Exact integers of Python for the few groups left. Arrow's sums wrap around, which is the failure to be
            #    found.
            rows = np.flatnonzero(group == one).tolist()
            numbers = {row: bounds[3](values[row].as_py()) for row in rows}
            start = bounds[3](before[one].as_py())
            fits = _fitting(bounds)
            # 3. A record that overflows with the stored value alone is traced further without that sum.
            lonely[[row for row in rows if not fits(start + numbers[row])]] = True
            if fits(start + sum(numbers.values())):
                continue
            # 4. In the order of the records, add what fits and name what does not. The order makes the result
            #    deterministic: a second run, or another instance, blames the same records.
            total = start
            for row in rows:
                if fits(total + numbers[row]):
                    total += numbers[row]
                else:
                    bad.setdefault(row, f"a sum of {total} and {numbers[row]} leaves the range of {column.type}")
    lonely[list(bad)] = True
    return bad, lonely


def _fitting(bounds: tuple[int, int, int, Any]) -> Callable[[int], bool]:
    return lambda number: bounds[0] <= number <= bounds[1]


def _bounds(column: StateColumn) -> tuple[int, int, int, Any] | None:
    """(least, greatest, unit, value → whole number of units) of a sum that can overflow."""
    if column.merge != "sum":
        return None
    if pa.types.is_int64(column.type):
        return -(1 << 63), (1 << 63) - 1, 1, lambda value: value or 0
    if pa.types.is_decimal(column.type):
        unit, most = 10**column.type.scale, 10**column.type.precision - 1
        return -most, most, unit, lambda value: 0 if value is None else int(value.scaleb(column.type.scale, _EXACT))
    return None


def _floats(column: Any) -> Any:
    return pc.fill_null(column.cast(pa.float64(), safe=False), 0.0).to_numpy()
