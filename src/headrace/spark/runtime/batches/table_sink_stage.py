"""Step that writes rows to a table: each task's rows go into a part of their own, invisible to readers.

The driver commits the parts when the group's offsets are committed (`table_sinks`). A part whose input broke off half
way belongs to a batch that failed, and is discarded with it.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.errors import SinkError
from headrace.spark.runtime.batches.fetch_stage import input_name
from headrace.spark.runtime.batches.plan import MicroBatchPlan, TaskPlan
from headrace.spark.runtime.batches.stages import Operator, StageContext, fitted
from headrace.spark.runtime.operators.change_rows import ChangeRows, Mask, upserts
from headrace.spark.sinks.interface import SinkPart, SinkTask, SinkWriter
from headrace.spark.topology.nodes import DELETED_COLUMN, OLD_COLUMN, TASK_COLUMN, TableSink

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import BatchKey

__all__ = ["TableSinkStep", "batch_name", "part_of", "refused_by"]


def batch_name(batch: BatchKey) -> str:
    """The attempt's name, for parts and for the metadata of the offset commit."""
    return f"{batch.incarnation}.{batch.batch_id}.{batch.attempt}"


def part_of(plan: MicroBatchPlan, task: TaskPlan) -> SinkPart:
    """Return the part that holds one task's rows of this attempt."""
    return SinkPart(
        task=SinkTask(group_id=plan.group_id, subtopology_id=plan.subtopology_id, partition=task.partition),
        batch=batch_name(plan.batch),
        starts={input_name(found.topic, found.partition, found.topic_id): found.start for found in task.ranges},
    )


@contextlib.contextmanager
def refused_by(sink: TableSink, doing: str) -> Iterator[None]:
    """Return the error for a failure inside a sink."""
    try:
        yield
    except OSError as error:
        code = "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "sink-failed"
        fix = "Free room there." if code == "disk-full" else "Look at that place; what was not committed comes again."
        raise SinkError(code, f"{sink.name} failed while {doing}: {error}", fix, sink=sink.name) from error


@contextlib.contextmanager
def _name_too_long_is_a_bad_value() -> Iterator[None]:
    """Directories are named after values (`partition_by`): one record may have a value that no file system takes."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError("a value is too long for the name of a directory") from error
        raise


@dataclass(frozen=True, slots=True)
class TableSinkStep:
    """Step that writes rows to a table."""

    sink: TableSink

    def start(self, context: StageContext) -> Operator:
        return _TableSink(self.sink, context)


class _TableSink:
    def __init__(self, sink: TableSink, context: StageContext) -> None:
        from headrace.spark.formats.arrow_types import arrow_schema
        from headrace.spark.formats.schemas import struct_of

        self._sink, self._context = sink, context
        self._schema = arrow_schema(struct_of(sink.schema_json))
        if sink.deletes:
            self._schema = self._schema.append(pa.field(DELETED_COLUMN, pa.bool_()))
        self._changes = ChangeRows()  # where rows are changes: which of them belong together
        self._tasks = {task.partition: task for task in context.slot.tasks}
        self._writers: dict[int, SinkWriter] = {}

    def push(self, table: pa.Table) -> Iterable[pa.Table]:
        if OLD_COLUMN in table.column_names:
            self._push_changes(self._changes.add(table))
        else:
            self._push_rows(table)
        return ()

    def _push_changes(self, changes: tuple[pa.Table, Mask, Mask]) -> None:
        rows = upserts(*changes)
        if rows.num_rows:
            self._push_rows(rows)

    def _push_rows(self, table: pa.Table) -> None:
        started = time.perf_counter()
        tasks = table.column(TASK_COLUMN).to_numpy()
        rows = fitted(table.select(self._schema.names), self._schema)
        for partition in np.unique(tasks).tolist():
            task = self._tasks[partition]
            # The range lies before the table's own position: it was written before the group's offsets were set back.
            if self._sink.name not in task.complete_tables:
                mine = tasks == partition
                self._write(task, rows if mine.all() else rows.filter(pa.array(mine)))
        self._context.timed("table", started)

    def finish(self) -> Iterable[pa.Table]:
        if (rest := self._changes.rest()) is not None:
            self._push_changes(rest)
        started = time.perf_counter()
        with refused_by(self._sink, "rows were written"), _name_too_long_is_a_bad_value():
            for writer in self._writers.values():
                writer.close()
        self._writers.clear()
        self._context.timed("table", started)
        return ()

    def _write(self, task: TaskPlan, rows: pa.Table) -> None:
        with refused_by(self._sink, "rows were written"), _name_too_long_is_a_bad_value():
            writer = self._writers.get(task.partition)
            if writer is None:
                # Made with the first rows, so a task without rows leaves no part.
                part = part_of(self._context.plan, task)
                writer = self._writers[task.partition] = self._sink.sink.writer(part, self._schema)
            writer.write(rows)
        report = self._context.report(task.partition)
        report.records_out += rows.num_rows
        report.table_rows[self._sink.name] = report.table_rows.get(self._sink.name, 0) + rows.num_rows
