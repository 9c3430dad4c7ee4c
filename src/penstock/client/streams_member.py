"""`StreamsMember`: a member of a streams group for runtimes that are not Spark. Advanced; the membership does the work.

Heartbeats have a thread of their own: they go on while the caller's code hangs. Whoever needs the group to move on
then (and a process that dies to be noticed at once) takes the guardian (`GuardianLink`).
"""

from __future__ import annotations

import os
import queue
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from penstock.client.member_runner import MemberRunner
from penstock.client.membership.assignment import AssignmentSnapshot
from penstock.client.membership.events import Assigned, AssignmentChanged, MemberEvent
from penstock.client.membership.topology import Topology
from penstock.client.network_client import NetworkClient

__all__ = ["StreamsMember"]

LEAVE_WAIT_S = 6.0


class StreamsMember:
    """Mutable: a thread that keeps the membership, and what it told. Joins at construction, leaves at `close`."""

    def __init__(
        self,
        group_id: str,
        topology: Topology,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "penstock",
        member_id: str | None = None,
        process_id: str | None = None,
        rebalance_timeout_ms: int = 300_000,
        session_timeout_ms: int = 45_000,
        heartbeat_max_interval_ms: int = 500,
        **client_settings: Any,
    ) -> None:
        member = member_id or _random_id()
        self._queue: queue.SimpleQueue[tuple[MemberEvent, AssignmentSnapshot]] = queue.SimpleQueue()
        self._newest = AssignmentSnapshot(member_id=member)
        self._told_version = 0
        self._closed = False
        self._runner = MemberRunner(
            NetworkClient(bootstrap_servers, client_id=client_id, **client_settings),
            group_id=group_id,
            member_id=member,
            process_id=process_id or _random_id(),
            topology=topology,
            listener=self._hear,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_max_interval_ms=heartbeat_max_interval_ms,
        )
        self._runner.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def member_id(self) -> str:
        return self._newest.member_id

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot; commit offsets with the epoch of the snapshot that the work was planned with."""
        snapshot = self._newest
        self._told_version = max(self._told_version, snapshot.version)
        return snapshot

    def changes(self, timeout: float | None = 0.5) -> Iterator[MemberEvent]:
        """What happened; waits up to `timeout` seconds (None: for ever) for the first event."""
        with suppress(queue.Empty):
            entry = self._queue.get(timeout=timeout)
            while True:
                event, snapshot = entry
                self._told_version = max(self._told_version, snapshot.version)
                yield event
                entry = self._queue.get_nowait()

    def acknowledge(self, change: MemberEvent | Mapping[str, Sequence[int]]) -> None:
        """Says what is worked on now: all tasks of an `Assigned` or `AssignmentChanged`, or the tasks given.

        Heartbeats at once. Other events need no acknowledgement and are passed over.
        """
        if isinstance(change, Assigned | AssignmentChanged):
            self._runner.acknowledge(change.assignment.active, version=change.assignment.version)
        elif isinstance(change, Mapping):
            self._runner.acknowledge(change, version=self._told_version)

    def leave(self) -> None:
        """Leaves the group; `Lost` and `Left` follow as events."""
        self._runner.leave()

    def close(self) -> None:
        """Leaves if that was not done, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._runner.leave()
            self._runner.wait_left(LEAVE_WAIT_S)
            self._runner.stop()

    def _hear(self, event: MemberEvent, snapshot: AssignmentSnapshot) -> None:
        self._newest = snapshot
        self._queue.put((event, snapshot))


def _random_id() -> str:
    return str(uuid.UUID(bytes=os.urandom(16), version=4))
