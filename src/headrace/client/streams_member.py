"""`StreamsMember`: a member of a group that runs streams, for runtimes other than Spark. The membership does the work.

Heartbeats have a thread of their own and go on while the caller's code hangs. A program whose death must be noticed at
once uses the guardian (`GuardianLink`).
"""

from __future__ import annotations

import os
import queue
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Self

from headrace.checked_api import checked_api
from headrace.client.configuration import CLASSIC_ONLY, ClientConfiguration, warn_if_ignored
from headrace.client.member_runner import MemberRunner
from headrace.client.membership.assignment import AssignmentSnapshot, TaskId
from headrace.client.membership.endpoints import Endpoint, EndpointMap, owner_of
from headrace.client.membership.events import Assigned, AssignmentChanged, EndpointsChanged, MemberEvent
from headrace.client.membership.membership_configuration import MembershipConfiguration
from headrace.client.membership.streams_protocol import GroupProtocol, ProtocolChoice, parse_group_protocol
from headrace.client.membership.task_ownership import commit_generation
from headrace.client.membership.topology import Topology
from headrace.client.protocol_choice import find_group_protocol
from headrace.errors import ConfigError
from headrace.protocol.partitioner import partition_for_key

__all__ = ["StreamsMember"]

# Longer than the membership's own limit for a leave (5 s), so that it reports the outcome itself.
LEAVE_WAIT_S = 6.0


@checked_api()
class StreamsMember:
    """Thread that keeps a membership, and its events. Joins when created, leaves at `close`. Mutable.

    Example:
        `with StreamsMember("flights", topology, bootstrap_servers="localhost:9092") as member: …`
    """

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
        group_protocol: GroupProtocol | None = None,
        rebalance_timeout_ms: int | None = None,
        session_timeout_ms: int | None = None,
        heartbeat_interval_ms: int | None = None,
        heartbeat_max_interval_ms: int | None = None,
        num_standby_replicas: int | None = None,
        acceptable_recovery_lag: int | None = None,
        request_timeout_ms: int | None = None,
        api_timeout_ms: int | None = None,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
    ) -> None:
        """Join a group. `docs/how-to/members.md` explains each argument; None: from `config`, the environment or the
        default.

        Args:
            group_protocol: "streams" (the default), "classic", or "auto": streams groups where the cluster offers them,
                else a classic group. Commits of a classic group need `commit_generation`.
            session_timeout_ms: In a streams group its session timeout, set on the broker: after this time without an
                answer the member gives up its tasks by itself. In a classic group the member sets it.
            heartbeat_interval_ms: In a classic group: time between heartbeats.
            num_standby_replicas: In a classic group: standby tasks of each stateful task.
            acceptable_recovery_lag: In a classic group: changelog records that a copy may lack when its task moves to
                this member. Stateful tasks stay with their owners until `report_offsets` reports such a copy. None: the
                application makes no copies of warm-up tasks, and tasks move at once.

        Raises:
            ConfigError: `unknown-setting`, `bad-value`.
            CannotConnect, BrokerError: With "auto", if the group's coordinator cannot be asked.
        """
        settings = ClientConfiguration(
            config,
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            group_instance_id=group_instance_id,
            application_server=endpoint,
            rebalance_timeout_ms=rebalance_timeout_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            num_standby_replicas=num_standby_replicas,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=api_timeout_ms,
            headrace_heartbeat_max_interval_ms=heartbeat_max_interval_ms,
        )
        wanted = parse_group_protocol(group_protocol or settings.group_protocol or "streams", member="a StreamsMember")
        # For lookups on the caller's thread, which must not delay heartbeats.
        self._topics = settings.network_client()
        try:
            self._protocol = find_group_protocol(self._topics, group_id, wanted)
        except BaseException:
            self._topics.close()
            raise
        if self._protocol.protocol == "streams":
            for name in CLASSIC_ONLY:
                if settings.source(name) != "default" and name != "session.timeout.ms":
                    warn_if_ignored(name)
        # In a streams group the member makes its id itself and keeps it over rejoins (KIP-1082), so that sticky
        # assignment finds its tasks again. In a classic group the coordinator gives out ids.
        member = (member_id or _random_id()) if self._protocol.protocol == "streams" else ""
        self._queue: queue.SimpleQueue[tuple[MemberEvent, AssignmentSnapshot]] = queue.SimpleQueue()
        self._newest = AssignmentSnapshot(member_id=member)
        # The version of the newest snapshot that the caller has seen: what a plain mapping passed to `acknowledge`
        # refers to.
        self._told_version = 0
        self._endpoints: EndpointMap = MappingProxyType({})
        self._closed = False
        self._runner = MemberRunner(
            settings.network_client(),
            MembershipConfiguration(
                group_id=group_id,
                member_id=member,
                process_id=process_id or _random_id(),
                topology=topology,
                rebalance_timeout_ms=settings["rebalance.timeout.ms"],
                session_timeout_ms=settings["session.timeout.ms"],
                heartbeat_max_interval_ms=settings["headrace.heartbeat.max.interval.ms"],
                rack_id=settings["client.rack"] or None,
                instance_id=settings["group.instance.id"] or None,
                endpoint=_endpoint(settings["application.server"]),
                early_look=early_look,
                group_protocol=self._protocol.protocol,
                heartbeat_interval_ms=settings["heartbeat.interval.ms"],
                num_standby_replicas=settings["num.standby.replicas"],
                acceptable_recovery_lag=acceptable_recovery_lag,
            ),
            self._on_event,
        )
        self._runner.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def member_id(self) -> str:
        """The member's id."""
        return self._newest.member_id

    @property
    def group_protocol(self) -> ProtocolChoice:
        """The protocol of the group, and why it was chosen."""
        return self._protocol

    def commit_generation(self, planned: AssignmentSnapshot, tasks: Iterable[TaskId]) -> int | None:
        """Return the member epoch with which to commit work on tasks, None if it must not be committed.

        In a streams group that is the epoch of the snapshot that the work was planned with, and the coordinator fences
        it. In a classic group it is the newest generation, if the member has held the tasks since: the coordinator
        compares generations and knows nothing of tasks.

        Args:
            planned: The snapshot that the work was planned with.
            tasks: (subtopology id, partition) of the tasks.
        """
        if self._protocol.protocol == "streams":
            return planned.member_epoch
        return commit_generation(
            self._newest, member_id=planned.member_id, planned_generation=planned.member_epoch, tasks=tasks
        )

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot; commit with `commit_generation` of the snapshot that the work was planned with."""
        snapshot = self._newest
        self._told_version = max(self._told_version, snapshot.version)
        return snapshot

    @property
    def endpoints(self) -> EndpointMap:
        """The endpoints for interactive queries, as last received. Empty while no member has one."""
        return self._endpoints

    def endpoint_for(self, topic: str, key: bytes) -> Endpoint | None:
        """Return the endpoint to query for a key: that of the member whose active task reads the key's partition.

        Args:
            topic: A source or repartition topic of the store's subtopology, written with Kafka's default partitioner.
            key: The encoded key.

        Returns:
            None while no member has that task.

        Raises:
            BrokerError: `topic-missing`.
        """
        partitions = self._topics.known_topics([topic]).topics[topic].partitions
        return owner_of(self._endpoints, topic, partition_for_key(key, len(partitions)))

    def changes(self, timeout: float | None = 0.5) -> Iterator[MemberEvent]:
        """Yield the events since the last call; wait up to `timeout` seconds (None: without end) for the first one."""
        # Waits for the first event only; what is there besides is returned without a wait.
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
        """Acknowledge the tasks that are worked on now; the next heartbeat follows at once.

        Args:
            change: An `Assigned` or `AssignmentChanged`, for all of its tasks, or the active tasks. Other events need
                no acknowledgement and are ignored.
            standby: The standby tasks; None: as assigned.
            warmup: The warm-up tasks; None: as assigned.
        """
        if isinstance(change, Assigned | AssignmentChanged):
            assignment = change.assignment
            # With the event's version, which may be older than the newest: tasks that came later still count as
            # possibly opened.
            self._runner.acknowledge(assignment.active, standby=standby, warmup=warmup, version=assignment.version)
        elif isinstance(change, Mapping):
            self._runner.acknowledge(change, standby=standby, warmup=warmup, version=self._told_version)

    def report_offsets(self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int] | None = None) -> None:
        """Report changelog offsets of stores by (subtopology id, partition), all tasks; each call replaces the last.

        Heartbeats carry them to brokers that support it (Kafka 4.4, Headrace).
        """
        self._runner.report_offsets(offsets, end_offsets)

    def request_shutdown(self) -> None:
        """Ask all members of the group to stop. Each receives `ShutdownRequested`, this one too."""
        self._runner.request_shutdown()

    def leave(self, *, for_a_while: bool = False) -> None:
        """Leave the group; `Lost` and `Left` follow as events.

        `for_a_while`: a static member's tasks wait for a process with the same `group_instance_id` until the group's
        session timeout is over. A dynamic member's tasks go to the others at once.
        """
        self._runner.leave(for_a_while=for_a_while)

    def close(self, *, for_a_while: bool = False) -> None:
        """Leave if that was not done, and end the thread."""
        if not self._closed:
            self._closed = True
            self._runner.leave(for_a_while=for_a_while)
            self._runner.wait_left(LEAVE_WAIT_S)
            self._runner.stop()
            self._topics.close()

    def abandon(self) -> None:
        """End the thread without a message to the coordinator, as a crash would; the session timeout removes the
        member.
        """
        if not self._closed:
            self._closed = True
            self._runner.stop()
            self._topics.close()

    def _on_event(self, event: MemberEvent, snapshot: AssignmentSnapshot) -> None:
        if isinstance(event, EndpointsChanged):
            self._endpoints = event.endpoints
        # Set before the event is queued: a reader of the event finds its snapshot or a newer one.
        self._newest = snapshot
        self._queue.put((event, snapshot))


def _endpoint(text: str) -> Endpoint | None:
    if not text:
        return None
    try:
        return Endpoint.parse(text)
    except ValueError:
        raise ConfigError(
            "bad-value", f"Invalid application.server {text!r}.", "Set host:port.", key="application.server"
        ) from None


def _random_id() -> str:
    return str(uuid.UUID(bytes=os.urandom(16), version=4))
