"""Driver side of tables: parts are committed after the group's offsets, and leftovers are decided when tasks are
opened.

Parts are written by `table_sink_stage`, in the workers. The runner of the subtopology commits them after the
transaction (or the offset commit) of their micro-batch, and discards them if the batch failed. When a task is opened,
parts left by earlier owners are decided by the group's stable offsets (`sinks.part_resolution`), before the task runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from headrace.client.admin_results import CommittedOffset
from headrace.errors import SinkError
from headrace.spark.runtime.batches.fetch_stage import input_name, name_of
from headrace.spark.runtime.batches.plan import MicroBatchPlan, TaskReport
from headrace.spark.runtime.batches.table_sink_stage import batch_name, part_of, refused_by
from headrace.spark.runtime.tasks import RunningTask, TopicPartition
from headrace.spark.sinks import part_resolution
from headrace.spark.sinks.database import LockTimeoutError
from headrace.spark.sinks.interface import SinkPart, SinkTask
from headrace.spark.topology.nodes import CompiledSubtopology, TableSink

__all__ = ["TableSinks", "metadata_of"]

log = logging.getLogger("headrace.spark")
TRIES = 4
PAUSE = 0.2
ROLL_LOOK_S = 1.0


def metadata_of(plan: MicroBatchPlan) -> str:
    """Return the metadata for the offset commit of a micro-batch."""
    ids = {found.topic: found.topic_id for task in plan.tasks for found in task.ranges if found.topic_id}
    return part_resolution.metadata_of(batch_name(plan.batch), ids)


class TableSinks:
    """Tables of one subtopology.

    `resolve_parts` is called by the thread that opens tasks, the other methods by the runner's.
    """

    def __init__(self, group_id: str, subtopology: CompiledSubtopology) -> None:
        self._group_id, self._subtopology_id = group_id, subtopology.subtopology_id
        found = [branch.sink for branch in subtopology.branches if isinstance(branch.sink, TableSink)]
        self._sinks: Mapping[str, TableSink] = {sink.name: sink for sink in found}
        self._rolling = [sink for sink in found if callable(getattr(sink.sink, "roll", None))]
        self._gathering: set[int] = set()  # tasks that may have committed parts which readers do not see yet
        self._rolled_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> None:
        """Make the parts of the committed tasks visible. Raises SinkError; they are then committed when a task is
        opened.
        """
        for sink in self._sinks.values():
            parts = [part for part, name in _written(plan, reports) if name == sink.name]
            if parts:
                self._gathering |= {part.task.partition for part in parts}
                self._try(sink, "a micro-batch was committed", lambda s=sink, p=parts: s.sink.commit(p))  # type: ignore[misc]

    def roll(self, partitions: Iterable[int], *, everything: bool = False) -> None:
        """Publish committed rows of these tasks that are due; `everything` publishes all. Raises SinkError."""
        if not self._rolling or not (everything or time.monotonic() - self._rolled_at >= ROLL_LOOK_S):
            return
        self._rolled_at = time.monotonic()
        self._gathering &= set(partitions)
        left: set[int] = set()
        tasks = [self._task(partition) for partition in sorted(self._gathering)]
        for sink in self._rolling if tasks else ():
            with refused_by(sink, "committed rows were made a file"):
                found = sink.sink.roll(tasks, int(time.time() * 1000), everything=everything)
            left |= {task.partition for task in found}
        self._gathering &= left

    def _task(self, partition: int) -> SinkTask:
        return SinkTask(group_id=self._group_id, subtopology_id=self._subtopology_id, partition=partition)

    def discard(self, plan: MicroBatchPlan, partitions: Iterable[int]) -> None:
        """Discard these tasks' parts of a failed batch."""
        wanted = set(partitions)
        parts = [part_of(plan, task) for task in plan.tasks if task.partition in wanted]
        for sink in self._sinks.values():
            with refused_by(sink, "rows of a failed micro-batch were taken back"):
                sink.sink.discard(parts)

    def resolve_parts(self, tasks: Iterable[RunningTask], committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Decide leftover parts of these tasks by the group's offsets, and commit or discard them. Raises SinkError."""
        for task in tasks:
            stands = {
                _input(task, where): part_resolution.Committed(offset=row.offset, metadata=row.metadata)
                for where, row in committed.items()
                if where in task.positions
            }
            for sink in self._sinks.values():
                self._resolve_parts(sink, task, stands)

    def _resolve_parts(
        self, sink: TableSink, task: RunningTask, stands: Mapping[str, part_resolution.Committed]
    ) -> None:
        mine = self._task(task.partition)
        self._gathering |= {task.partition}
        with refused_by(sink, f"the task {self._subtopology_id}-{task.partition} was opened"):
            # 1. Parts of earlier owners, decided by the group's offsets.
            found = part_resolution.resolve_parts(sink.sink.pending(mine), stands)
        # 2. Nothing is guessed: see `sinks.part_resolution`.
        if found.undecided:
            raise _undecided(sink, found.undecided[0])
        # 3. Commit before discard: an error in between leaves parts that the next opening decides in the same way.
        if found.commit:
            log.warning("%s: a micro-batch that was committed is brought into %s", self._subtopology_id, sink.name)
            self._try(sink, "a micro-batch was committed", lambda: sink.sink.commit(found.commit))
        with refused_by(sink, "rows of a failed micro-batch were taken back"):
            sink.sink.discard(found.discard)
            positions = sink.sink.positions(mine)
        # 4. The table may be ahead of the offsets if a tool has set them back, or they have expired. Rows up to there
        #    are in the table already.
        further = {where: positions.get(_input(task, where), 0) for where in task.positions}
        further = {where: at for where, at in further.items() if at > task.positions[where]}
        if further:
            task.ahead[sink.name] = further
            log.warning(
                "%s has the rows of %s already: they are not written again",
                sink.name,
                ", ".join(f"{name_of(*where)} up to {at}" for where, at in sorted(further.items())),
            )

    def _try(self, sink: TableSink, doing: str, work: Callable[[], None]) -> None:
        """Run a call of a sink, with retries: offsets are committed already, so the rows must reach the table."""
        for _ in range(TRIES - 1):
            try:
                with refused_by(sink, doing):
                    work()
            except SinkError as error:
                # It has waited as long as it may, and what holds the lock does not end in a moment.
                if isinstance(error.__cause__, LockTimeoutError):
                    raise
                log.warning("%s; trying again", error)
                time.sleep(PAUSE)
            else:
                return
        with refused_by(sink, doing):
            work()


def _input(task: RunningTask, where: TopicPartition) -> str:
    return input_name(*where, task.topic_ids.get(where[0], ""))


def _written(plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> Iterable[tuple[SinkPart, str]]:
    """(part with its ends, the table's name) of what was written."""
    for task in plan.tasks:
        report = reports.get(task.partition)
        for name in report.table_rows if report is not None else ():
            part = part_of(plan, task)
            ends = {
                input_name(r.topic, r.partition, r.topic_id): report.reached.get(name_of(r.topic, r.partition), r.start)  # type: ignore[union-attr]
                for r in task.ranges
            }
            yield SinkPart(task=part.task, batch=part.batch, starts=part.starts, ends=ends), name


def _undecided(sink: TableSink, part: SinkPart) -> SinkError:
    starts = ", ".join(f"{name} from {at}" for name, at in sorted(part.starts.items()))
    return SinkError(
        "sink-undecided",
        f"{sink.name} holds rows of an unfinished micro-batch ({starts}), and the group's offsets, which a tool has "
        "set or which have expired, do not say whether it was committed",
        f"Set the group's offsets to where that micro-batch begins and start again: its rows are then written anew. "
        f"(Its name is {part.batch}.)",
        sink=sink.name,
        batch=part.batch,
    )
