"""Steps that write to Kafka: rows to a sink topic, rows to a repartition topic. They flush before they return.

One producer per stage, slot and micro-batch. Produced is not committed. Exactly once: the records lie in the slot's
transaction, which the driver ends when the job has succeeded. At least once: they count at once, and a batch that
failed may leave some behind that come again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.protocol.trace_context import headers_with_contexts
from headrace.spark.arrow_types import arrow_type, schema_of
from headrace.spark.runtime.batches.stages import Operator, StageContext, fitted
from headrace.spark.runtime.operators.change_rows import ChangeRows, Mask, change_records, upserts
from headrace.spark.runtime.operators.partial_results import PartialResults
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
from headrace.spark.runtime.rows.row_schema import input_schema, store_of, store_of_join
from headrace.spark.runtime.rows.rows import encode_key, encode_rows
from headrace.spark.topology.nodes import (
    DELETED_COLUMN,
    JOIN_COLUMNS,
    KEY_COLUMN,
    OLD_COLUMN,
    TASK_COLUMN,
    TRACE_COLUMN,
    Aggregate,
    Join,
    RelayedWatermark,
    RepartitionSink,
    TableJoin,
    TopicSink,
)

if TYPE_CHECKING:
    from headrace.spark.runtime.topic_access import RecordWriter

__all__ = [
    "ChangesSink",
    "EncodingSink",
    "RecordSink",
    "RepartitionSinkStep",
    "TopicSinkStep",
    "encode_upserts",
    "producer_for",
    "without_nulls",
]

# Tables with fewer rows wait for each other. There is one for each task of a micro-batch, and to encode and send one
# costs two milliseconds however few rows it has.
ENOUGH_ROWS, ENOUGH_BYTES = 4096, 1 << 20


def producer_for(context: StageContext) -> RecordWriter:
    """Return the stage's producer. Exactly once it has the slot's identity, which belongs to the driver."""
    if context.producer is None:
        context.producer = context.topics.writer(context.plan, context.slot, context.stage_reports)
    return context.producer


@dataclass(frozen=True, slots=True)
class TopicSinkStep:
    """Step that writes rows as records of a topic; `key` and `value` by the formats of the sink."""

    sink: TopicSink
    value_columns: tuple[str, ...]

    def start(self, context: StageContext) -> Operator:
        return _TopicSink(self, context)


@dataclass(frozen=True, slots=True)
class RepartitionSinkStep:
    """Step that writes rows `g0.., i0..` to the partition that murmur2 of their groups names."""

    sink: RepartitionSink

    def start(self, context: StageContext) -> Operator:
        if self.sink.table_join is not None:
            return _TableSideSink(self, self.sink.table_join, context)
        if self.sink.takes_changes:
            return ChangesSink(self, context)
        if self.sink.partials_of is not None:
            return _PartialsSink(self, self.sink.partials_of, context)
        join = self.sink.join
        return _RepartitionSink(self, context) if join is None else _JoinSideSink(self, join, context)


class EncodingSink(Protocol):
    """A sink that makes records of rows."""

    topic: str

    def encode(self, table: pa.Table) -> tuple[Any, Any]: ...


class RecordSink:
    """Common base of both sinks: the producer, the count of each task's rows, the flush."""

    def __init__(self, topic: str, context: StageContext) -> None:
        self.topic, self._context = topic, context
        self._producer = producer_for(context)
        self._waiting: list[pa.Table] = []  # few rows, of one schema
        self._rows = self._bytes = 0  # of these

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        if self._waiting and self._waiting[0].schema != table.schema:
            self._send_waiting()
        self._waiting.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= ENOUGH_ROWS or self._bytes >= ENOUGH_BYTES:
            self._send_waiting()
        return ()

    def finish(self) -> Iterable[pa.Table]:
        if self._waiting:
            self._send_waiting()
        started = time.perf_counter()
        # Flushed before the stage ends: PySpark would end it in any case, and a report must mean that all records are
        # stored.
        self._producer.flush()
        self._context.timed("flush", started)
        return ()

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        raise NotImplementedError

    def _send_waiting(self) -> None:
        started = time.perf_counter()
        table = pa.concat_tables(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        keys, values = self.encode(table)
        headers = headers_with_contexts(table.column(TRACE_COLUMN)) if TRACE_COLUMN in table.column_names else None
        self._producer.send(
            self.topic, None, keys, values, timestamps_ms=self._context.topics.now_ms(), headers=headers
        )
        self._count(table)
        self._context.timed("produce", started)

    def _count(self, table: pa.Table) -> None:
        tasks, counts = np.unique(table.column(TASK_COLUMN).to_numpy(), return_counts=True)
        for task, count in zip(tasks.tolist(), counts.tolist(), strict=True):
            self._context.report(task).records_out += count


class _TopicSink(RecordSink):
    def __init__(self, step: TopicSinkStep, context: StageContext) -> None:
        super().__init__(step.sink.topic, context)
        self._step = step
        self._changes: ChangeRows | None = None  # where rows are changes: which of them belong together

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        if OLD_COLUMN not in table.column_names:
            return super().push(table)
        if self._changes is None:
            self._changes = ChangeRows()
        return self._push_changes(self._changes.add(table))

    def finish(self) -> Iterable[pa.Table]:
        rest = self._changes.rest() if self._changes is not None else None
        if rest is not None:
            self._push_changes(rest)
        return super().finish()

    def _push_changes(self, changes: tuple[pa.Table, Mask, Mask]) -> Iterable[pa.Table]:
        rows = upserts(*changes)
        return super().push(rows) if rows.num_rows else ()

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        from headrace.spark import formats

        [batch] = table.combine_chunks().to_batches()
        sink = self._step.sink
        values = formats.encode_value(batch, self._step.value_columns, sink)
        if DELETED_COLUMN in table.column_names:  # tombstones
            values = pc.if_else(batch.column(DELETED_COLUMN), pa.scalar(None, values.type), values)
        if sink.typed_key is not None:
            return formats.encode_keys(batch, sink.typed_key), values
        if sink.key_columns is not None:
            return formats.encode_key(batch, sink.key_columns), values
        return batch.column(KEY_COLUMN), values


class _WatermarkedSink(RecordSink):
    """Common base of both sinks to repartition topics: the watermarks behind the rows."""

    def __init__(self, sink: RepartitionSink, context: StageContext) -> None:
        super().__init__(sink.topic, context)
        self._sink = sink

    def finish(self) -> Iterable[pa.Table]:
        """Flush the rows, then send the watermarks: a reader takes a watermark as "no more rows of these windows"."""
        yield from super().finish()
        if self._sink.watermark is None:
            return
        started = time.perf_counter()
        watermarks = list(self._advanced(self._sink.watermark.name, self._sink.watermark.source))
        if watermarks:
            keys = pa.array([watermark.key for watermark in watermarks], pa.binary())
            values = pa.array([watermark.value for watermark in watermarks], pa.binary())
            # To every partition: each task behind the topic closes its windows by the watermarks that it has read
            # itself.
            for partition in range(self._partitions((self.topic,))):
                self._producer.send(self.topic, partition, keys, values, timestamps_ms=self._context.topics.now_ms())
            self._producer.flush()
        self._context.timed("flush", started)

    def _advanced(self, store: str, source: str) -> Iterator[UpstreamWatermark]:
        """Yield the watermarks of this slot's tasks that moved on in this micro-batch."""
        slot_tasks = self._context.slot.tasks
        relayed = slot_tasks and isinstance(self._sink.watermark, RelayedWatermark)
        earlier = self._announced_earlier(store) if relayed else {}
        for task in slot_tasks:
            time_us = self._context.report(task.partition).announced.get(store, earlier.get(task.partition))
            # The topics are asked for only here: internal ones do not exist yet when a plan without tasks warms up.
            if time_us is not None:
                tasks, now_ms = self._partitions(self._sink.source_topics), self._context.topics.now_ms()
                yield UpstreamWatermark(
                    source=source, task=task.partition, tasks=tasks, time_us=time_us, sent_ms=now_ms
                )

    def _announced_earlier(self, store: str) -> dict[int, int]:
        """Return the watermarks of the stage that closed windows; Spark SQL lies between it and this one."""
        reports = [report for report in self._context.upstream_reports() if report.slot == self._context.slot.slot]
        # A stage ends after those in front of it, unless one of them died.
        if not reports:
            raise HeadraceError("upstream-died", "the stage that closes windows did not finish; nothing is announced")
        tasks = [task for report in reports for task in report.tasks]
        return {task.partition: task.announced[store] for task in tasks if store in task.announced}

    def _partitions(self, topics: Sequence[str]) -> int:
        """Return the number of partitions of the largest of `topics`. Raises BrokerError: topic-missing."""
        return max(self._context.topics.partition_count(topic) for topic in topics)


class _RepartitionSink(_WatermarkedSink):
    def __init__(self, step: RepartitionSinkStep, context: StageContext) -> None:
        super().__init__(step.sink, context)
        self._schema = schema_of(step.sink.columns)
        self._groups = step.sink.key_columns
        self._fingerprint = input_schema(step.sink.columns, step.sink.expressions).fingerprint

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        rows = fitted(table.select(self._schema.names), self._schema).combine_chunks()
        # No partition is named: the producer's murmur2 over these key bytes decides it, as in Kafka's own partitioner.
        return encode_key([rows.column(name) for name in self._groups]), encode_rows(rows.columns, self._fingerprint)


class _PartialsSink(_RepartitionSink):
    """Writes partial results of an aggregate. Rows of one group become one record where that pays."""

    def __init__(self, step: RepartitionSinkStep, aggregate: Aggregate, context: StageContext) -> None:
        super().__init__(step, context)
        self._partials = PartialResults(aggregate, step.sink.row_columns, combines=step.sink.combines)
        self._task: int | None = None  # that records count for: one of many rows may be made of several tasks' rows

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        if table.num_rows:
            if self._task is None:
                self._task = table.column(TASK_COLUMN)[0].as_py()
            if TRACE_COLUMN in table.column_names:
                table = self._push_sampled(table)
            for partials in self._partials.add(table):
                self._push_partials(partials)
        return ()

    def _push_sampled(self, table: pa.Table) -> pa.Table:
        """Push rows with a trace context one by one, and return the others: a record of many rows has no context."""
        contexts, others = table.column(TRACE_COLUMN), table.drop_columns([TRACE_COLUMN])
        if contexts.null_count == len(contexts):
            return others
        is_sampled = contexts.is_valid()
        sampled = self._partials.lifted(others.filter(is_sampled))
        self._push_partials(sampled.append_column(TRACE_COLUMN, contexts.filter(is_sampled)))
        return others.filter(pc.invert(is_sampled))

    def finish(self) -> Iterable[pa.Table]:
        # All rows of a slot are in its one transaction, so they need not be kept apart by task.
        for partials in self._partials.rest():
            self._push_partials(partials)
        return super().finish()

    def _push_partials(self, partials: pa.Table) -> None:
        tasks = pa.array(np.full(partials.num_rows, self._task, np.int32))
        super().push(partials.append_column(TASK_COLUMN, tasks))

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        # Rows, where a bad record is searched (`record_tracing`); partial results otherwise.
        are_partials = set(self._schema.names) <= set(table.column_names)
        return super().encode(table if are_partials else self._partials.lifted(table))


class ChangesSink(_RepartitionSink):
    """Writes the changes of a table: each record has the old row of a key, its new row, or both."""

    def __init__(self, step: RepartitionSinkStep, context: StageContext) -> None:
        super().__init__(step, context)
        self._changes = ChangeRows()

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        return self._push_changes(self._changes.add(table))

    def finish(self) -> Iterable[pa.Table]:
        if (rest := self._changes.rest()) is not None:
            self._push_changes(rest)
        return super().finish()

    def _push_changes(self, changes: tuple[pa.Table, Mask, Mask]) -> Iterable[pa.Table]:
        records = self._records(*changes)
        return super().push(records) if records.num_rows else ()

    def _records(self, table: pa.Table, is_old: Mask, is_replaced: Mask) -> pa.Table:
        return change_records(table, is_old, is_replaced, self._schema)


class _TableSideSink(ChangesSink):
    """Writes the changes of one side of a table-table join: the new row of a key, or null where it has none."""

    def __init__(self, step: RepartitionSinkStep, join: TableJoin, context: StageContext) -> None:
        super().__init__(step, context)
        side = join.sides[step.sink.join_side]
        self._side, self._is_preserved = step.sink.join_side, step.sink.join_side in join.preserved
        self._columns = schema_of(side.columns)
        self._row_fingerprint = store_of(join).rows.fingerprint

    def _records(self, table: pa.Table, is_old: Mask, is_replaced: Mask) -> pa.Table:
        # The key of the join is that of the table, so a row that replaces another one has the same key.
        rows = upserts(table, is_old, is_replaced)
        return rows if self._is_preserved else without_nulls(rows, self._groups)

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        table = table.combine_chunks()
        rows = encode_upserts(table, self._columns, self._row_fingerprint)
        side, row = (name for name, _ in JOIN_COLUMNS)
        sides = pa.array(np.full(table.num_rows, self._side, np.int8))
        return super().encode(table.select(self._groups).append_column(side, sides).append_column(row, rows))


def without_nulls(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows without a null in the columns `keys`: in SQL null equals nothing."""
    for name in keys:
        if rows.column(name).null_count:
            rows = rows.filter(rows.column(name).is_valid())
    return rows


def encode_upserts(rows: pa.Table, columns: pa.Schema, fingerprint: bytes) -> pa.Array:
    """Return the rows as a join of tables stores them, null where a row is gone (`DELETED_COLUMN`).

    Args:
        rows: As `upserts` returns them, each column in one chunk.
        columns: Those that are stored.
        fingerprint: Of the stored rows.
    """
    encoded = encode_rows(fitted(rows.select(columns.names), columns).columns, fingerprint)
    return pc.if_else(rows.column(DELETED_COLUMN).combine_chunks(), pa.scalar(None, encoded.type), encoded)


class _JoinSideSink(_WatermarkedSink):
    """Writes the rows of one side of a join, in the form in which the join keeps them."""

    def __init__(self, step: RepartitionSinkStep, join: Join, context: StageContext) -> None:
        super().__init__(step.sink, context)
        side = join.sides[step.sink.join_side]
        self._keys = pa.schema([(f"g{at}", arrow_type(kind)) for at, kind in enumerate(join.key_types)])
        columns = [(f"i{at}", arrow_type(kind)) for at, (_, kind) in enumerate(side.stored_columns)]
        self._columns = pa.schema(columns)
        self._side = step.sink.join_side
        self._is_preserved = self._side in join.preserved
        compared = {order.earlier if order.side == self._side else order.later for order in join.orders}
        compared |= {bound.column for bound in side.bounds}
        names = [name for name, _ in side.stored_columns]
        # A row with a null among these equals no row, or compares with none.
        self._needed = [*self._keys.names, *(f"i{at}" for at, name in enumerate(names) if name in compared)]
        self._row_fingerprint = store_of_join(join).rows.fingerprint
        self._fingerprint = input_schema(step.sink.columns, step.sink.expressions).fingerprint

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        # In SQL null equals nothing, so such a row never has a pair and would be kept for ever. Only an outer join has
        # a use for it.
        if not self._is_preserved:
            for name in self._needed:
                if table.column(name).null_count:
                    table = table.filter(table.column(name).is_valid())
        return super().push(table) if table.num_rows else ()

    def encode(self, table: pa.Table) -> tuple[Any, Any]:
        keys = fitted(table.select(self._keys.names), self._keys).combine_chunks()
        columns = fitted(table.select(self._columns.names), self._columns).combine_chunks()
        rows = encode_rows(columns.columns, self._row_fingerprint)
        # The row travels as the bytes that the store keeps, and the join stores them without decoding.
        sides = np.full(len(rows), self._side, np.int8)
        if self._is_preserved:
            for name in self._needed:
                # 2 or 3: the side, and that the row matches nothing.
                sides[table.column(name).is_null().to_numpy().astype(np.bool_)] = 2 + self._side
        return encode_key(keys.columns), encode_rows([pa.array(sides), rows], self._fingerprint)
