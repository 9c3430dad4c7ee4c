"""New tasks are opened beside the running ones: committed offsets, reset policy, stores restored; then they may run.

Opening has a thread of its own per subtopology, so that a task which restores for a minute holds up no other. In it the
required order is OffsetFetch (stable), then the changelog's end, then replay. Temporary failures are retried for as
long as the tasks are wanted: an unreachable broker, or a transaction that a dead instance left open.

`auto_offset_reset` is about the topics of the outside world; an internal topic is read from its beginning. "latest" is
another offset each time it is looked up, so the result is committed before the task runs. The next owner, before or
after the first micro-batch, continues from there and skips nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset, OffsetAndTimestamp
from headrace.client.group_offsets import commit_offsets, fetch_committed
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.spark.runtime.fetch_stage import input_name
from headrace.spark.runtime.own_tasks import OpenRequest
from headrace.spark.runtime.plan import InputRange, SlotPlan, StageReport, TaskPlan, merged
from headrace.spark.runtime.replicas import Brought
from headrace.spark.runtime.store import BatchKey
from headrace.spark.runtime.tasks import RunningTask, TopicPartition
from headrace.spark.sinks.settling import topic_id_of

__all__ = ["TaskOpener"]

log = logging.getLogger("headrace.spark")
CLOSE_WAIT = 2.0
STABLE_WAIT_MS = 2000  # then it is said, and asked whether the tasks are still wanted


class TaskOpener:
    """Opens tasks of one subtopology, one request after another."""

    def __init__(
        self,
        *,
        name: str,
        group_id: str,
        client: NetworkClient,
        auto_offset_reset: str,
        slots: int,
        next_batch: Callable[[], BatchKey],
        inputs: Callable[[NetworkClient, Iterable[int]], Mapping[int, tuple[TopicPartition, ...]]],
        internal: frozenset[str],
        newest: Callable[[OpenRequest], AssignmentSnapshot],
        agree: Callable[[NetworkClient], None],
        restore: Callable[[BatchKey, AssignmentSnapshot, tuple[SlotPlan, ...]], list[StageReport]] | None,
        restored: Callable[[int], None],
        bring_near: Callable[[Mapping[int, Mapping[str, int]], BatchKey], Brought] | None,
        settle: Callable[[list[RunningTask], Mapping[TopicPartition, CommittedOffset]], None] | None,
        opened: Callable[[OpenRequest, list[RunningTask]], None],
        wanted: Callable[[OpenRequest], bool],
        bear: Callable[[HeadraceError], None],
        failed: Callable[[HeadraceError], None],
        make_thread: Callable[..., threading.Thread],
    ) -> None:
        """`internal`: those of the inputs' topics that the application writes itself. `newest`: the assignment that
        holds now. `agree` refuses to go on where stored rows are another program's. `bear` backs off on retriable
        errors and raises fatal ones."""
        self._name, self._group_id, self._client = name, group_id, client
        self._reset, self._slots = auto_offset_reset, slots
        self._next_batch, self._restore, self._bring_near = next_batch, restore, bring_near
        self._inputs, self._internal, self._newest, self._agree = inputs, internal, newest, agree
        self._restored, self._settle = restored, settle
        self._opened, self._failed = opened, failed
        self._wanted, self._bear = wanted, bear
        self._requests: queue.Queue[OpenRequest | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread = make_thread(target=self._loop, name=f"headrace-open-{name}", daemon=True)
        self._thread.start()

    def open(self, request: OpenRequest) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """Cancel all openings: the tasks will not run here."""
        self._closing.set()
        self._requests.put(None)
        self._client.end()
        self._client.close()
        self._thread.join(CLOSE_WAIT)

    def _loop(self) -> None:
        self._meet_the_coordinator()
        while (request := self._requests.get()) is not None and not self._closing.is_set():
            try:
                self._opened(request, self._patiently(request))
            except Exception as error:
                if self._closing.is_set() or not self._wanted(request):  # told to stop, or the tasks went elsewhere
                    log.debug("%s: opening was given up: %s", self._name, error)
                    continue
                if isinstance(error, HeadraceError):
                    self._failed(error)
                    continue
                log.exception("opening tasks of %s failed", self._name)
                self._failed(HeadraceError("open-failed", f"the tasks of {self._name} could not be opened: {error}"))

    def _meet_the_coordinator(self) -> None:
        """Open connections before the first tasks arrive: tasks do not run while they are being opened."""
        try:
            fetch_committed(self._client, self._group_id, None, timeout_ms=STABLE_WAIT_MS)
        except HeadraceError as error:
            log.debug("%s: the coordinator was not met ahead: %s", self._name, error)

    def _patiently(self, request: OpenRequest) -> list[RunningTask]:
        while self._wanted(request):
            try:
                return self._open(request)
            except (BrokerError, CannotConnect) as error:
                if self._closing.is_set():
                    raise
                # Refused for an old epoch: the next snapshot shows whether the tasks are still ours.
                if isinstance(error, Fenced):
                    error.facts["retriable"] = True
                self._bear(error)
        return []

    def _open(self, request: OpenRequest) -> list[RunningTask]:
        if request.partitions:
            self._agree(self._client)
        inputs = self._inputs(self._client, request.partitions)
        places = [where for mine in inputs.values() for where in mine]
        topic_ids = self._topic_ids({topic for topic, _ in places})
        starts, committed = self._starts(request, places, topic_ids)
        tasks = [
            RunningTask(
                partition=partition,
                positions={where: starts[where] for where in mine},
                assignment=request.assignment,
                topic_ids=topic_ids,
            )
            for partition, mine in sorted(inputs.items())
        ]
        if self._settle is not None:
            self._settle(tasks, committed)
            self._commit_starts(request, starts, committed)
        if self._restore is not None and tasks:
            self._restore_stores(request, tasks)
        return tasks

    def _topic_ids(self, topics: set[str]) -> dict[str, str]:
        """As they were when the inputs were looked up."""
        found = self._client.known_topics(sorted(topics)).topics if topics else {}
        return {topic: str(found[topic].topic_id) for topic in sorted(topics)}

    def _restore_stores(self, request: OpenRequest, tasks: list[RunningTask]) -> None:
        """Restore by the replica process if there is one, and the rest by a Spark job."""
        started = time.monotonic()
        batch = self._next_batch()
        brought = Brought()
        if self._bring_near is not None:
            committed = {
                task.partition: {
                    input_name(*where, task.topic_ids[where[0]]): at for where, at in task.positions.items()
                }
                for task in tasks
            }
            brought = self._bring_near(committed, batch)
        brought_s = time.monotonic() - started
        for task in tasks:
            done = brought.placed.get(task.partition)
            if done is not None:
                task.committed, task.state_keys, task.state_bytes = batch, done.keys, done.bytes
        left = [task for task in tasks if task.partition not in brought.placed]
        replayed = brought.records + (self._restore_in_spark(request, left, batch) if left else 0)
        self._restored(replayed)
        log.info(
            "%s: opened tasks %s; replayed %d changelog records in %.2f s, %.2f s of it by the replica process",
            *(self._name, [task.partition for task in tasks], replayed, time.monotonic() - started, brought_s),
        )

    def _restore_in_spark(self, request: OpenRequest, tasks: list[RunningTask], batch: BatchKey) -> int:
        """Restore by a Spark job. Return the number of records replayed."""
        assert self._restore is not None
        rows: dict[int, list[TaskPlan]] = {}
        for task in tasks:
            ranges = tuple(
                InputRange(topic=topic, partition=partition, start=at, end=at, topic_id=task.topic_ids[topic])
                for (topic, partition), at in sorted(task.positions.items())
            )
            rows.setdefault(task.partition % self._slots, []).append(TaskPlan(partition=task.partition, ranges=ranges))
        plans = tuple(SlotPlan(slot=slot, tasks=tuple(rows[slot])) for slot in sorted(rows))
        told = self._restore(batch, request.assignment, plans)
        placed = told[0].batch if told else batch  # a restore that failed once was another attempt
        reports = merged(told)
        for report in reports.values():
            for note in report.notes:
                log.warning("%s: %s", self._name, note)
        for task in tasks:
            task.committed = placed
            task.state_keys = reports[task.partition].state_keys
            task.state_bytes = reports[task.partition].state_bytes
        return sum(report.changelog_records for report in reports.values())

    def _starts(
        self, request: OpenRequest, inputs: list[TopicPartition], topic_ids: Mapping[str, str]
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, CommittedOffset]]:
        """Committed offsets, where there is none what `auto_offset_reset` says; and what was found committed."""
        if not inputs:
            return {}, {}
        committed = fetch_committed(
            self._client, self._group_id, inputs, require_stable=True, timeout_ms=STABLE_WAIT_MS
        )
        found = {where: row.offset for where, row in committed.items()}
        again = [where for where, row in committed.items() if _is_of_another(row, where[0], topic_ids)]
        fresh = [where for where in inputs if found.get(where, -1) < 0]
        admin = Admin(self._client)
        first = _offsets(admin.list_offsets(dict.fromkeys(inputs, "earliest")))
        for where in again:
            log.warning("%s-%d was deleted and created again: it is read from its beginning", *where)
            found[where] = first[where]
        if fresh:
            found |= {where: first[where] for where in fresh}
            if outside := [where for where in fresh if where[0] not in self._internal]:
                found |= self._reset_offsets(request, admin, outside, first)
        return {where: self._inside(where, found[where], first[where]) for where in inputs}, committed

    def _commit_starts(
        self,
        request: OpenRequest,
        starts: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Commit the start offsets of tasks with tables: a part without any offset then has inputs with expired
        offsets.

        This happens after leftover parts were settled: earlier, it would hide that there were none.
        """
        missing = {at: start for at, start in starts.items() if at not in committed or committed[at].offset < 0}
        if missing:
            member = self._newest(request)
            commit_offsets(
                self._client,
                self._group_id,
                missing,
                member_id=member.member_id,
                member_epoch=member.member_epoch,
            )

    def _reset_offsets(
        self,
        request: OpenRequest,
        admin: Admin,
        fresh: list[TopicPartition],
        first: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        if self._reset == "none":
            raise BrokerError(
                "no-offset",
                f"the group {self._group_id} has no committed offset for {fresh[0][0]}-{fresh[0][1]}",
                'Set auto_offset_reset="earliest" or "latest", or commit offsets for the group.',
            )
        if self._reset == "earliest":
            return {where: first[where] for where in fresh}
        ends = _offsets(admin.list_offsets(dict.fromkeys(fresh, "latest"), isolation_level="read_committed"))
        member = self._newest(request)
        commit_offsets(self._client, self._group_id, ends, member_id=member.member_id, member_epoch=member.member_epoch)
        return ends

    def _inside(self, where: TopicPartition, committed: int, first: int) -> int:
        """Records that retention took before they were read are said, and passed over only when that was asked for."""
        if committed >= first:
            return committed
        if self._reset == "none":
            raise BrokerError(
                "offset-out-of-range",
                f"{where[0]}-{where[1]} begins at {first}, the group {self._group_id} stands at {committed}",
                "Records were deleted before they were read; reset the group's offsets.",
            )
        log.warning("%s-%d: records %d to %d were deleted before they were read", *where, committed, first - 1)
        return first


def _is_of_another(row: CommittedOffset, topic: str, topic_ids: Mapping[str, str]) -> bool:
    """Whether the offset was committed for a topic of this name that is gone.

    Brokers delete the offsets of a deleted topic, but TxnOffsetCommit names topics without an id: one that comes after
    the deletion counts for the new topic.
    """
    named = topic_id_of(row.metadata, topic)
    return row.offset >= 0 and named is not None and named != topic_ids[topic]


def _offsets(found: Mapping[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
    return {where: row.offset for where, row in found.items()}
