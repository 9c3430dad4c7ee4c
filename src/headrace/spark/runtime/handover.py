"""Delayed revocation: a moving task keeps running until its new owner has restored the state.

The coordinator asks an owner to release a task at once, while the new owner may need minutes of replay. No member would
process the task in between. So the owner continues (brokers accept offset commits of a task that is pending revocation)
and polls the group: which member has the task in its target assignment, and which changelog offset does it report? The
task is released when the copy is almost complete, when the new owner shows no sign of a copy, or on timeout.

Task offsets are part of heartbeats of version 1 (Kafka 4.4, Headrace's broker). With older brokers tasks are released
at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.client.membership.target_assignment_poller import DescribedGroup, describe_request, described_group
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["Handover", "Task"]

log = logging.getLogger("headrace.spark")

FIRST_LOOK_S = 0.05
LONGEST_PAUSE_S = 0.25
SIGN_S = 8.0  # a new owner that reports no copy of the task for so long does not make one, however busy its machine
OFFSETS_VERSION = 1

Task = tuple[str, int]


@dataclass(slots=True)
class _Delay:
    since: float = field(default_factory=time.monotonic)
    seen: bool = False


class Handover:
    """Tasks whose revocation is delayed. Mutable, shared by the member thread and the polling thread."""

    def __init__(
        self,
        *,
        group_id: str,
        member_id: Callable[[], str],
        make_client: Callable[[], NetworkClient],
        acceptable_lag: int,
        longest_s: float,
    ) -> None:
        """Create without connecting.

        Args:
            group_id: The streams group.
            member_id: Returns the id of this member.
            make_client: Returns a client for the polling thread.
            acceptable_lag: Maximum lag of a finished copy, in changelog records summed over a task's stores.
            longest_s: Maximum delay; 0 releases tasks at once.
        """
        self._group_id, self._member_id, self._make_client = group_id, member_id, make_client
        self._acceptable_lag, self._longest_s = acceptable_lag, longest_s
        self._lock = threading.Condition()
        self._delayed: dict[Task, _Delay] = {}
        self._released: set[Task] = set()
        self._possible: bool | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def disable(self) -> None:
        """Release all tasks at once from now on: the leader of a classic group delays moves itself (warm-up tasks)."""
        self._possible = False

    def delay(self, revoked: Iterable[Task]) -> frozenset[Task]:
        """Return the revoked tasks to keep running for now. Call it with all revoked tasks at each change."""
        with self._lock:
            wanted = set(revoked)
            # A task that is no longer revoked is forgotten here, so that a later move of it is delayed again.
            self._released &= wanted
            if self._closed or self._longest_s <= 0 or self._possible is False:
                return frozenset()
            # Times of tasks that are held already stay: the longest delay counts from the first revocation.
            self._delayed = {
                task: self._delayed.get(task) or _Delay() for task in sorted(wanted) if task not in self._released
            }
            if self._delayed and self._thread is None:
                self._thread = threading.Thread(target=self._poll_group, name="headrace-handover", daemon=True)
                self._thread.start()
            self._lock.notify_all()
            return frozenset(self._delayed)

    def delayed(self) -> frozenset[Task]:
        """The tasks that are still being kept."""
        with self._lock:
            return frozenset(self._delayed)

    def clear(self) -> None:
        """Release all tasks."""
        with self._lock:
            self._delayed.clear()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._delayed.clear()
            self._lock.notify_all()

    def _poll_group(self) -> None:
        client = self._make_client()
        try:
            while self._await_work():
                # Short pauses first: a standby of the new owner is often complete, and then each pause is time in which
                # the move could be over. Growing ones spare the coordinator during a long copy.
                pause = FIRST_LOOK_S
                while self._is_busy():
                    try:
                        self._check_group(client)
                    except HeadraceError as error:
                        log.debug("who gets the tasks could not be asked: %s", error)
                    self._expire()
                    with self._lock:
                        self._lock.wait_for(lambda: self._closed, pause)
                    pause = min(pause * 1.5, LONGEST_PAUSE_S)
        finally:
            client.close()

    def _await_work(self) -> bool:
        with self._lock:
            self._lock.wait_for(lambda: self._closed or bool(self._delayed))
            return not self._closed

    def _is_busy(self) -> bool:
        with self._lock:
            return bool(self._delayed) and not self._closed

    def _check_group(self, client: NetworkClient) -> None:
        # Asked once, of the coordinator: brokers of one cluster may have different versions during an upgrade.
        if self._possible is None:
            node = client.coordinator_for(self._group_id)
            versions = client.supported_range(ApiKey.STREAMS_GROUP_HEARTBEAT, node)
            self._possible = versions is not None and versions.highest >= OFFSETS_VERSION
        if not self._possible:
            self.clear()
            return
        response = client.call_coordinator(
            self._group_id,
            describe_request(self._group_id),
            lambda answer: [group.error_code for group in answer.groups],
        )
        group = described_group(response, self._group_id)
        if group is None or group.error_code != ErrorCode.none:
            self.clear()  # no right to describe the group: release the task
            return
        with self._lock:
            for task in sorted(self._delayed):
                self._decide(task, group)

    def _decide(self, task: Task, group: DescribedGroup) -> None:
        mine = self._member_id()
        for member in group.members:
            target = {
                (ids.subtopology_id, int(partition))
                for ids in member.target_assignment.active_tasks
                for partition in ids.partitions
            }
            # 1. The new owner is the other member whose target assignment contains the task (KIP-1071: targets of all
            #    members are part of StreamsGroupDescribe).
            if str(member.member_id) == mine or task not in target:
                continue
            offsets = {(o.subtopology_id, int(o.partition)): int(o.offset) for o in member.task_offsets or ()}
            ends = {(o.subtopology_id, int(o.partition)): int(o.offset) for o in member.task_end_offsets or ()}
            # 2. No offsets reported yet: the new owner may still be starting. `_expire` limits this wait to SIGN_S.
            if task not in offsets or task not in ends:
                return
            self._delayed[task].seen = True
            # 3. Same bound as Kafka Streams' `acceptable.recovery.lag` (KIP-441) for warm-up replicas: the rest is
            #    replayed during the short pause of the move. Waiting for lag 0 would never end under load.
            if ends[task] - offsets[task] <= self._acceptable_lag:
                self._release(task, "its new owner has the state")
            return

    def _expire(self) -> None:
        now = time.monotonic()
        with self._lock:
            for task, held in sorted(self._delayed.items()):
                # No wait is without bound: a new owner that is stuck must not keep a revoked task here past the
                # rebalance timeout.
                if now - held.since > self._longest_s:
                    self._release(task, "the time is up")
                elif not held.seen and now - held.since > SIGN_S:
                    self._release(task, "its new owner makes no copy ahead")

    def _release(self, task: Task, why: str) -> None:
        waited = time.monotonic() - self._delayed.pop(task).since
        self._released.add(task)
        log.info("task %s_%d is given back after %.2f s: %s", *task, waited, why)
