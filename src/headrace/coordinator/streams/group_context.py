"""GroupContext and StreamsGroupSoftState: what a rule of a streams group sees besides the group's hard state.

Soft state is kept in memory only: it may be lost at a restart and is rebuilt from heartbeats. Unlike in Kafka it is not
attached to the group object, so nothing that the very first heartbeat reports is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from kio.schema.types import TopicName
from kio.static.primitive import i32, u16

from headrace.coordinator.assignors.task_assignor import AssignedTasks, Task, TaskAssignor, sorted_tasks
from headrace.coordinator.configuration import StreamsGroupConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.modern import revocation_timers, session_timer
from headrace.coordinator.records.schemas import Endpoint, StreamsGroupMetadataValue, StreamsGroupTopologyValue
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, SetTimer, TimerKey
from headrace.coordinator.streams.configured_topology import (
    ConfiguredTopology,
    configure_topology,
    required_topics,
)
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.internal_topics import TopicStatus
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import streams_group_heartbeat_request as m
from headrace.protocol.messages import streams_group_heartbeat_response as messages

__all__ = [
    "NO_OFFSETS",
    "EndpointPartitions",
    "GroupContext",
    "MemberTaskOffsets",
    "StreamsGroupSoftState",
    "epoch_reason",
    "initial_delay_timer",
    "interval_timer",
    "member_timers",
    "reported_offsets",
    "topology_events",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """Settings, metadata and time of a rule; `initial_delay_runs`, `interval_timer_runs`: timers that are set."""

    configuration: StreamsGroupConfiguration
    image: MetadataImage
    assignor: TaskAssignor
    now_ms: int
    initial_delay_runs: bool
    interval_timer_runs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTaskOffsets:
    """Offsets by task: the sum of its changelogs' positions, and of their ends. In task order."""

    offsets: Mapping[Task, int] = field(default_factory=dict)
    end_offsets: Mapping[Task, int] = field(default_factory=dict)


NO_OFFSETS = MemberTaskOffsets()


def reported_offsets(known: MemberTaskOffsets, request: m.StreamsGroupHeartbeatRequest) -> MemberTaskOffsets:
    """Return the offsets known after a request: a list replaces the old one, null keeps it.

    The same object if nothing differs. Raises CoordinatorError(INVALID_REQUEST) for a task that is listed twice.
    """
    if request.task_offsets is None and request.task_end_offsets is None:
        return known
    told = MemberTaskOffsets(
        offsets=known.offsets if request.task_offsets is None else _by_task(request.task_offsets),
        end_offsets=known.end_offsets if request.task_end_offsets is None else _by_task(request.task_end_offsets),
    )
    # Equal lists return the known object: its identity shows that nothing changed, which keeps repeatable replies
    # valid.
    return known if told == known else told


def _by_task(listed: Iterable[m.TaskOffset]) -> dict[Task, int]:
    offsets: dict[Task, int] = {}
    for each in listed:
        task = (each.subtopology_id, int(each.partition))
        if task in offsets:
            raise CoordinatorError(
                ErrorCode.invalid_request,
                f"Task offsets contain a duplicate entry for subtopology {task[0]} and partition {task[1]}.",
            )
        offsets[task] = int(each.offset)
    return dict(sorted(offsets.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Endpoint information of a member, and the objects that it was made from."""

    told: messages.EndpointToPartitions
    endpoint: Endpoint
    assigned: AssignedTasks
    configured: ConfiguredTopology


class EndpointPartitions:
    """Endpoint information by member. Mutable: a cache, because every member asks for it after a change."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(
        self, members: Iterable[StreamsGroupMember], configured: ConfiguredTopology
    ) -> tuple[messages.EndpointToPartitions, ...]:
        """Source and repartition source partitions of the assigned active tasks, and of standby and warm-up tasks."""
        entries: dict[str, _Entry] = {}
        for member in sorted(members, key=lambda member: member.member_id):
            endpoint, known = member.metadata.user_endpoint, self._entries.get(member.member_id)
            if endpoint is None:
                continue
            # Compared by identity: assigned tasks and topologies are immutable and replaced when they change, and
            # comparing their contents would cost as much as building the entry. The endpoint is compared by value,
            # because replaying a member's record makes a new object.
            if (
                known is None
                or known.assigned is not member.assigned
                or known.configured is not configured
                or known.endpoint != endpoint
            ):
                known = _Entry(
                    told=_endpoint_partitions(endpoint, member.assigned, configured),
                    endpoint=endpoint,
                    assigned=member.assigned,
                    configured=configured,
                )
            entries[member.member_id] = known
        self._entries = entries
        return tuple(entry.told for entry in entries.values())


def _endpoint_partitions(
    endpoint: Endpoint, assigned: AssignedTasks, configured: ConfiguredTopology
) -> messages.EndpointToPartitions:
    """Return the endpoint information of a member."""
    return messages.EndpointToPartitions(
        user_endpoint=messages.Endpoint(host=endpoint.host, port=cast("u16", endpoint.port)),
        active_partitions=_partitions(assigned.active, configured),
        standby_partitions=_partitions(sorted_tasks((*assigned.standby, *assigned.warmup)), configured),
    )


def _partitions(tasks: Iterable[Task], configured: ConfiguredTopology) -> tuple[messages.TopicPartition, ...]:
    by_topic: dict[str, list[int]] = {}
    for subtopology_id, partition in tasks:
        # Without source topics, or with wrongly partitioned ones, no subtopology is configured: the lists are empty.
        # Kafka 4.4 fails with NoSuchElementException then, and the resulting UNKNOWN_SERVER_ERROR ends Java clients.
        subtopology = configured.subtopologies.get(subtopology_id)
        for topic, count in subtopology.inputs if subtopology is not None else ():
            # The topics of a subtopology may have different numbers of partitions; task n reads partition n of those
            # that have it.
            if partition < count:
                by_topic.setdefault(topic, []).append(partition)
    return tuple(
        messages.TopicPartition(topic=cast("TopicName", topic), partitions=cast("tuple[i32, ...]", tuple(partitions)))
        for topic, partitions in sorted(by_topic.items())
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Configured:
    """A configured topology and all it was computed from. `image` is the newest whose `topics` of the names in
    `required` are these."""

    configured: ConfiguredTopology
    topology: StreamsGroupTopologyValue
    is_running: bool
    image: MetadataImage
    required: tuple[str, ...]
    topics: tuple[TopicImage | None, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class StreamsGroupSoftState:
    """Soft state of one group. Mutable. `endpoint_epoch` rises when a member's endpoint or, with one, its tasks change.

    `version` rises with everything that may change the reply to a heartbeat, soft or hard: a repeatable reply is valid
    for one version (`heartbeat.RepeatableHeartbeat`). Code that adds soft state on which replies depend must call
    `invalidate_replies`.
    """

    version: int = 0
    endpoint_epoch: int = 0
    endpoints: EndpointPartitions = field(default_factory=EndpointPartitions)
    shutdown_requested_by: str | None = None
    task_offsets: dict[str, MemberTaskOffsets] = field(default_factory=dict)
    _configured: _Configured | None = None

    def invalidate_replies(self) -> None:
        """Invalidate repeatable replies."""
        self.version += 1

    def request_shutdown(self, member_id: str) -> None:
        """Note who requested a shutdown of the application.

        The first member is named until the group is empty, even if it has left or others request it too.
        """
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id
            self.invalidate_replies()

    def bump_endpoint_epoch(self) -> None:
        """Raise the endpoint epoch, so that every member requests the endpoints again."""
        self.endpoint_epoch += 1
        self.invalidate_replies()

    def update(
        self,
        member_id: str,
        *,
        endpoints_changed: bool,
        shutdown_requested_by: str | None,
        task_offsets: MemberTaskOffsets,
        replaced_id: str | None,
    ) -> None:
        """Apply what a heartbeat of `member_id` changed. `replaced_id`: the member whose place it took."""
        if endpoints_changed:
            self.bump_endpoint_epoch()
        if shutdown_requested_by is not None:
            self.request_shutdown(shutdown_requested_by)
        if replaced_id is not None:
            self.task_offsets.pop(replaced_id, None)
        self.keep_task_offsets(member_id, task_offsets)

    def forget_member(self, member_id: str, *, is_last: bool, had_endpoint: bool) -> None:
        """Apply that a member is gone; with the last one goes the shutdown request."""
        if is_last:
            self.shutdown_requested_by = None
        if had_endpoint:
            self.bump_endpoint_epoch()
        self.task_offsets.pop(member_id, None)
        self.invalidate_replies()

    def task_offsets_of(self, member_id: str) -> MemberTaskOffsets:
        return self.task_offsets.get(member_id, NO_OFFSETS)

    def task_offsets_with(self, member_id: str, offsets: MemberTaskOffsets) -> Mapping[str, MemberTaskOffsets]:
        """Return the task offsets of all members, with those that a member reports now."""
        known = self.task_offsets
        return known if offsets is self.task_offsets_of(member_id) else {**known, member_id: offsets}

    def keep_task_offsets(self, member_id: str, offsets: MemberTaskOffsets) -> None:
        """Store reported offsets. A repeated reply would not store them, so repeatable replies become invalid."""
        if offsets is not self.task_offsets_of(member_id):
            self.task_offsets[member_id] = offsets
            self.invalidate_replies()

    def configured_topology(
        self, group: StreamsGroup, topology: StreamsGroupTopologyValue, image: MetadataImage
    ) -> ConfiguredTopology:
        """Return the group's topology, or its next one, on the topics of the image.

        Computed anew for another topology, when a topic it needs is another one, or when it came to be ready.
        """
        # Three levels, from cheap to expensive, because every heartbeat asks:
        # - the same image object as last time: the answer is the same;
        # - another image, but the topics that the topology requires are equal: the answer is the same, and the image is
        #   noted;
        # - otherwise the topology is configured anew.
        # - A change of `is_running` counts as a change, because a running topology may keep tasks that a new one would
        #   not get.
        is_running = group.metadata.validated_topology_epoch == topology.epoch
        known = self._configured
        if known is None or known.topology is not topology or known.is_running is not is_running:
            required = required_topics(topology)
        elif known.image is image:
            return known.configured
        else:
            required = known.required
        topics = tuple(image.topics.get(name) for name in required)
        if known is not None and known.required is required and known.topics == topics:
            known.image = image
            return known.configured
        present_tasks = partial(_present_tasks, group) if is_running else None
        self._configured = _Configured(
            configured=configure_topology(topology, image, present_tasks=present_tasks),
            topology=topology,
            is_running=is_running,
            image=image,
            required=required,
            topics=topics,
        )
        return self._configured.configured


def _present_tasks(group: StreamsGroup) -> dict[str, int]:
    """Return the number of tasks of each subtopology that the present target assigns."""
    counts: dict[str, int] = {}
    for target in group.target.values():
        for subtopology_id, partition in target.active:
            counts[subtopology_id] = max(counts.get(subtopology_id, 0), partition + 1)
    return counts


def initial_delay_timer(group_id: str) -> TimerKey:
    """Return the key of the initial delay's timer."""
    return TimerKey(kind="initial-delay", group_id=group_id)


def interval_timer(group_id: str) -> TimerKey:
    """Return the key of the timer that ends the assignment interval."""
    return TimerKey(kind="assignment-interval", group_id=group_id)


def member_timers(
    group: StreamsGroup, before: StreamsGroupMember, after: StreamsGroupMember, group_context: GroupContext
) -> list[SetTimer | CancelTimer]:
    """Return the timers of a member.

    The session restarts with each heartbeat, the rebalance timeout with each new request to revoke.
    """
    now_ms = group_context.now_ms
    # The present setting, not that of the join: a changed `group.streams.session.timeout.ms` holds from the next
    # heartbeat on.
    session_ms = group_context.configuration.session_timeout_ms
    timers: list[SetTimer | CancelTimer] = [
        SetTimer(key=session_timer(group.group_id, after.member_id), deadline_ms=now_ms + session_ms)
    ]
    timers.extend(
        revocation_timers(
            group.group_id,
            before,
            after,
            is_same_demand=before.pending_revocation == after.pending_revocation,
            rebalance_timeout_ms=after.metadata.rebalance_timeout_ms,
            now_ms=now_ms,
        )
    )
    return timers


def epoch_reason(
    before: StreamsGroupMetadataValue, after: StreamsGroupMetadataValue, *, joined: bool, member_changed: bool
) -> str:
    """Return the triggers of a new epoch, comma-separated: all differences of `after`.

    Args:
        before: the group's metadata with the old epoch.
        after: the same with the new epoch.
        joined: whether a new member caused it.
        member_changed: whether the assignor sees something new of a known member, or a static member was replaced.
    """
    triggers = {
        "a member joined": joined,
        "a member changed": member_changed and not joined,
        "topics or their partition counts changed": before.metadata_hash != after.metadata_hash,
        "the topology became ready or not ready": before.validated_topology_epoch != after.validated_topology_epoch,
        "assignment settings changed": before.last_assignment_configs != after.last_assignment_configs,
    }
    return ", ".join(name for name, is_trigger in triggers.items() if is_trigger)


def topology_events(group: StreamsGroup, configured: ConfiguredTopology) -> tuple[CoordinatorEvent, ...]:
    """TopologyReady, TopologyNotReady, SourceTopicsOutgrown: what is new against the group's stored metadata."""
    topology, metadata = group.topology, group.metadata
    was_ready = topology is not None and metadata.validated_topology_epoch == topology.epoch
    if configured.status is not None and (was_ready or topology is None):
        return (_event("TopologyNotReady", group, configured.status),)
    events = [_event("TopologyReady", group)] if configured.is_ready and not was_ready else []
    if configured.unread is not None and configured.metadata_hash != metadata.metadata_hash:
        events.append(_event("SourceTopicsOutgrown", group, configured.unread))
    return tuple(events)


def _event(name: str, group: StreamsGroup, status: TopicStatus | None = None) -> CoordinatorEvent:
    details = () if status is None else (("reason", status.detail), ("status", status.code.name))
    return CoordinatorEvent(name=name, group_id=group.group_id, details=details)
