"""The loop of one subtopology: take the assignment, plan, run, commit; once per micro-batch.

Workers prepare, this loop commits (`batch_commit`), with the member id and the epoch captured when the batch was
planned, after the whole Spark job has succeeded. A batch that failed leaves positions and the committed batch key as
they were; the next plan names that key, and by it the stores undo what was prepared. Assignment changes are taken
between micro-batches and change plan rows only; new tasks are opened beside the one that runs. Without news there is no
Spark job.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.client.admin import Admin
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.runtime.batch_commit import Committed, Patience
from headrace.spark.runtime.batch_limits import BatchMeasure
from headrace.spark.runtime.batch_outcome import complete, measure
from headrace.spark.runtime.batch_recovery import RETRIES, BatchRecovery
from headrace.spark.runtime.chains import input_topics
from headrace.spark.runtime.input_watch import InputWatch
from headrace.spark.runtime.job_runner import BatchFailed, JobRunner
from headrace.spark.runtime.own_tasks import OpenRequest, OwnTasks
from headrace.spark.runtime.plan import MicroBatchPlan, SlotPlan, StageReport, TaskReport, merged
from headrace.spark.runtime.progress import BatchTiming, SubtopologyProgress
from headrace.spark.runtime.repartition_purge import RepartitionPurge
from headrace.spark.runtime.replicas import Brought
from headrace.spark.runtime.spark_errors import user_error
from headrace.spark.runtime.store import BatchKey
from headrace.spark.runtime.table_sinks import TableSinks
from headrace.spark.runtime.task_opener import TaskOpener
from headrace.spark.runtime.tasks import RunningTask, TopicPartition, plan_slots
from headrace.spark.topology.nodes import CompiledSubtopology, RepartitionSource, TopicSource

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["SubtopologyRunner"]

log = logging.getLogger("headrace.spark")


class SubtopologyRunner:
    """Owns the running tasks of one subtopology; its thread is the only one that touches them."""

    def __init__(self, runtime: RunningInstance, subtopology: CompiledSubtopology, jobs: JobRunner, slots: int) -> None:
        self._runtime, self.subtopology, self._jobs, self._slots = runtime, subtopology, jobs, slots
        self.name = subtopology.subtopology_id
        self.progress = SubtopologyProgress(self.name, input_topics(subtopology))
        internal = frozenset(s.topic for s in subtopology.sources if isinstance(s, RepartitionSource))
        self._client = runtime.network_client()
        self._admin = Admin(self._client)
        self._watch = InputWatch(runtime.network_client())
        self._watch_losses = 0
        self._own = OwnTasks(self.name)
        self._tasks = self._own.running
        self._batch_ids = itertools.count()
        self._recovery = BatchRecovery(subtopology, jobs, tasks=self._tasks, reopen=self._reopen, tick=self._tick)
        self._commit = runtime.planning.committing(
            subtopology,
            self._client,
            announce=runtime.announce_transactions,
            forget=runtime.forget_transactions,
        )
        self._limits = runtime.planning.batch_limits(self.name)
        self._tables = TableSinks(runtime.group_id, subtopology)
        self._purge = RepartitionPurge(self._admin, internal)
        self._lock = threading.Condition()
        self._stopping = False
        self.leaves_doubt = False  # whether transactions may be open that are over
        self.last_turn = time.monotonic()
        self.batch_since: float | None = None
        self._opener = TaskOpener(
            name=self.name,
            group_id=runtime.group_id,
            client=runtime.network_client(),
            auto_offset_reset=runtime.auto_offset_reset,
            slots=slots,
            next_batch=self.next_batch,
            inputs=self._inputs,
            internal=internal,
            newest=self._newest_for,
            agree=runtime.schemas.agree,
            restore=self._restore if subtopology.changelog_topics else None,
            restored=self._add_restored,
            bring_near=self._bring_near if subtopology.changelog_topics else None,
            settle=self._tables.settle if self._tables else None,
            opened=self._take_opened,
            wanted=self._is_wanted,
            bear=self._bear,
            failed=runtime.fail,
            make_thread=runtime.make_thread,
        )
        self._thread = runtime.make_thread(target=self._loop, name=f"headrace-{self.name}", daemon=True)

    # -- called by other threads --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def assign(self, snapshot: AssignmentSnapshot) -> None:
        """Take this assignment between two micro-batches. New tasks are opened while the current one runs."""
        with self._lock:
            self._open(self._own.assign(snapshot))
            self._wake()

    def lose(self) -> None:
        """Drop all tasks. The current micro-batch is not committed."""
        with self._lock:
            self._own.lose()
            self._wake()

    def stop(self) -> None:
        """Finish the micro-batch, commit, and end. A restore is cancelled; a later one continues from its position."""
        with self._lock:
            self._stopping = True
            self._wake()
        self._cancel_group(self._jobs.restore_group)

    def abandon(self) -> None:
        """End without finishing: the current micro-batch will not be committed."""
        with self._lock:
            self._own.lose()
        self._client.end()
        self._watch.end()
        self.cancel()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the micro-batch to end, and return whether it has."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        self._cancel_group(self._jobs.restore_group)  # a micro-batch that began during the stop
        self._opener.close()
        self._client.end()
        self._client.close()
        self._watch.close()

    def has_taken(self, snapshot: AssignmentSnapshot) -> bool:
        """Whether no task outside of `snapshot` is still running."""
        with self._lock:
            return self._own.has_taken(snapshot)

    def cancel(self) -> None:
        """Cancel a batch that does not end, as the last resort: its Python workers are killed."""
        self._cancel_group(self._jobs.group)

    def _cancel_group(self, group: str) -> None:
        try:
            self._runtime.spark.sparkContext.cancelJobGroup(group)
        except Exception as error:  # noqa: BLE001 - a stopped session raises many kinds of errors here
            log.debug("%s: jobs were not cancelled: %s", self.name, error)

    @property
    def records_limit(self) -> int:
        """Records per task that the next micro-batch may take."""
        return self._limits.records

    @property
    def losses(self) -> int:
        """How often its tasks were lost."""
        return self._own.losses

    @property
    def reads_user_topics(self) -> bool:
        """Whether records of the outside world enter the application here."""
        return any(isinstance(source, TopicSource) for source in self.subtopology.sources)

    def tasks(self) -> list[RunningTask]:
        with self._lock:
            return list(self._tasks.values())

    def opening(self) -> list[int]:
        with self._lock:
            return self._own.opening

    def _wake(self) -> None:
        """Wake the loop wherever it waits. The caller holds the lock."""
        self._lock.notify_all()
        self._watch.wake()

    def _tick(self) -> None:
        self.last_turn = time.monotonic()

    def next_batch(self) -> BatchKey:
        return BatchKey(incarnation=self._runtime.incarnation, batch_id=next(self._batch_ids))

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self._tick()
                self._take_assignment()
                if not self._turn() and not self._stopping:
                    self._watch.wait([task.positions for task in self._tasks.values()])
            self._settle_at_last()
            if self._tables and not self._runtime.is_failed:
                self._tables.roll(self._tasks, everything=True)
        except Exception as error:
            if self._stopping and isinstance(error, CannotConnect):
                log.warning("%s stops with its last micro-batch undone: %s", self.name, error)
                return
            if isinstance(error, HeadraceError):
                self._runtime.fail(error)
                return
            log.exception("the loop of %s ended", self.name)
            self._runtime.fail(HeadraceError("runtime-failed", f"the runtime of {self.name} failed: {error!r}"))

    def _settle_at_last(self) -> None:
        try:
            self._look_after_brokers()
            self._commit.settle_ended(wait=True)
        except HeadraceError as error:
            self.leaves_doubt = True
            log.info("%s: what a broker left open is the next process's to settle: %s", self.name, error)

    def _take_assignment(self) -> None:
        with self._lock:
            self._open(self._own.take())

    def _open(self, request: OpenRequest | None) -> None:
        if request is not None and not self._stopping:
            self._opener.open(request)

    def _is_wanted(self, request: OpenRequest) -> bool:
        with self._lock:
            return not self._stopping and self._own.is_wanted(request)

    def _newest_for(self, request: OpenRequest) -> AssignmentSnapshot:
        with self._lock:
            return self._own.newest(request)

    def _take_opened(self, request: OpenRequest, tasks: list[RunningTask]) -> None:
        with self._lock:
            self._own.opened(request, tasks)
            self._wake()

    def _inputs(self, client: NetworkClient, partitions: Iterable[int]) -> dict[int, tuple[TopicPartition, ...]]:
        topics = input_topics(self.subtopology)
        found = client.known_topics(topics, refresh=True).topics
        return {p: tuple((topic, p) for topic in topics if p in found[topic].partitions) for p in partitions}

    def _turn(self) -> bool:
        """Run one micro-batch if there is input. Return whether there was."""
        if not self._tasks:
            self._settle_ended()
            return False
        started = time.monotonic()
        try:
            self._tables.roll(self._tasks)
            self._look_after_brokers()
            self._look_for_news()
        except (CannotConnect, BrokerError) as error:
            self._bear(error)
            return False
        if self._stopping:
            return False
        slots = plan_slots(self._tasks.values(), self._slots, self._limits.records)
        if not slots:
            self._settle_ended()
            self._recovery.check_stops()
            self._purge.if_due(self._tasks.values())
            return False
        try:
            if self._recovery.screens:
                self._recovery.screen(self._searchable(slots))
                slots = plan_slots(self._tasks.values(), self._slots, self._limits.records)
            plan = self._plan(self._recovery.narrowed(slots), self.next_batch())
        except (CannotConnect, BrokerError) as error:
            self._bear(error)
            return False
        self.batch_since = started
        try:
            if self._run(plan, started):
                self._recovery.check_stops()
            else:
                self.progress.totals.failed += 1
        finally:
            self.batch_since = None
        self._purge.if_due(self._tasks.values())
        pause = self._runtime.trigger_interval_ms / 1000 - (time.monotonic() - started)
        if pause > 0 and not self._stopping:
            with self._lock:
                self._lock.wait_for(lambda: self._stopping or self._own.has_news, pause)
        return True

    def _look_after_brokers(self) -> None:
        """Resolve transactions after a broker was unreachable, without waiting for the next batch: readers may be
        blocked.
        """
        if self._watch.losses != self._watch_losses:
            self._watch_losses = self._watch.losses
            self._commit.doubt()
        self._commit.settle_if_in_doubt()

    def _settle_ended(self) -> None:
        try:
            self._commit.settle_ended()
        except (CannotConnect, BrokerError) as error:
            self._bear(error)

    def _look_for_news(self) -> None:
        inputs = [where for task in self._tasks.values() for where in task.positions]
        found = self._admin.list_offsets(dict.fromkeys(inputs, "latest"), isolation_level="read_committed")
        for task in self._tasks.values():
            task.ends = {where: found[where].offset for where in task.positions}
        behind = [
            where for task in self._tasks.values() for where, at in task.positions.items() if at > task.ends[where]
        ]
        if behind:
            self._look_for_new_topics({topic for topic, _ in behind})
        self.progress.see_lag(sum(task.lag for task in self._tasks.values()))

    def _look_for_new_topics(self, topics: set[str]) -> None:
        """Open tasks again whose topic ends before their position: another topic has its name."""
        found = self._client.known_topics(sorted(topics), refresh=True).topics
        ids = {topic: str(found[topic].topic_id) for topic in topics}
        moved = [
            task.partition
            for task in self._tasks.values()
            if any(task.topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items())
        ]
        if moved:
            log.warning("%s: %s was deleted and created again; opening the tasks anew", self.name, ", ".join(ids))
            self._reopen(moved)

    def _plan(self, slots: tuple[SlotPlan, ...], batch: BatchKey) -> MicroBatchPlan:
        assignment = next(iter(self._tasks.values())).assignment
        plan = self._runtime.planning.plan(self.subtopology, assignment, self._commit.begin(slots), batch)
        most = self._limits.bytes
        one = min(plan.fetch_max_partition_bytes, most)
        return replace(plan, max_bytes_per_task=most, fetch_max_partition_bytes=one)

    def _searchable(self, slots: tuple[SlotPlan, ...]) -> MicroBatchPlan:
        """A plan that reads and writes nothing; no transaction is open for it."""
        assignment = next(iter(self._tasks.values())).assignment
        return self._runtime.planning.plan(self.subtopology, assignment, slots, self.next_batch())

    def _add_restored(self, records: int) -> None:
        self.progress.restored += records

    def _bring_near(self, tasks: Mapping[int, Mapping[str, int]], batch: BatchKey) -> Brought:
        self._runtime.planning.forget_topic_ids(self.subtopology)
        return self._runtime.state.bring_near(self.name, tasks, lambda: self._stopping, batch)

    def _restore(
        self, batch: BatchKey, assignment: AssignmentSnapshot, slots: tuple[SlotPlan, ...]
    ) -> list[StageReport]:
        for attempt in range(RETRIES):
            if self._stopping:
                break
            try:
                plan = self._runtime.planning.plan(self.subtopology, assignment, slots, replace(batch, attempt=attempt))
                return self._jobs.restore(plan)
            except BatchFailed as failed:
                # A changelog that ends in an open transaction took the API timeout already: the opener logs it, looks
                # whether the tasks are still wanted here, and tries again for as long as it takes.
                is_held_up = failed.cause is not None and failed.cause.code == "range-unreachable"
                if attempt == RETRIES - 1 or is_held_up or self._stopping:
                    raise failed.cause or user_error(failed.error, f"{self.name}: restoring failed") from failed
                with self._lock:
                    self._lock.wait_for(lambda: self._stopping, 0.2 * 2**attempt)
        raise HeadraceError("stopped", f"{self.name} was stopped while it restored")

    def _run(self, plan: MicroBatchPlan, started: float) -> bool:
        """Process and commit. Whether both succeeded, for all tasks."""
        lost = self._own.losses
        patience = Patience(goes_on=lambda: not self._stopping and lost == self._own.losses, bear=self._bear)
        try:
            guards = self._recovery.guards
            reports = self._recovery.process_guarded(plan) if guards else self._jobs.process(plan)
        except BatchFailed as failed:
            largest = max(task.records for task in plan.tasks)
            spent_ms = (time.monotonic() - started) * 1000
            if largest == 1 and self._limits.is_too_late(spent_ms):
                log.warning(
                    "%s: a batch of one record per task took %d ms, its transaction may take %d ms: "
                    "if this comes again, raise transaction.timeout.ms",
                    self.name,
                    spent_ms,
                    self._runtime.planning.transaction_timeout_ms,
                )
            if failed.is_the_brokers:
                self._commit.doubt()
            if not self._stopping and not self._runtime.is_failed:
                self._stand(plan, self._commit.undo(plan, patience), {})
                self.progress.add_failed(plan, failed.reason)
                if not self._recovery.recover(plan, failed):
                    self._limits.took(BatchMeasure(largest_records=largest, spent_ms=spent_ms, succeeded=False))
            else:
                self._commit.abandon(plan)
            return False
        except BaseException:
            self._commit.abandon(plan)
            raise
        processed = time.monotonic()
        if any(report.reconnects for report in reports):
            self._commit.doubt()
        if lost != self._own.losses:
            log.warning("%s: batch %d is not committed, the member lost its tasks", self.name, plan.batch.batch_id)
            self._commit.abandon(plan)
            return False
        tasks = complete(plan, merged(reports), reports)
        outcome = self._commit.commit(plan, tasks, patience)
        timing = BatchTiming(started=started, processed=processed, committed=time.monotonic())
        self._limits.took(measure(plan, tasks, reports, timing, succeeded=bool(outcome.tasks)))
        committed = {partition: report for partition, report in tasks.items() if partition in outcome.tasks}
        self._stand(plan, outcome, committed)
        if committed:
            self.progress.add(plan, committed, reports, timing, list(self._tasks.values()))
        if outcome.trouble is not None:
            self._bear(outcome.trouble)
        if len(committed) < len(tasks):
            return False
        self._recovery.succeeded()
        return True

    def _stand(self, plan: MicroBatchPlan, outcome: Committed, committed: Mapping[int, TaskReport]) -> None:
        """The tasks take what is certain now, and so do tables."""
        if self._tables:
            nothing = {task.partition for task in plan.tasks} - outcome.tasks - outcome.reopen
            self._tables.commit(plan, committed)
            self._tables.discard(plan, nothing)
        with self._lock:
            for partition, report in committed.items():
                if partition in self._tasks:
                    self._tasks[partition].take(report, plan.batch)
        self._reopen(sorted(outcome.reopen))

    def _reopen(self, partitions: list[int]) -> None:
        with self._lock:
            self._open(self._own.reopen(partitions))

    def _bear(self, error: HeadraceError) -> None:
        """Back off on retriable errors; raise fatal ones."""
        if not is_retriable(error):
            raise error
        log.warning("%s: %s; trying again", self.name, error)
        with self._lock:
            self._lock.wait_for(lambda: self._stopping, 0.5)
