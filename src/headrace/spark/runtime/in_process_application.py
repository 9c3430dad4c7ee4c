"""A whole application in the calling thread, without group, broker or processes: what `TopologyTest` drives.

For each subtopology the machine of a running application decides (`SubtopologyMachine`), `CommandExecutor` executes,
and `BatchRecovery` applies `on_error`. Only the ends are others: topics lie in memory (`MemoryTopics`), stages run here
(`InProcessExecutor`), and the group's offsets are a dictionary. Waiting takes no time: the machine's clock jumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.admin_results import CommittedOffset
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import HeadraceError
from headrace.spark.machine import commands, events
from headrace.spark.machine.commands import Work
from headrace.spark.machine.events import Event
from headrace.spark.machine.subtopology_machine import SubtopologyMachine
from headrace.spark.runtime.batches.batch_commit import reached_offsets
from headrace.spark.runtime.batches.batch_limits import BatchMeasure
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, TaskReport
from headrace.spark.runtime.batches.plan_factory import PlanFactory
from headrace.spark.runtime.chains import ChainBuilder, input_topics
from headrace.spark.runtime.command_executor import CommandExecutor
from headrace.spark.runtime.in_process import SLOT, InProcessExecutor, in_process_session
from headrace.spark.runtime.memory_topics import MemoryTopics, MemoryWriter
from headrace.spark.runtime.operators.watermark_records import WATERMARK_KEY
from headrace.spark.runtime.progress import SubtopologyProgress
from headrace.spark.runtime.rows.row_schema import StoreSpec
from headrace.spark.runtime.stores.store import StoreIdentity, TaskStore
from headrace.spark.runtime.stores.store_restorer import restore_slots, take_restored
from headrace.spark.runtime.table_sinks import metadata_of
from headrace.spark.runtime.tasks import RunningTask, TopicPartition
from headrace.spark.runtime.worker_process import close_stores, store_for, store_path

if TYPE_CHECKING:
    from headrace.spark.application_settings import ApplicationSettings
    from headrace.spark.topology.nodes import CompiledSubtopology, CompiledTopology

__all__ = ["InProcessApplication"]

Offsets = dict[TopicPartition, CommittedOffset]

_MEMBER = "in-process"


class InProcessApplication:
    """One instance that owns all tasks. Mutable; belongs to one thread. See `BatchInstance`.

    Topics and `offsets` outlive it, as a cluster outlives an instance: another one goes on where it ended.
    """

    def __init__(
        self,
        settings: ApplicationSettings,
        compiled: CompiledTopology,
        topics: MemoryTopics,
        offsets: Offsets,
        *,
        state_dir: Path,
        incarnation: str,
    ) -> None:
        """Open all tasks.

        Args:
            settings: Of the application; it runs exactly once, whatever they say.
            compiled: The topology.
            topics: All its topics.
            offsets: What the group has committed.
            state_dir: Where its stores lie. A store that is not there is restored from its changelog.
            incarnation: Distinguishes its micro-batches from those of earlier instances.

        Raises:
            HeadraceError: a store cannot be restored.
        """
        self.group_id, self.incarnation = settings.name, incarnation
        self.topics, self.offsets, self.state_dir = topics, offsets, state_dir
        self.spark = in_process_session(settings.spark)
        self.config = settings.config
        # Exactly once, whatever the settings: aborted transactions leave no rows in the topics, so a test sees each row
        # once also after a failure.
        self.plan_factory = PlanFactory(
            replace(settings, processing_guarantee="exactly_once_v2"),
            incarnation=incarnation,
            state_dir=str(state_dir),
            client=topics,
            now_ms=topics.now_ms,
        )
        self.subtopologies = {
            subtopology.subtopology_id: _InProcessSubtopology(self, subtopology)
            for subtopology in compiled.subtopologies
        }

    @property
    def is_failed(self) -> bool:
        return False

    def run(self) -> None:
        """Run micro-batches until every task has processed its input.

        Raises:
            HeadraceError: what ended a subtopology, the first one; the others have processed what it wrote until then.
        """
        error: BaseException | None = None
        running = dict(self.subtopologies)
        has_run = True
        # Round after round: a subtopology behind a repartition topic has new input as long as one in front of it ran.
        while has_run:
            has_run = False
            for name, subtopology in list(running.items()):
                try:
                    has_run |= subtopology.run()
                # The failed subtopology stops. The others finish what is in their topics, as tasks of other instances
                # would.
                except HeadraceError as raised:
                    error = error or raised
                    has_run = True
                    del running[name]
        if error is not None:
            raise error

    def open_stores(self, subtopology_id: str, spec: StoreSpec) -> dict[int, TaskStore]:
        """Return a store of every task, by partition, as of the last committed micro-batch."""
        identity = StoreIdentity(
            changelog_topic_id=self.topics.topic_id(spec.changelog_topic) or "",
            schema_hash=spec.rows.hash,
            boot_id=self.plan_factory.boot_id,
        )
        stores = {}
        for task in self.subtopologies[subtopology_id].tasks:
            path = store_path(self.state_dir, subtopology_id, task.partition, spec)
            stores[task.partition] = store_for(path, identity)
            # The last micro-batch is committed but prepared in the store: only the next plan would name it.
            stores[task.partition].resolve_prepared(task.committed)
        return stores

    def close(self) -> None:
        """Close the stores."""
        close_stores(self.state_dir)


class _InProcessSubtopology:
    """Drives the machine of one subtopology, as `SubtopologyRunner` does with threads."""

    def __init__(self, instance: InProcessApplication, subtopology: CompiledSubtopology) -> None:
        self._instance, self._subtopology, self._name = instance, subtopology, subtopology.subtopology_id
        topics = instance.topics
        self.partitions = max(topics.partition_count(topic) for topic in input_topics(subtopology))
        self._stages = InProcessExecutor(instance.spark, subtopology, topics)
        instance.plan_factory.note_chains(self._name, ChainBuilder(instance.spark, subtopology, 1, {}).count)
        self.progress = SubtopologyProgress(self._name, input_topics(subtopology))
        self._tasks: dict[int, RunningTask] = {}
        self._opened: dict[tuple[int, int], RunningTask] = {}  # by request and task, until they are bound
        self._executor = CommandExecutor(
            instance,
            subtopology,
            self._stages,
            self._tasks,
            self.progress,
            inputs=_MemoryInputs(topics),
            commit=_MemoryCommit(topics, instance.offsets),
            limits=_UnlimitedBatchSize(instance.config),
        )
        # The same two events that start a subtopology of a real instance; the machine opens all tasks in answer to the
        # second one.
        self._machine = SubtopologyMachine(self._name, transactional=True)
        self._now_ms = 0
        self._work: deque[Work] = deque()
        self._answer(events.SlotHello(slots=(SLOT,)))
        tasks = {self._name: tuple(range(self.partitions))}
        self._answer(events.Assigned(assignment=AssignmentSnapshot(member_id=_MEMBER, member_epoch=1, active=tasks)))

    @property
    def tasks(self) -> list[RunningTask]:
        return [self._tasks[partition] for partition in sorted(self._tasks)]

    def run(self) -> bool:
        """Run micro-batches until there is no input. Return whether there was any. Raises HeadraceError."""
        before = self.progress.totals.batches
        # Between two calls the machine waits for input. New records were pushed, so it is woken.
        if self._work and isinstance(self._work[0], commands.WaitForInput):
            self._work.popleft()
            self._answer(events.Woken())
        while self._work and not isinstance(self._work[0], commands.WaitForInput):
            self._do(self._work.popleft())
        self._executor.publish_tables()
        return self.progress.totals.batches > before

    def _do(self, work: Work) -> None:
        match work:
            case commands.Wait(until_ms=until_ms):
                # The machine's clock is an argument: a backoff or a trigger interval passes at once.
                self._now_ms = max(self._now_ms, until_ms)
                self._answer(events.Woken())
            case commands.Fail(error=error):
                raise error
            case _:
                for event in self._executor.execute(work):
                    self._answer(event)

    def _answer(self, event: Event) -> None:
        for command in self._machine.handle(event, self._now_ms):
            match command:
                case commands.Open():
                    opened = self._open(command)
                    self._opened |= {(command.number, task.partition): task for task in opened}
                    self._answer(
                        events.Opened(number=command.number, partitions=tuple(task.partition for task in opened))
                    )
                case commands.Bind(partition=partition, number=number):
                    self._tasks[partition] = self._opened.pop((number, partition))
                case commands.Release(partitions=partitions):
                    for partition in partitions:
                        del self._tasks[partition]
                case commands.MarkUnknown() | commands.CancelOpenings():
                    pass
                case _:
                    self._work.append(command)

    def _open(self, request: commands.Open) -> list[RunningTask]:
        """Look up the positions of tasks, settle their tables, and restore their stores."""
        topics, offsets = self._instance.topics, self._instance.offsets
        known = topics.known_topics(input_topics(self._subtopology)).topics
        tasks = []
        for partition in request.partitions:
            inputs = [(topic, partition) for topic in known if partition in known[topic].partitions]
            tasks.append(
                RunningTask(
                    partition=partition,
                    positions={where: offsets[where].offset if where in offsets else 0 for where in inputs},
                    slot=request.slots[partition],
                    topic_ids={topic: str(found.topic_id) for topic, found in known.items()},
                )
            )
        # The order of `TaskOpener`: parts of tables before stores, both by the offsets of the group.
        if self._executor.tables:
            self._executor.tables.resolve_parts(tasks, offsets)
        if self._subtopology.changelog_topics:
            batch = self._executor.next_batch()
            plan = self._instance.plan_factory.plan(self._subtopology, request.assignment, restore_slots(tasks), batch)
            self.progress.restored += take_restored(tasks, self._stages.restore(plan), batch)
        return tasks


class _MemoryInputs:
    """Input topics in memory. See `TaskInputs`."""

    losses = 0

    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics

    def find_ends(self, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {where: self._topics.end(where) for where in inputs}

    def find_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: str(found.topic_id) for name, found in self._topics.known_topics(topics).topics.items()}

    def start_batch(self, topic: str, partition: int) -> None:
        keys, values = pa.array([WATERMARK_KEY], pa.binary()), pa.nulls(1, pa.binary())
        MemoryWriter(self._topics).send(topic, partition, keys, values, timestamps_ms=self._topics.now_ms())

    def purge(self, tasks: Iterable[RunningTask]) -> None:
        """Keep all rows: a test may look at them."""

    def wait(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        raise AssertionError(f"nothing waits in one thread: {positions}")

    def wake(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


class _MemoryCommit:
    """Exactly-once delivery in memory. See `BatchCommit`."""

    def __init__(self, topics: MemoryTopics, offsets: Offsets) -> None:
        self._topics, self._offsets = topics, offsets

    def begin(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        self._topics.begin_transaction()
        return slots

    def commit(self, plan: MicroBatchPlan, reports: Mapping[int, TaskReport]) -> dict[int, HeadraceError | None]:
        for task in plan.tasks:
            for where, offset in reached_offsets(task, reports).items():
                self._offsets[where] = CommittedOffset(offset=offset, metadata=metadata_of(plan))
        # Offsets and rows change without anything in between: one thread, no crash window.
        self._topics.commit_transaction()
        return dict.fromkeys((slot.slot for slot in plan.slots), None)

    def read_offsets(self, plan: MicroBatchPlan, slots: tuple[int, ...]) -> dict[TopicPartition, int]:
        self._topics.abort_transaction()
        inputs = [(r.topic, r.partition) for slot in slots for task in plan.slot(slot).tasks for r in task.ranges]
        return {where: self._offsets[where].offset if where in self._offsets else -1 for where in inputs}

    def mark_unknown(self) -> None:
        pass

    def resolve_unknown(self) -> None:
        pass

    def check_ended(self, *, wait: bool = False) -> None:
        pass

    def abort(self, plan: MicroBatchPlan) -> None:
        del plan
        self._topics.abort_transaction()


class _UnlimitedBatchSize:
    """Limits of micro-batches that do not depend on how fast they are, so that a test has the same ones each time."""

    def __init__(self, config: Mapping[str, int | str]) -> None:
        self.records = int(config["headrace.batch.max.records"])
        self.bytes = int(config["headrace.batch.max.bytes"])

    def is_too_late(self, spent_ms: float) -> bool:
        del spent_ms
        return False

    def update(self, batch: BatchMeasure) -> None:
        pass
