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
from types import MappingProxyType
from typing import Self

from headrace.checked_api import checked_api
from headrace.client.configuration import ClientConfiguration, check_streams_protocol
from headrace.client.member_runner import MemberRunner
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.endpoints import Endpoint, EndpointMap, owner_of
from headrace.client.membership.events import Assigned, AssignmentChanged, EndpointsChanged, MemberEvent
from headrace.client.membership.streams_heartbeat import TaskId
from headrace.client.membership.topology import Topology
from headrace.errors import ConfigError
from headrace.protocol.partitioner import partition_for_key

__all__ = ["StreamsMember"]

LEAVE_WAIT_S = 6.0


@checked_api()
class StreamsMember:
    """Mutable: a thread that keeps the membership, and what it told. Joins at construction, leaves at `close`."""

    def __init__(
        self,
        group_id: str,
        topology: Topology,
        *,
        bootstrap_servers: str | Sequence[str] | None = None,
        client_id: str | None = None,
        member_id: str | None = None,
        process_id: str | None = None,
        group_instance_id: str | None = None,
        endpoint: str | None = None,
        early_look: bool = False,
        rebalance_timeout_ms: int | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_max_interval_ms: int | None = None,
        request_timeout_ms: int | None = None,
        api_timeout_ms: int | None = None,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
    ) -> None:
        """`docs/how-to/members.md` explains each. None: from `config`, the environment or Kafka's default.

        `session_timeout_ms` is the group's, set on the broker: so long without an answer and the member gives up its
        tasks by itself. Raises ConfigError for settings that cannot be.
        """
        settings = ClientConfiguration(
            config,
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            group_instance_id=group_instance_id,
            application_server=endpoint,
            rebalance_timeout_ms=rebalance_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=api_timeout_ms,
            headrace_heartbeat_max_interval_ms=heartbeat_max_interval_ms,
        )
        check_streams_protocol(settings.group_protocol, member="a StreamsMember")
        member = member_id or _random_id()
        self._queue: queue.SimpleQueue[tuple[MemberEvent, AssignmentSnapshot]] = queue.SimpleQueue()
        self._newest = AssignmentSnapshot(member_id=member)
        self._told_version = 0
        self._endpoints: EndpointMap = MappingProxyType({})
        self._closed = False
        self._topics = (
            settings.network_client()
        )  # for questions of the caller's thread, which must not delay heartbeats
        self._runner = MemberRunner(
            settings.network_client(),
            group_id=group_id,
            member_id=member,
            process_id=process_id or _random_id(),
            topology=topology,
            listener=self._hear,
            rebalance_timeout_ms=settings["rebalance.timeout.ms"],
            session_timeout_ms=session_timeout_ms,
            heartbeat_max_interval_ms=settings["headrace.heartbeat.max.interval.ms"],
            rack_id=settings["client.rack"] or None,
            instance_id=settings["group.instance.id"] or None,
            endpoint=_endpoint(settings["application.server"]),
            early_look=early_look,
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

    @property
    def endpoints(self) -> EndpointMap:
        """Who serves which partitions to interactive queries, as last told. Empty while no member gave an endpoint."""
        return self._endpoints

    def endpoint_for(self, topic: str, key: bytes) -> Endpoint | None:
        """Where to ask for a key: the member whose active task reads the partition of `topic` that the key is in.

        `topic` is a source or repartition topic of the store's subtopology, written with Kafka's default partitioner.
        None while nobody has that task. Raises BrokerError `topic-missing`.
        """
        partitions = self._topics.known_topics([topic]).topics[topic].partitions
        return owner_of(self._endpoints, topic, partition_for_key(key, len(partitions)))

    def changes(self, timeout: float | None = 0.5) -> Iterator[MemberEvent]:
        """What happened; waits up to `timeout` seconds (None: for ever) for the first event."""
        with suppress(queue.Empty):
            entry = self._queue.get(timeout=timeout)
            while True:
                event, snapshot = entry
                self._told_version = max(self._told_version, snapshot.version)
                yield event
                entry = self._queue.get_nowait()

    def acknowledge(
        self,
        change: MemberEvent | Mapping[str, Sequence[int]],
        *,
        standby: Mapping[str, Sequence[int]] | None = None,
        warmup: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Says what is worked on now: all tasks of an `Assigned` or `AssignmentChanged`, or the active tasks given.

        `standby` and `warmup` None: those tasks as assigned. Heartbeats at once. Other events need no acknowledgement
        and are passed over.
        """
        if isinstance(change, Assigned | AssignmentChanged):
            told = change.assignment
            self._runner.acknowledge(told.active, standby=standby, warmup=warmup, version=told.version)
        elif isinstance(change, Mapping):
            self._runner.acknowledge(change, standby=standby, warmup=warmup, version=self._told_version)

    def report_offsets(self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int] | None = None) -> None:
        """Changelog offsets of stores by (subtopology id, partition), all tasks; each call replaces the last.

        They travel with heartbeats to brokers that take them (Kafka 4.4, ours); others are not bothered.
        """
        self._runner.report_offsets(offsets, end_offsets)

    def request_shutdown(self) -> None:
        """Asks all members of the group to stop. Each hears `ShutdownRequested`, this one too."""
        self._runner.request_shutdown()

    def leave(self, *, for_a_while: bool = False) -> None:
        """Leaves the group; `Lost` and `Left` follow as events.

        `for_a_while`: a static member's tasks wait for a process with the same `group_instance_id` until the group's
        session timeout is over. Of a dynamic member they go to the others at once.
        """
        self._runner.leave(for_a_while=for_a_while)

    def close(self, *, for_a_while: bool = False) -> None:
        """Leaves if that was not done, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._runner.leave(for_a_while=for_a_while)
            self._runner.wait_left(LEAVE_WAIT_S)
            self._runner.stop()
            self._topics.close()

    def abandon(self) -> None:
        """Ends the thread without a word to the coordinator, as a crash would: the session timeout does the rest."""
        if not self._closed:
            self._closed = True
            self._runner.stop()
            self._topics.close()

    def _hear(self, event: MemberEvent, snapshot: AssignmentSnapshot) -> None:
        if isinstance(event, EndpointsChanged):
            self._endpoints = event.endpoints
        self._newest = snapshot
        self._queue.put((event, snapshot))


def _endpoint(text: str) -> Endpoint | None:
    if not text:
        return None
    try:
        return Endpoint.parse(text)
    except ValueError:
        raise ConfigError(
            "bad-value", f"application.server is {text!r}, which cannot be", "give host:port", key="application.server"
        ) from None


def _random_id() -> str:
    return str(uuid.UUID(bytes=os.urandom(16), version=4))
