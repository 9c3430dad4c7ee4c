"""Opening of tasks beside the running ones: committed offsets, reset policy, stores restored.

Opening has a thread of its own per subtopology, so that a task which restores for a minute holds up no other. In it the
required order is OffsetFetch (stable), then the changelog's end, then replay. `SubtopologyMachine` decides what is
opened, whether a failed attempt is repeated (an unreachable broker, a transaction that a dead instance left open), and
when an opened task runs.

`auto_offset_reset` is about the topics of the outside world; an internal topic is read from its beginning. "latest" is
another offset each time it is looked up, so the result is committed before the task runs. The next owner, before or
after the first micro-batch, continues from there and skips nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.client.admin import Admin
from headrace.client.admin_results import CommittedOffset, OffsetAndTimestamp
from headrace.client.group_offsets import commit_offsets, fetch_committed
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, HeadraceError
from headrace.spark.machine.batch_outcome import is_retriable
from headrace.spark.machine.commands import Open
from headrace.spark.machine.events import OpenFailed
from headrace.spark.runtime.batches.commit_epochs import is_of_another_generation
from headrace.spark.runtime.chains import input_topics
from headrace.spark.runtime.stores.store_restorer import StoreRestorer
from headrace.spark.runtime.stores.stored_schemas import StoredSchemas
from headrace.spark.runtime.table_sinks import TableSinks
from headrace.spark.runtime.tasks import RunningTask, TopicPartition
from headrace.spark.sinks.part_resolution import topic_id_of
from headrace.spark.topology.nodes import CompiledSubtopology, RepartitionSource

__all__ = ["OpeningHost", "TaskOpener"]

log = logging.getLogger("headrace.spark")
CLOSE_WAIT = 2.0
COMMIT_PAUSE_S = 0.05  # until a commit that a rebalance refused is sent again
STABLE_WAIT_MS = 2000  # then the attempt fails, and is repeated if the tasks are still assigned


class OpeningHost(Protocol):
    """Receiver of opened tasks. See `SubtopologyRunner`."""

    def is_opening(self, request: Open) -> bool:
        """Whether a task still waits for this request."""

    def newest_assignment(self, request: Open) -> AssignmentSnapshot:
        """Return the latest assignment, which is the one of `request` or a later one."""

    def take_opened(self, request: Open, tasks: list[RunningTask]) -> None:
        """Run these tasks from the next micro-batch on, if they are still assigned."""

    def take_open_failure(self, failure: OpenFailed) -> None:
        """Repeat the request later, or end the application."""


class TaskOpener:
    """Opens tasks of one subtopology, one request after another."""

    def __init__(
        self,
        subtopology: CompiledSubtopology,
        *,
        group_id: str,
        auto_offset_reset: str,
        client: NetworkClient,
        host: OpeningHost,
        schemas: StoredSchemas,
        restorer: StoreRestorer | None,
        tables: TableSinks | None,
        make_thread: Callable[..., threading.Thread],
    ) -> None:
        """Start the thread.

        Args:
            subtopology: Whose tasks are opened.
            group_id: The streams group.
            auto_offset_reset: For source topics without a committed offset.
            client: Belongs to the opener, which closes it.
            host: Receives the tasks.
            schemas: Refuses to open where stored rows are another program's.
            restorer: Restores stores; None without stores.
            tables: Table sinks, of which leftover parts are decided; None without tables.
            make_thread: Returns a thread with a JVM thread of its own.
        """
        self._subtopology, self._name = subtopology, subtopology.subtopology_id
        self._internal = frozenset(s.topic for s in subtopology.sources if isinstance(s, RepartitionSource))
        self._group_id, self._reset, self._client, self._host = group_id, auto_offset_reset, client, host
        self._schemas, self._restorer, self._tables = schemas, restorer, tables
        self._requests: queue.Queue[Open | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread = make_thread(target=self._loop, name=f"headrace-open-{self._name}", daemon=True)
        self._thread.start()

    def open(self, request: Open) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """Cancel all openings: the tasks will not run here."""
        self._closing.set()
        self._requests.put(None)
        # Interrupts a request that waits for a broker, such as a stable OffsetFetch.
        self._client.end()
        self._client.close()
        self._thread.join(CLOSE_WAIT)

    def _loop(self) -> None:
        self._connect_to_coordinator()
        while (request := self._requests.get()) is not None and not self._closing.is_set():
            self._closing.wait(max(0.0, request.not_before_ms / 1000 - time.monotonic()))
            # The tasks may have moved away while the request waited.
            if not self._host.is_opening(request):
                continue
            try:
                tasks = self._open(request)
            except Exception as error:  # noqa: BLE001 - the machine decides what follows
                self._report_failure(request, error)
            else:
                self._host.take_opened(request, tasks)

    def _report_failure(self, request: Open, error: Exception) -> None:
        if self._closing.is_set() or not self._host.is_opening(request):  # a stop, or the tasks moved away
            log.debug("%s: opening was given up: %s", self._name, error)
            return
        if not isinstance(error, HeadraceError):
            log.error("opening tasks of %s failed", self._name, exc_info=error)
            error = HeadraceError("open-failed", f"the tasks of {self._name} could not be opened: {error}")
        elif is_retriable(error):
            log.warning("%s: %s; trying again", self._name, error)
        self._host.take_open_failure(OpenFailed(number=request.number, error=error))

    def _connect_to_coordinator(self) -> None:
        """Open connections before the first tasks arrive: tasks do not run while they are being opened."""
        try:
            fetch_committed(self._client, self._group_id, None, timeout_ms=STABLE_WAIT_MS)
        except HeadraceError as error:
            log.debug("%s: the coordinator was not reached ahead: %s", self._name, error)

    def _open(self, request: Open) -> list[RunningTask]:
        # 1. Before anything is read or written: rows of another program would be mixed with this one's.
        self._schemas.agree(self._client)
        # 2. Inputs and topic ids from one look at the metadata. The ids become part of positions, so a topic that is
        #    created again later is noticed.
        inputs = self._inputs(request)
        places = [where for mine in inputs.values() for where in mine]
        topic_ids = self._topic_ids({topic for topic, _ in places})
        # 3. Stable offsets: the call fails while an earlier owner's transaction is open, because its outcome moves the
        #    start.
        starts, committed = self._starts(request, places, topic_ids)
        tasks = [
            RunningTask(
                partition=partition,
                positions={where: starts[where] for where in mine},
                slot=request.slots[partition],
                topic_ids=topic_ids,
            )
            for partition, mine in sorted(inputs.items())
        ]
        # 4. Tables: leftover parts are decided by the offsets just read, then missing start offsets are committed.
        if self._tables:
            self._tables.resolve_parts(tasks, committed)
            self._commit_starts(request, starts, committed)
        # 5. Stores last, to the positions that are final now.
        if self._restorer is not None:
            self._restorer.restore(request, tasks)
        return tasks

    def _inputs(self, request: Open) -> dict[int, tuple[TopicPartition, ...]]:
        topics = input_topics(self._subtopology)
        found = self._client.known_topics(topics, refresh=True).topics
        return {p: tuple((topic, p) for topic in topics if p in found[topic].partitions) for p in request.partitions}

    def _topic_ids(self, topics: set[str]) -> dict[str, str]:
        """Return the topic ids that the look-up of the inputs returned."""
        found = self._client.known_topics(sorted(topics)).topics if topics else {}
        return {topic: str(found[topic].topic_id) for topic in sorted(topics)}

    def _starts(
        self, request: Open, inputs: list[TopicPartition], topic_ids: Mapping[str, str]
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, CommittedOffset]]:
        """Return the start offsets (committed ones, else by `auto_offset_reset`), and the committed offsets that were
        found.
        """
        if not inputs:
            return {}, {}
        committed = fetch_committed(
            self._client, self._group_id, inputs, require_stable=True, timeout_ms=STABLE_WAIT_MS
        )
        found = {where: row.offset for where, row in committed.items()}
        # A topic that was deleted and created again: the committed offset counts positions of the old one.
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
        request: Open,
        starts: Mapping[TopicPartition, int],
        committed: Mapping[TopicPartition, CommittedOffset],
    ) -> None:
        """Commit the start offsets of tasks with tables: a part without any offset then has inputs with expired
        offsets.

        This happens after leftover parts were resolved: earlier, it would hide that there were none.
        """
        missing = {at: start for at, start in starts.items() if at not in committed or committed[at].offset < 0}
        if missing:
            self._commit(request, missing)

    def _commit(self, request: Open, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets as the member that the tasks are assigned to.

        A classic group refuses commits of another generation, and during a rebalance all of them: such a commit is sent
        again with the newest assignment, until STABLE_WAIT_MS are over.
        """
        until = time.monotonic() + STABLE_WAIT_MS / 1000
        while True:
            member = self._host.newest_assignment(request)
            try:
                commit_offsets(
                    self._client,
                    self._group_id,
                    offsets,
                    member_id=member.member_id,
                    member_epoch=member.member_epoch,
                )
            except BrokerError as error:
                if not is_of_another_generation(error):
                    raise
                if time.monotonic() >= until:
                    error.facts["retriable"] = True
                    raise
                self._closing.wait(COMMIT_PAUSE_S)
            else:
                return

    def _reset_offsets(
        self,
        request: Open,
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
        # Committed at once, with the member's epoch: "latest" of the next owner would be a later one, and the records
        # in between would be lost.
        ends = _offsets(admin.list_offsets(dict.fromkeys(fresh, "latest"), isolation_level="read_committed"))
        self._commit(request, ends)
        return ends

    def _inside(self, where: TopicPartition, committed: int, first: int) -> int:
        """Return the start offset inside of the log. Records that retention deleted before they were read are logged
        and skipped, unless the reset policy is "none".
        """
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
