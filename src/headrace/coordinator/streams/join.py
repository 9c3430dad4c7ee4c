"""Steps 2 and 3 of a streams heartbeat: which member sent it, whether its epoch is valid, what it changed.

Static members: an instance id outlives the process that uses it (KIP-1071, as in Kafka 4.4). A static member that
leaves with epoch -2 keeps its place, its tasks and its session: no other member gets its tasks until it is back or its
session expires. A member that joins with its instance id takes its place under a new member id.

Deliberate differences from Kafka 4.4:
- the same member may rejoin without having left, like a dynamic member: the reply to its last join may be lost, and
  Kafka's UNRELEASED_INSTANCE_ID is fatal to a Java client;
- an instance id that is taken over by a member of the group bumps the group epoch, because the tasks which that member
  had before have no owner now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.records.schemas import Endpoint, StreamsGroupMemberMetadataValue
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.streams import records
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS, StreamsGroupMember
from headrace.coordinator.streams.topics.configured_topology import ConfiguredSubtopology, ConfiguredTopology
from headrace.coordinator.tasks import AssignedTasks, Task, TasksTuple
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import streams_group_heartbeat_request as m
from headrace.protocol.units import to_ms

__all__ = [
    "Admission",
    "Replacement",
    "admit_member",
    "check_owned_tasks",
    "check_released",
    "is_relevant_to_assignor",
    "replace_member",
    "static_member",
    "update_member",
    "with_static_leave",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A static member under its new member id. `group`: a copy of the group in which that happened already, for the
    rest of the heartbeat; the records make it true."""

    group: StreamsGroup
    member: StreamsGroupMember
    replaced_id: str
    records: tuple[CoordinatorRecord, ...]
    abandons_tasks: bool


def static_member(group: StreamsGroup, instance_id: str, member_id: str) -> StreamsGroupMember:
    """The member of that instance. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when it has another member id."""
    known_id = group.static_members.get(instance_id)
    if known_id is None:
        raise CoordinatorError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if known_id != member_id:
        raise CoordinatorError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
        )
    return group.members[known_id]


def check_released(known: StreamsGroupMember, instance_id: str, member_id: str) -> None:
    """Raises UNRELEASED_INSTANCE_ID while the instance's member is there."""
    if not known.is_away:
        raise CoordinatorError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {known.member_id} member.",
        )


def replace_member(group: StreamsGroup, known: StreamsGroupMember, member_id: str) -> Replacement:
    """The place of a member that is away goes to `member_id`, tasks and target included; it begins at epoch 0."""
    member = replace(known, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    group_id = group.group_id
    return Replacement(
        group=group.with_replaced_member(known, member),
        member=member,
        replaced_id=known.member_id,
        records=(
            *records.member_tombstones(group_id, known.member_id),
            records.member_record(group_id, member),
            records.target_assignment_record(group_id, member_id, group.target_of(known.member_id)),
            records.current_assignment_record(group_id, member),
        ),
        abandons_tasks=member_id in group.members and member_id != known.member_id,
    )


def with_static_leave(member: StreamsGroupMember) -> StreamsGroupMember:
    """As it is recorded when it left with -2: what it had to revoke is revoked; what it has was assigned at epoch 0."""
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        assigned=replace(member.assigned, active=dict.fromkeys(member.assigned.active, 0)),
        pending_revocation=AssignedTasks(),
    )


def is_relevant_to_assignor(before: StreamsGroupMemberMetadataValue, after: StreamsGroupMemberMetadataValue) -> bool:
    """Whether a static member's news are a new group epoch; those of other members always are."""

    def relevant(metadata: StreamsGroupMemberMetadataValue) -> tuple[object, ...]:
        return (metadata.topology_epoch, metadata.rack_id, metadata.client_tags, metadata.process_id)

    return relevant(before) != relevant(after)


_ABANDON = "The member must abandon all its partitions and rejoin."


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The member as it was before this heartbeat, in its group. After a static member's replacement both are as the
    replacement leaves them."""

    group: StreamsGroup
    member: StreamsGroupMember
    replacement: Replacement | None = None

    def needs_new_target(self, updated: StreamsGroupMember, request: m.StreamsGroupHeartbeatRequest) -> bool:
        """Whether what the member says anew is a new group epoch."""
        if self.replacement is not None and self.replacement.abandons_tasks:
            return True
        if request.instance_id is None:
            return updated.metadata != self.member.metadata
        return is_relevant_to_assignor(self.member.metadata, updated.metadata)


def admit_member(
    group: StreamsGroup, request: m.StreamsGroupHeartbeatRequest, owned: TasksTuple | None, *, max_size: int
) -> Admission:
    """Step 2: the stored member, or a new one on a join. Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
    GROUP_MAX_SIZE_REACHED; for a static member also UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID."""
    if request.member_epoch == JOIN_EPOCH:
        return _admit_joining(group, request, max_size)
    if request.instance_id is not None:
        member = static_member(group, request.instance_id, request.member_id)
    elif request.member_id in group.members:
        member = group.members[request.member_id]
    else:
        raise CoordinatorError(
            ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of group {group.group_id}."
        )
    _check_epoch(member, request.member_epoch, owned)
    return Admission(group=group, member=member)


def _admit_joining(group: StreamsGroup, request: m.StreamsGroupHeartbeatRequest, max_size: int) -> Admission:
    member_id, instance_id = request.member_id, request.instance_id
    known_id = None if instance_id is None else group.static_members.get(instance_id)
    if known_id is None and member_id not in group.members and len(group.members) >= max_size:
        raise CoordinatorError(
            ErrorCode.group_max_size_reached,
            f"The streams group has reached its maximum capacity of {max_size} members.",
        )
    if known_id is None or instance_id is None:
        member = group.members.get(member_id) or StreamsGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    known = group.members[known_id]
    if known_id == member_id and not known.is_away:
        return Admission(group=group, member=known)
    check_released(known, instance_id, member_id)
    replacement = replace_member(group, known, member_id)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def _check_epoch(member: StreamsGroupMember, received: int, owned: TasksTuple | None) -> None:
    """The current epoch passes; the previous one does when the member owns nothing that is not its own: it has not
    heard the last reply."""
    if received == member.member_epoch:
        return
    if received > member.member_epoch:
        relation = "greater"
    elif received == member.previous_member_epoch and owned is not None and member.assigned.contains_all(owned):
        return
    else:
        relation = "smaller"
    raise CoordinatorError(
        ErrorCode.fenced_member_epoch,
        f"The streams group member has a {relation} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.member_epoch}). {_ABANDON}",
    )


def update_member(
    member: StreamsGroupMember, request: m.StreamsGroupHeartbeatRequest, context: RequestContext
) -> StreamsGroupMember:
    """Step 3: null means unchanged, but for a joining member's endpoint; client id and host are always those of the
    request. The same object if nothing differs."""
    known = member.metadata
    timeout_ms = to_ms(request.rebalance_timeout)
    tags = request.client_tags
    endpoint = known.user_endpoint if request.member_epoch != JOIN_EPOCH else None
    if request.user_endpoint is not None:
        endpoint = Endpoint(host=request.user_endpoint.host, port=request.user_endpoint.port)
    metadata = StreamsGroupMemberMetadataValue(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT_MS else timeout_ms,
        topology_epoch=known.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=known.process_id if request.process_id is None else request.process_id,
        user_endpoint=endpoint,
        client_tags=known.client_tags if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
    )
    return member if metadata == known else replace(member, metadata=metadata)


def check_owned_tasks(
    member: StreamsGroupMember,
    request: m.StreamsGroupHeartbeatRequest,
    owned: TasksTuple | None,
    configured: ConfiguredTopology,
) -> None:
    """An owned task must exist, or be one that the member still has to give up; a subtopology that is named without any
    task must exist as well. Raises INVALID_REQUEST."""
    if owned is None or not configured.is_ready:
        return
    for listed in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for each in listed or ():
            if not each.partitions:
                _check_subtopology(each.subtopology_id, configured)
    for subtopology_id, partition in _unknown_tasks(member, (*owned.active, *owned.standby, *owned.warmup)):
        subtopology = _check_subtopology(subtopology_id, configured)
        if not 0 <= partition < subtopology.tasks:
            raise CoordinatorError(
                ErrorCode.invalid_request,
                f"Task {partition} for subtopology {subtopology_id} is invalid. "
                f"Number of tasks for this subtopology: {subtopology.tasks}",
            )


def _check_subtopology(subtopology_id: str, configured: ConfiguredTopology) -> ConfiguredSubtopology:
    subtopology = configured.subtopologies.get(subtopology_id)
    if subtopology is None:
        raise CoordinatorError(
            ErrorCode.invalid_request, f"Subtopology {subtopology_id} does not exist in the topology."
        )
    return subtopology


def _unknown_tasks(member: StreamsGroupMember, owned: Iterable[Task]) -> list[Task]:
    known = {
        task
        for tasks in (member.assigned, member.pending_revocation)
        for task in (*tasks.active, *tasks.standby, *tasks.warmup)
    }
    return [task for task in owned if task not in known]
