"""The fetch step: ranges of input partitions become tables of columns, and what was reached becomes a report.

Ranges are a maximum. A task that has read its share of bytes ends early where the plan allows it; the driver commits
what was *reached*, so a task whose rows the user's SQL all filters away moves on as well. Records that do not decode
follow the source's `on_error`, and so do offsets the plan names because Spark SQL cannot digest them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import RecordError, StateError
from headrace.spark.arrow_types import arrow_types
from headrace.spark.runtime.batches.plan import InputRange, TaskReport
from headrace.spark.runtime.batches.sink_stage import producer_for
from headrace.spark.runtime.batches.stages import StageContext
from headrace.spark.runtime.batches.trace_contexts import TraceFollower
from headrace.spark.runtime.dead_letters import remember_dead_letters, send_dead_letters
from headrace.spark.runtime.operators.watermark_records import is_watermark, read_watermarks
from headrace.spark.runtime.rows.row_schema import input_schema
from headrace.spark.runtime.rows.rows import decode_rows
from headrace.spark.topology.nodes import (
    COORDINATES_COLUMN,
    KEY_COLUMN,
    OFFSET_COLUMN,
    RECORD_COLUMN,
    TASK_COLUMN,
    TIMESTAMP_COLUMN,
    TOPIC_COLUMN,
    TRACE_COLUMN,
    DeadLetter,
    RepartitionSource,
    Source,
    TopicSource,
)

__all__ = ["FetchStep", "input_name", "name_of"]


def name_of(topic: str, partition: int) -> str:
    """Return the name of an input partition in reports."""
    return f"{topic}-{partition}"


def input_name(topic: str, partition: int, topic_id: str) -> str:
    """Return the name of an input partition in the positions of stores and sinks.

    It contains the topic's id: an offset means nothing in another topic of the same name.
    """
    return f"{topic}-{partition}@{topic_id}"


@dataclass(frozen=True, slots=True)
class FetchStep:
    """Reads one source of the subtopology for all tasks of the slot."""

    source: Source
    topics: tuple[str, ...]
    with_key: bool  # whether a sink further on needs the input's key
    accounts: bool  # of the chains that fetch one source, one counts its records and buries the bad ones
    first_topic: int = 0  # number of the first of `topics` among those of the subtopology
    with_timestamp: bool = False  # whether an operator needs the timestamps of the records
    with_trace: bool = False  # whether rows carry the trace contexts of their records
    with_record: bool = False  # whether rows carry their records, for an operator that writes some of them to a topic
    traced: bool = False  # whether rows carry the topic and offset of their records
    only_dead_letters: bool = False  # whether it yields no rows: it counts and buries the records that the plan skips

    def tables(self, context: StageContext) -> Iterator[pa.Table]:
        yield from _Fetch(self, context).tables()


class _Fetch:
    def __init__(self, step: FetchStep, context: StageContext) -> None:
        self._step, self._context = step, context
        self._unaccounted = TaskReport(partition=-1)  # what another chain of the same source says
        self._ranges: dict[tuple[str, int], InputRange] = {}
        self._owner: dict[tuple[str, int], int] = {}
        self._traces = TraceFollower(context.plan) if context.plan.follows_traces else None
        for task in context.slot.tasks:
            report = context.report(task.partition)
            for found in task.ranges:
                if found.topic in step.topics:
                    self._ranges[found.topic, found.partition] = found
                    self._owner[found.topic, found.partition] = task.partition
                    # A task whose input has no records reports its start, and so moves no offset.
                    report.reached[name_of(found.topic, found.partition)] = found.start

    def tables(self) -> Iterator[pa.Table]:
        fetcher = self._context.topics.reader(
            max_bytes=self._context.plan.fetch_max_bytes,
            max_partition_bytes=self._context.plan.fetch_max_partition_bytes,
        )
        columns = _record_columns(self._step, with_context=self._traces is not None)
        # 1. Ranges with something in them, and how many bytes of each were read.
        waiting = {where: (found.start, found.end) for where, found in self._ranges.items() if found.end > found.start}
        spent = dict.fromkeys(waiting, 0)
        started = began = time.perf_counter()
        over = False
        while waiting and not over:
            full = None
            for fetched in fetcher.fetch_ranges(waiting, columns=columns):
                self._context.timed("fetch", started)
                where = (fetched.topic, fetched.partition)
                # 2. Checked for every batch: the topic may be deleted and created again between two Fetches.
                self._check_topic(self._ranges[where])
                # 3. Rows go through all steps of the stage here. Only when they did, the position moves; a generator
                #    that is not resumed leaves the report at the last complete batch.
                yield from self._rows(where, _as_table(fetched.table))
                waiting[where] = (fetched.next_offset, waiting[where][1])
                reached = self._context.report(self._owner[where]).reached
                # 4. The last offsets of a range may be markers or compacted away. `next_offset` then lies behind them,
                #    and may lie behind the end of the range.
                reached[name_of(*where)] = min(fetched.next_offset, waiting[where][1])
                self._account(where).bytes_in += fetched.table.nbytes
                spent[where] += fetched.table.nbytes
                started = time.perf_counter()
                # 5. Early end: the micro-batch used up its time, or this partition its bytes. The loop starts again
                #    without a partition that is full, because a fetch cannot drop one of its ranges.
                over = self._is_over(began)
                if over or (self._context.plan.ends_early and spent[where] >= self._context.plan.max_bytes_per_task):
                    full = where
                    break
            self._context.timed("fetch", started)
            if full is None:
                break
            del waiting[full]
            waiting = {where: ends for where, ends in waiting.items() if ends[0] < ends[1]}

    def _check_topic(self, found: InputRange) -> None:
        """Refuse records of another topic of the same name: the plan's offsets mean nothing there.

        Fetch names topics by id, and brokers refuse the id of a topic that is gone; only then the client looks the id
        up again. So what came while the client still knew the plan's id came from the plan's topic.
        """
        known = self._context.topics.topic_id(found.topic)
        if found.topic_id and known is not None and known != found.topic_id:
            raise StateError(
                "topic-recreated",
                f"the topic {found.topic} was deleted and created again while its records were read",
                "Nothing: the task is opened again and reads the new topic from its beginning.",
            )

    def _is_over(self, began: float) -> bool:
        """Whether the batch's time is up: it must end well before its transaction does."""
        plan = self._context.plan
        spent_ms = (time.perf_counter() - began) * 1000
        return plan.ends_early and 0 < plan.fetch_deadline_ms < spent_ms

    def _account(self, where: tuple[str, int]) -> TaskReport:
        """Return the report in which a record is counted: once, however many chains fetch it."""
        return self._context.report(self._owner[where]) if self._step.accounts else self._unaccounted

    def _rows(self, where: tuple[str, int], records: pa.Table) -> Iterator[pa.Table]:
        found, task = self._ranges[where], self._owner[where]
        records = self._without_watermarks(task, records)
        # Counted before anything is left out, once for all chains of this source.
        self._account(where).records_in += records.num_rows
        records = self._without_skipped(found, records)
        if not records.num_rows or self._step.only_dead_letters:
            return
        started = time.perf_counter()
        if self._traces is not None:
            contexts = self._traces.contexts(self._account(where), where, records)
            records = records.append_column(TRACE_COLUMN, contexts)
        rows = self._decoded(where, records)
        self._context.timed("decode", started)
        if rows.num_rows:
            yield rows.append_column(TASK_COLUMN, pa.array(np.full(rows.num_rows, task, np.int32)))

    def _without_watermarks(self, task: int, records: pa.Table) -> pa.Table:
        """Take the watermarks of upstream tasks out of the records of a repartition topic, into the task's report.

        They need no place among the rows: a watermark says something about the rows behind it, and those of a
        micro-batch are all merged before a window closes.
        """
        source = self._step.source
        if not isinstance(source, RepartitionSource) or not source.has_watermarks:
            return records
        mask = is_watermark(records.column("key").combine_chunks())
        if not pc.any(mask, min_count=0).as_py():
            return records
        values = records.filter(mask).column("value").to_pylist()
        report = self._context.report(task)
        report.upstream += [watermark.as_report() for watermark in read_watermarks(values)]
        return records.filter(pc.invert(mask))

    def _without_skipped(self, found: InputRange, records: pa.Table) -> pa.Table:
        if not found.skipped:
            return records
        offsets = records.column("offset").to_numpy()
        out = np.isin(offsets, np.array(found.skipped, np.int64))
        self._account((found.topic, found.partition)).skipped += int(out.sum())
        policy = self._step.source.on_error
        if isinstance(policy, DeadLetter) and out.any():
            reasons = [found.dead.get(str(offset), "undigestible") for offset in offsets[out].tolist()]
            self._write_dead_letters(policy, (found.topic, found.partition), records.filter(pa.array(out)), reasons)
        return records.filter(pa.array(~out))

    def _decoded(self, where: tuple[str, int], records: pa.Table) -> pa.Table:
        source = self._step.source
        if isinstance(source, RepartitionSource):
            rows = _decoded_rows(source, where, records)
            if self._step.with_key:
                rows = rows.append_column(KEY_COLUMN, records.column("key").combine_chunks())
            return self._traced(where, records, rows)
        from headrace.spark import formats

        decoded = formats.decode(records, source, topic=where[0], partition=where[1])
        rows = pa.Table.from_batches([decoded.batch])
        if self._step.with_key:
            rows = rows.append_column(KEY_COLUMN, records.column("key").combine_chunks())
        if self._step.with_timestamp:
            rows = rows.append_column(TIMESTAMP_COLUMN, records.column("timestamp").combine_chunks().cast(pa.int64()))
        if self._step.with_record:
            rows = rows.append_column(RECORD_COLUMN, _records(records))
        rows = self._traced(where, records, rows)
        if not decoded.bad_rows and decoded.tombstones is None:
            return rows
        # Rows of bad records and tombstones are null until here: decoders return a row per record, so that indexes of
        # rows and records agree.
        bad = np.zeros(records.num_rows, np.bool_)
        if decoded.bad_rows:
            bad[[row.index for row in decoded.bad_rows]] = True
            self._refuse(source, where, records, decoded.bad_rows, bad)
        if decoded.tombstones is not None:
            bad |= decoded.tombstones
        return rows.filter(pa.array(~bad))

    def _traced(self, where: tuple[str, int], records: pa.Table, rows: pa.Table) -> pa.Table:
        if self._step.with_trace:
            rows = rows.append_column(TRACE_COLUMN, records.column(TRACE_COLUMN))
        if not self._step.traced:
            return rows
        topic = np.full(records.num_rows, self._step.first_topic + self._step.topics.index(where[0]), np.int32)
        offsets = records.column("offset").combine_chunks().cast(pa.int64())
        return rows.append_column(TOPIC_COLUMN, pa.array(topic)).append_column(OFFSET_COLUMN, offsets)

    def _refuse(self, source: TopicSource, where: tuple[str, int], records: pa.Table, bad_rows: Any, bad: Any) -> None:
        if source.on_error == "fail":
            row = bad_rows[0]
            offset = int(records.column("offset")[row.index].as_py())
            raise RecordError(
                "undecodable",
                f"the record {name_of(*where)}@{offset} does not decode: {row.reason}",
                'Correct the producer, or let the application pass over it: on_error="skip" or DeadLetter("topic").',
                topic=where[0],
                partition=where[1],
                offset=offset,
                reason=row.reason,
                excerpt=row.excerpt,
            )
        self._account(where).skipped += len(bad_rows)
        if isinstance(source.on_error, DeadLetter):
            self._write_dead_letters(
                source.on_error, where, records.filter(pa.array(bad)), [row.reason for row in bad_rows]
            )

    def _write_dead_letters(
        self, policy: DeadLetter, where: tuple[str, int], records: pa.Table, reasons: list[str]
    ) -> None:
        """Write raw records to the dead-letter topic, with headers for their origin and the reason."""
        if self._context.plan.probe or not self._step.accounts:
            return
        self._account(where).dead += records.num_rows
        more = _own_headers(self._step.source, where, records)
        names = send_dead_letters(self._context, policy.topic, where, records, reasons, more)
        if names:
            producer_for(self._context).flush()
            remember_dead_letters(self._context, names)


def _decoded_rows(source: RepartitionSource, where: tuple[str, int], records: pa.Table) -> pa.Table:
    schema = input_schema(source.columns, source.expressions)
    values = records.column("value").combine_chunks()
    try:
        columns = decode_rows(values, arrow_types(source.columns), schema.fingerprint)
    except StateError as error:
        if error.code != "state-schema-changed":
            raise
        offset = int(records.column("offset")[error.facts["row"]].as_py())
        raise StateError(
            "state-schema-changed",
            f"the record {name_of(*where)}@{offset} was written by another version of the program: its rows have the "
            f"schema {error.facts['found']}, this program reads {schema.fingerprint.hex()} ({schema})",
            "Let the version that wrote it read it: start that one, wait until it has caught up, stop it.",
            topic=where[0],
            partition=where[1],
            offset=offset,
            found=error.facts["found"],
            wanted=schema.fingerprint.hex(),
        ) from error
    return pa.Table.from_arrays(columns, names=[name for name, _ in source.columns])


def _own_headers(source: Source, where: tuple[str, int], records: pa.Table) -> list[list[tuple[str, bytes]]] | None:
    """Return more headers of dead letters behind a repartition topic, None for others.

    There `headrace.topic` names, as in Kafka Streams, the record of that topic. Its source record is not
    known: carrying the coordinates through every repartition record would cost all applications some bytes a record.
    `headrace.sources` names the topics that it can be from, `headrace.row` shows its columns.
    """
    if not isinstance(source, RepartitionSource):
        return None
    origins = ("headrace.sources", ",".join(source.origins).encode())
    return [[origins, *row] for row in _shown_rows(source, where, records)]


def _shown_rows(source: RepartitionSource, where: tuple[str, int], records: pa.Table) -> list[list[tuple[str, bytes]]]:
    """Return for each record a header with its columns as JSON, named after their expressions; no header for a value
    that JSON cannot express.
    """
    from headrace.spark import formats

    rows = _decoded_rows(source, where, records)
    names = dict(zip(source.expressions or rows.column_names, rows.columns, strict=True))
    [batch] = pa.table(names).combine_chunks().to_batches()
    shown: list[list[tuple[str, bytes]]] = []
    for index in range(batch.num_rows):
        try:
            [text] = formats.encode_value_json(batch.slice(index, 1), list(names)).to_pylist()
        except (ValueError, ArithmeticError, pa.ArrowException):
            shown.append([])
        else:
            shown.append([("headrace.row", text)])
    return shown


def _record_columns(step: FetchStep, *, with_context: bool) -> tuple[str, ...]:
    """Return the parts of a record that the steps of the stage use. Other parts are not decoded."""
    used = _columns_of_rows(step)
    also = ("key", "value") if step.with_record else ()
    used = (
        *used,
        *also,
        *(("timestamp",) if step.with_timestamp else ()),
        *(("trace_context",) if with_context else ()),
    )
    order = ("key", "value", "offset", "timestamp", "headers", "trace_context")
    return tuple(name for name in order if name in used)


def _columns_of_rows(step: FetchStep) -> tuple[str, ...]:
    source = step.source
    if isinstance(source, RepartitionSource):
        with_key = step.with_key or _has_dead_letters(source) or source.has_watermarks
        return ("key", "value", "offset") if with_key else ("value", "offset")
    named = source.columns_needed
    if named is None or COORDINATES_COLUMN in named or "headers" in named:
        return ("key", "value", "offset", "timestamp", "headers")
    keyed = step.with_key or _has_dead_letters(source) or source.typed_key is not None
    if source.value_format != "raw":
        return ("key", "value", "offset") if keyed else ("value", "offset")
    if not set(named) <= {"key", "value", "offset"}:
        return ("key", "value", "offset", "timestamp")
    used = {"offset", *named, *(("key",) if keyed else ()), *(("value",) if _has_dead_letters(source) else ())}
    return tuple(name for name in ("key", "value", "offset") if name in used)


def _records(records: pa.Table) -> pa.StructArray:
    names = ("offset", "key", "value")
    columns = [records.column(name).combine_chunks() for name in names]
    return pa.StructArray.from_arrays([columns[0].cast(pa.int64()), *columns[1:]], names=list(names))


def _has_dead_letters(source: Source) -> bool:
    """Whether bad records of this source are written, unchanged, to a dead-letter topic."""
    return isinstance(source.on_error, DeadLetter)


def _as_table(records: Any) -> pa.Table:
    return records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
