"""Execution of the machine's work for one subtopology: Spark jobs, commits, and what follows from their outcome.

`SubtopologyMachine` decides what is done and when. This module does it, in the runner's thread, and answers with the
events that the machine expects.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.spark.machine import commands, events
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.machine.events import Event
from headrace.spark.runtime.batches.batch_commit import BatchCommit, reached_offsets
from headrace.spark.runtime.batches.batch_limits import BatchMeasure
from headrace.spark.runtime.batches.batch_outcome import complete, measure
from headrace.spark.runtime.batches.batch_recovery import BatchRecovery
from headrace.spark.runtime.batches.job_runner import BatchFailed
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, StageReport, TaskReport, merged
from headrace.spark.runtime.batches.task_inputs import TaskInputs
from headrace.spark.runtime.chains import source_topics
from headrace.spark.runtime.executor import Executor
from headrace.spark.runtime.operators.silent_partitions import SilenceLog
from headrace.spark.runtime.progress import BatchTiming, SubtopologyProgress
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.table_sinks import TableSinks
from headrace.spark.runtime.tasks import RunningTask, plan_slots
from headrace.spark.topology.nodes import CompiledSubtopology

if TYPE_CHECKING:
    from headrace.spark.runtime.batches.plan_factory import PlanFactory
    from headrace.spark.runtime.span_exporter import SpanExporter

__all__ = ["CommandExecutor"]

log = logging.getLogger("headrace.spark")


class BatchInstance(Protocol):
    """The part of an instance that micro-batches depend on. See `RunningInstance`."""

    group_id: str
    incarnation: str
    plan_factory: PlanFactory

    @property
    def is_failed(self) -> bool:
        """Whether an error ends the application."""


class BatchSize(Protocol):
    """Limits of micro-batches. See `BatchLimits`."""

    @property
    def records(self) -> int:
        """Records per task."""

    @property
    def bytes(self) -> int:
        """Bytes per task."""

    def is_too_late(self, spent_ms: float) -> bool:
        """Whether a batch that took so long missed its deadline."""

    def update(self, batch: BatchMeasure) -> None:
        """Adjust the limits to a completed batch."""


class CommandExecutor:
    """Executes work of one subtopology's machine. Belongs to the runner's thread, unless a method says otherwise."""

    def __init__(
        self,
        runtime: BatchInstance,
        subtopology: CompiledSubtopology,
        jobs: Executor,
        tasks: Mapping[int, RunningTask],
        progress: SubtopologyProgress,
        *,
        inputs: TaskInputs,
        commit: BatchCommit,
        limits: BatchSize,
        spans: SpanExporter | None = None,
    ) -> None:
        """Prepare to execute.

        Args:
            runtime: The instance.
            subtopology: Whose micro-batches run.
            jobs: Runs the stages.
            tasks: The running tasks; they do not change while work is under way, except in waits.
            progress: Receives figures.
            inputs: The tasks' input topics.
            commit: The delivery guarantee.
            limits: How much a micro-batch may take.
            spans: Exports spans of micro-batches with sampled records.
        """
        self._runtime, self._subtopology, self._jobs = runtime, subtopology, jobs
        self._name, self._tasks, self.progress = subtopology.subtopology_id, tasks, progress
        self._silence = SilenceLog(self._name)
        self._spans = spans
        self._published: float | None = None  # when offsets were committed and tables began to publish
        self.inputs, self._commit, self.limits = inputs, commit, limits
        self._timed_topics = [
            topic
            for branch in subtopology.branches
            if branch.transform is not None and branch.transform.time_mode == "processingTime"
            for topic in source_topics(subtopology.sources[branch.source_index])
        ]
        self._losses = 0  # of brokers, as far as they are known
        self._batch_ids = itertools.count()
        self._reopen: set[int] = set()  # found by the recovery
        self._recovery = BatchRecovery(subtopology, jobs, tasks=tasks, reopen=self._reopen.update, tick=self.tick)
        self.tables = TableSinks(runtime.group_id, subtopology)
        self.last_active_s = time.monotonic()
        self.batch_since: float | None = None  # start of the micro-batch under way
        # The current micro-batch, or the last one:
        self._plan: MicroBatchPlan | None = None
        self._started = self._processed = 0.0
        self._reports: list[StageReport] = []
        self._reached: dict[int, TaskReport] = {}
        self._failure: BatchFailed | None = None

    # -- called by any thread -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Note progress, so that a stuck runner is noticed."""
        self.last_active_s = time.monotonic()

    def next_batch(self) -> BatchKey:
        return BatchKey(incarnation=self._runtime.incarnation, batch_id=next(self._batch_ids))

    def end(self) -> None:
        """Interrupt all requests to brokers. No later request is sent."""
        self.inputs.end()

    def close(self) -> None:
        self.inputs.close()

    # -- work ---------------------------------------------------------------------------------------------------------

    def mark_unknown(self) -> None:
        self._commit.mark_unknown()

    def execute(self, work: commands.Work) -> Iterator[Event]:
        """Execute a piece of work, and yield its events. Raises HeadraceError if the application cannot go on."""
        self.tick()
        match work:
            case commands.LookUpEnds():
                return self._look_up_ends()
            case commands.CheckEnded():
                return self._check_ended()
            case commands.Run():
                return self._run(work)
            case commands.Commit():
                return self._commit_batch(work)
            case commands.Resolve():
                return self._resolve(work)
            case commands.Abort():
                return self._abort(work)
            case commands.Advance():
                return self._advance(work)
            case commands.Recover():
                return self._recover(work)
            case _:
                raise AssertionError(work)

    def finish(self) -> HeadraceError | None:
        """Make sure that no transaction is left open, at the end. Return the error if that is not certain."""
        try:
            # A broker that went away while the application was idle.
            if self._losses != self.inputs.losses:
                self._commit.mark_unknown()
            self._commit.resolve_unknown()
            self._commit.check_ended(wait=True)
        except HeadraceError as error:
            return error
        return None

    def publish_tables(self) -> None:
        """Publish all committed rows that readers of tables do not see yet."""
        if self.tables:
            self.tables.roll(self._tasks, everything=True)

    # -- between micro-batches ----------------------------------------------------------------------------------------

    def _check_ended(self) -> Iterator[Event]:
        self.batch_since = None
        try:
            self._commit.check_ended()
        except (CannotConnect, BrokerError) as error:
            yield self._failed(error)
            return
        yield events.EndedChecked()

    def _look_up_ends(self) -> Iterator[Event]:
        self.batch_since = None
        self._started = time.monotonic()
        if self._losses != self.inputs.losses:
            self._losses = self.inputs.losses
            yield events.BrokerUnreachable()
        try:
            # Between micro-batches, when no worker writes parts of these tasks.
            self.tables.roll(self._tasks)
            # Not with the next batch only: readers of committed records may be held up until then.
            self._commit.resolve_unknown()
            self._start_due_batches()
            recreated = self._find_input()
        except (CannotConnect, BrokerError) as error:
            yield self._failed(error)
            return
        planned = plan_slots(self._tasks.values(), self.limits.records)
        if not planned:
            self._recovery.check_stops()
            self.inputs.purge(self._tasks.values())
        ready = frozenset(task.partition for slot in planned for task in slot.tasks)
        yield events.EndsSeen(ready=ready, recreated=recreated)

    def _start_due_batches(self) -> None:
        """Give input to tasks without records whose next timer of processing time is due.

        A micro-batch without input is not possible: whether it was committed is known by offsets that moved.
        """
        now_ms = self._runtime.plan_factory.now_ms()
        for topic in self._timed_topics:
            for task in self._tasks.values():
                if task.due_ms is not None and task.due_ms <= now_ms:
                    self.inputs.start_batch(topic, task.partition)
                    task.due_ms = None  # until the micro-batch reports the next one

    def _find_input(self) -> frozenset[int]:
        """Look up the ends of all inputs. Return tasks with an input topic that was deleted and created again."""
        inputs = [where for task in self._tasks.values() for where in task.positions]
        found = self.inputs.find_ends(inputs)
        for task in self._tasks.values():
            task.ends = {where: found[where] for where in task.positions}
        # A position beyond the end of its log: the topic was deleted and created again, or truncated.
        behind = {
            where[0] for task in self._tasks.values() for where, at in task.positions.items() if at > task.ends[where]
        }
        self.progress.set_lag(sum(task.lag for task in self._tasks.values()))
        return self._recreated(behind) if behind else frozenset()

    def _recreated(self, topics: set[str]) -> frozenset[int]:
        """Return the tasks of topics that end before a position because another topic has their name."""
        ids = self.inputs.find_topic_ids(topics)
        moved = frozenset(
            task.partition
            for task in self._tasks.values()
            if any(task.topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items())
        )
        if moved:
            log.warning("%s: %s was deleted and created again; opening the tasks anew", self._name, ", ".join(ids))
        return moved

    # -- the micro-batch ----------------------------------------------------------------------------------------------

    def _run(self, run: commands.Run) -> Iterator[Event]:
        tasks = [self._tasks[partition] for partition in sorted(run.partitions)]
        try:
            # 1. Ranges: from the tasks' positions to the ends seen, within the limits.
            slots = plan_slots(tasks, self.limits.records)
            # 2. Bad records arrived lately and cannot be guarded: look through the next ones first.
            if self._recovery.searches_ahead:
                # Reads and writes nothing; no transaction is open for it.
                self._recovery.search_ahead(self._planned(run.assignment, slots))
                slots = plan_slots(tasks, self.limits.records)
            # 3. Producer identities, before the plan, which carries them to the stages.
            slots = self._commit.begin(self._recovery.next_slots(slots))
            plan = self._plan = self._limited(self._planned(run.assignment, slots))
        except (CannotConnect, BrokerError) as error:
            yield self._failed(error)
            return
        self.batch_since = self._started
        # 4. The machine hears of the slots before the job starts. Whatever happens from here on, it knows which
        #    transactions may be open.
        yield events.Began(
            batch=run.batch,
            slots={
                slot.slot: {
                    task.partition: {(found.topic, found.partition): found.start for found in task.ranges}
                    for task in slot.tasks
                }
                for slot in slots
            },
        )
        self._failure = None
        try:
            # 5. The job, or the resident slots. A failure is only noted here; the machine decides what follows.
            self._reports = self._recovery.process_guarded(plan) if self._recovery.guards else self._jobs.process(plan)
        except BatchFailed as failed:
            self._failure = failed
        # 6. The application ends (an error of the user's function, a stop of the interpreter): no later step aborts.
        except BaseException:
            self._commit.abort(plan)
            raise
        if self._failure is not None:
            self._warn_of_timeout(plan)
            if self._runtime.is_failed:
                yield events.StopRequested()
            yield events.JobFailed(batch=run.batch, is_broker_error=self._failure.is_broker_error)
            return
        self._processed = time.monotonic()
        self._reached = complete(plan, merged(self._reports), self._reports)
        yield events.JobFinished(
            batch=run.batch,
            reached={task.partition: reached_offsets(task, self._reached) for task in plan.tasks},
            reconnected=any(report.reconnects for report in self._reports),
        )

    def _planned(self, assignment: AssignmentSnapshot, slots: tuple[SlotPlan, ...]) -> MicroBatchPlan:
        plan = self._runtime.plan_factory.plan(self._subtopology, assignment, slots, self.next_batch())
        return plan if self._spans is None else replace(plan, most_traces=self._spans.traces_per_task(len(plan.tasks)))

    def _limited(self, plan: MicroBatchPlan) -> MicroBatchPlan:
        most = self.limits.bytes
        one = min(plan.fetch_max_partition_bytes, most)
        return replace(plan, max_bytes_per_task=most, fetch_max_partition_bytes=one)

    def _warn_of_timeout(self, plan: MicroBatchPlan) -> None:
        spent_ms = (time.monotonic() - self._started) * 1000
        if _largest(plan) == 1 and self.limits.is_too_late(spent_ms):
            log.warning(
                "%s: a batch of one record per task took %d ms, its transaction may take %d ms: "
                "if this comes again, raise transaction.timeout.ms",
                self._name,
                spent_ms,
                self._runtime.plan_factory.transaction_timeout_ms,
            )

    def _commit_batch(self, commit: commands.Commit) -> Iterator[Event]:
        yield events.CommitOutcome(batch=commit.batch, errors=self._commit.commit(self._current, self._reached))

    def _resolve(self, resolve: commands.Resolve) -> Iterator[Event]:
        try:
            offsets = self._commit.read_offsets(self._current, resolve.slots)
        except (CannotConnect, BrokerError) as error:
            yield self._failed(error)
            return
        yield events.OffsetsRead(batch=resolve.batch, offsets=offsets)

    def _abort(self, abort: commands.Abort) -> Iterator[Event]:
        plan = self._current
        if self._failure is None:
            log.warning("%s: batch %d is not committed, its tasks were lost", self._name, plan.batch.batch_id)
        self._commit.abort(plan)
        self.progress.totals.failed += 1
        yield events.Aborted(batch=abort.batch)

    def _advance(self, advance: commands.Advance) -> Iterator[Event]:
        """The tasks take what is certain, and so do tables."""
        plan = self._current
        committed = {} if self._failure is not None else {p: self._reached[p] for p in sorted(advance.committed)}
        self._log_outcome(plan, advance)
        self._published = time.monotonic() if self.tables else None
        # Tables after the offsets: a part becomes visible only if its batch counts. A crash before this line is what
        # the resolution of parts at the next opening is for.
        if self.tables:
            self.tables.commit(plan, committed)
            self.tables.discard(plan, advance.unchanged)
        for partition, report in committed.items():
            self._tasks[partition].take(report, plan.batch)
        if self._failure is not None:
            self.progress.add_failed(plan, self._failure.reason)
        else:
            self._measure(plan, committed)
        self.inputs.purge(self._tasks.values())
        yield events.Advanced(batch=advance.batch)

    def _measure(self, plan: MicroBatchPlan, committed: dict[int, TaskReport]) -> None:
        timing = BatchTiming(started=self._started, processed=self._processed, committed=time.monotonic())
        self.limits.update(measure(plan, self._reached, self._reports, timing, succeeded=bool(committed)))
        if committed:
            self._silence.add(committed)
            self.progress.add(plan, committed, self._reports, timing, list(self._tasks.values()))
            if self._spans is not None:
                self._spans.add(plan, committed, self._reports, timing, self._published)
        if len(committed) == len(plan.tasks):
            self._recovery.succeeded()
            self._recovery.check_stops()
        else:
            self.progress.totals.failed += 1

    def _log_outcome(self, plan: MicroBatchPlan, advance: commands.Advance) -> None:
        """Log whether a failed batch is repeated, for the operator of the application."""
        if advance.error is not None:
            done = "committed after all" if not advance.unchanged and not advance.reopen else "not committed"
            log.warning("%s: batch %d is %s: %s", self._name, plan.batch.batch_id, done, advance.error)
        if advance.resolved:
            log.warning(
                "%s: of batch %d tasks %s are committed, %s are opened anew",
                self._name,
                plan.batch.batch_id,
                sorted(advance.resolved & advance.committed),
                sorted(advance.resolved & advance.reopen),
            )

    def _recover(self, recover: commands.Recover) -> Iterator[Event]:
        plan, failure = self._current, self._failure
        assert failure is not None
        self._reopen.clear()
        self.progress.totals.failed += 1
        if not self._recovery.recover(plan, failure):
            spent_ms = (time.monotonic() - self._started) * 1000
            self.limits.update(BatchMeasure(largest_records=_largest(plan), spent_ms=spent_ms, succeeded=False))
        yield events.Recovered(batch=recover.batch, reopen=frozenset(self._reopen))

    @property
    def _current(self) -> MicroBatchPlan:
        assert self._plan is not None
        return self._plan

    def _failed(self, error: HeadraceError) -> Event:
        if is_retriable(error):
            log.warning("%s: %s; trying again", self._name, error)
        return events.ActionFailed(error=error)


def _largest(plan: MicroBatchPlan) -> int:
    return max((task.records for task in plan.tasks), default=0)
