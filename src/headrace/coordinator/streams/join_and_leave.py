"""Members that join a streams group or heartbeat (steps 2 and 3 of a heartbeat), leave it, or are fenced by a timeout.

Which member sent a heartbeat, whether its epoch is valid, what it changed: the rules for epochs and static members are
shared, see `modern.heartbeat`.

A member leaves for good with epoch -1, temporarily with -2. The records of a removed member are the same in all cases.
The remaining members get a new target by the timer of the assignment interval, at once if the interval is over; Kafka
waits for the next heartbeat of a member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from headrace.coordinator.assignors.task_assignor import AssignedTasks, Task, TasksTuple
from headrace.coordinator.modern.group import JOIN_EPOCH, STATIC_LEAVE_EPOCH, UNCHANGED_TIMEOUT_MS
from headrace.coordinator.modern.heartbeat import (
    Admission,
    check_epoch,
    check_released,
    find_member,
    rebalance_timer,
    replace_member,
    session_timer,
)
from headrace.coordinator.records.schemas import Endpoint, StreamsGroupMemberMetadataValue
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorResult, Reply, SetTimer
from headrace.coordinator.streams import records
from headrace.coordinator.streams.configured_topology import ConfiguredSubtopology, ConfiguredTopology
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState, interval_timer
from headrace.coordinator.streams.heartbeat_messages import leave_reply
from headrace.coordinator.streams.member import MemberState, StreamsGroupMember
from headrace.coordinator.streams.target_assignment import interval_end_ms
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = [
    "StreamsGroupAdmission",
    "admit_member",
    "check_owned_tasks",
    "is_relevant_to_assignor",
    "needs_new_target",
    "process_leave",
    "rebalance_timed_out",
    "remove_member",
    "session_timed_out",
    "update_member",
    "with_static_leave",
]


StreamsGroupAdmission: TypeAlias = Admission[StreamsGroup, StreamsGroupMember]


def with_static_leave(member: StreamsGroupMember) -> StreamsGroupMember:
    """Return the record of a static member that left with epoch -2.

    It has nothing left to revoke, and its tasks count as assigned at epoch 0.
    """
    return replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        # The process that returns starts at epoch 0 under the same or another member id. An assignment epoch of 0 is
        # not above any epoch that it will have, so `may_commit` accepts its first commits.
        assigned=replace(member.assigned, active=dict.fromkeys(member.assigned.active, 0)),
        pending_revocation=AssignedTasks(),
    )


def is_relevant_to_assignor(before: StreamsGroupMemberMetadataValue, after: StreamsGroupMemberMetadataValue) -> bool:
    """Whether a static member's news are a new group epoch; those of other members always are."""

    def relevant(metadata: StreamsGroupMemberMetadataValue) -> tuple[object, ...]:
        return (metadata.topology_epoch, metadata.rack_id, metadata.client_tags, metadata.process_id)

    return relevant(before) != relevant(after)


def needs_new_target(
    admission: StreamsGroupAdmission,
    updated: StreamsGroupMember,
    request: m.StreamsGroupHeartbeatRequest,
) -> bool:
    """Return whether the changes of a member bump the group epoch.

    The changes of a dynamic member always do. Those of a static member do only if the assignor sees them: its client id
    and host change with every restart.
    """
    if admission.replacement is not None and admission.replacement.abandons_holdings:
        return True
    if request.instance_id is None:
        return updated.metadata != admission.member.metadata
    return is_relevant_to_assignor(admission.member.metadata, updated.metadata)


def admit_member(
    group: StreamsGroup, request: m.StreamsGroupHeartbeatRequest, owned: TasksTuple | None, *, max_size: int
) -> StreamsGroupAdmission:
    """Step 2: the stored member, or a new one on a join. Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
    GROUP_MAX_SIZE_REACHED; for a static member also UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID."""
    if request.member_epoch == JOIN_EPOCH:
        return _admit_joining(group, request, max_size)
    member = find_member(group, request.member_id, request.instance_id)
    check_epoch(
        member,
        request.member_epoch,
        group_type="streams",
        owns_nothing_else=lambda: owned is not None and member.assigned.contains_all(owned),
    )
    return Admission(group=group, member=member)


def _admit_joining(
    group: StreamsGroup, request: m.StreamsGroupHeartbeatRequest, max_size: int
) -> StreamsGroupAdmission:
    member_id, instance_id = request.member_id, request.instance_id
    known_id = None if instance_id is None else group.static_members.get(instance_id)
    # Only an additional member can exceed the limit. Kafka 4.2 and 4.3 also refuse a known member that rejoins a full
    # group, which then cannot recover from being fenced; 4.4 does not.
    if known_id is None and member_id not in group.members and len(group.members) >= max_size:
        raise CoordinatorError(
            ErrorCode.group_max_size_reached,
            f"The streams group has reached its maximum capacity of {max_size} members.",
        )
    if known_id is None or instance_id is None:
        member = group.members.get(member_id) or StreamsGroupMember(member_id=member_id)
        return Admission(group=group, member=member)
    known = group.members[known_id]
    # Kafka 4.4 answers UNRELEASED_INSTANCE_ID here too, which ends Java clients. A member id belongs to one process for
    # its life (KIP-1071), so this is the same member whose last join was not answered.
    if known_id == member_id and not known.is_away:
        return Admission(group=group, member=known)
    # Checked before anything moves to the new id. Kafka 4.4 first renames a cached target and then refuses: a refused
    # duplicate thereby empties the target of the legitimate member, which must then revoke all its tasks.
    check_released(known, instance_id, member_id)
    replacement = replace_member(group, known, member_id, records)
    return Admission(group=replacement.group, member=replacement.member, replacement=replacement)


def update_member(
    member: StreamsGroupMember, request: m.StreamsGroupHeartbeatRequest, context: RequestContext
) -> StreamsGroupMember:
    """Step 3: null means unchanged, but for a joining member's endpoint; client id and host are always those of the
    request. The same object if nothing differs."""
    known = member.metadata
    timeout_ms = to_ms(request.rebalance_timeout)
    tags = request.client_tags
    # A joining process may have stopped serving queries, so its join overwrites the endpoint even with null. All other
    # fields keep what is known.
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


def process_leave(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    request: m.StreamsGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """Process a leave, permanent (epoch -1) or temporary (epoch -2). The member's own epoch is not compared.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID if the instance id belongs to another member.
    """
    try:
        member = find_member(group, request.member_id, request.instance_id)
    except CoordinatorError:
        # As in Kafka, the shutdown request of a sender that is no member (any more) counts as well. A refusal has no
        # result that could carry the change, and no record whose append could fail, so it is written here.
        if request.shutdown_application:
            soft.request_shutdown(request.member_id)
        raise
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        result = _static_leave(group, member)
    else:
        result = remove_member(group, soft, request.member_id, group_context, event="MemberLeft", reason="leave")
    response = leave_reply(request.member_id, request.member_epoch)
    soft_changes = result.soft
    if request.shutdown_application:
        soft_changes = partial(_request_shutdown, soft, request.member_id, then=result.soft)
    return replace(result, replies=(Reply(token=context.token, response=response),), soft=soft_changes)


def _request_shutdown(soft: StreamsGroupSoftState, member_id: str, *, then: Callable[[], None] | None) -> None:
    soft.request_shutdown(member_id)
    if then is not None:
        then()


def _static_leave(group: StreamsGroup, member: StreamsGroupMember) -> CoordinatorResult:
    """Return the one record of a static leave.

    The session runs on from the last heartbeat; nothing is left to be revoked.
    """
    details = (("member_id", member.member_id), ("reason", "will be back"))
    return CoordinatorResult(
        records=(records.current_assignment_record(group.group_id, with_static_leave(member)),),
        timers=(CancelTimer(key=rebalance_timer(group.group_id, member.member_id)),),
        events=(CoordinatorEvent(name="StaticMemberAway", group_id=group.group_id, details=details),),
    )


def remove_member(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    member_id: str,
    group_context: GroupContext,
    *,
    event: str,
    reason: str,
) -> CoordinatorResult:
    """Remove a member that left or was fenced: its tombstones, a new group epoch, cancelled timers.

    Args:
        group: the group with the member.
        soft: state of the group that is not recorded.
        member_id: the member to remove.
        group_context: settings, topics and time.
        event: name of the event to log.
        reason: why it is removed, for the log.
    """
    group_id = group.group_id
    metadata = replace(group.metadata, epoch=group.group_epoch + 1)
    timers: list[SetTimer | CancelTimer] = [
        CancelTimer(key=session_timer(group_id, member_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]
    is_last = len(group.members) == 1
    # Kafka computes the next target with the next heartbeat of any member, up to a heartbeat interval later (5 s by
    # default). The timer does it at once, or at the end of a running assignment interval, so the tasks of a lost member
    # are not idle for that long.
    if is_last:
        if group_context.interval_timer_runs:
            timers.append(CancelTimer(key=interval_timer(group_id)))
    elif not group_context.initial_delay_runs:
        end_ms = interval_end_ms(group, group_context.configuration, group_context.now_ms)
        due_ms = group_context.now_ms if end_ms is None else end_ms
        timers.append(SetTimer(key=interval_timer(group_id), deadline_ms=due_ms))
    bumped = (("epoch", str(metadata.epoch)), ("reason", "a member left" if event == "MemberLeft" else reason))
    return CoordinatorResult(
        records=(
            *records.member_tombstones(group_id, member_id),
            records.group_metadata_record(group_id, metadata),
        ),
        timers=tuple(timers),
        soft=partial(
            soft.forget_member,
            member_id,
            is_last=is_last,
            had_endpoint=group.members[member_id].metadata.user_endpoint is not None,
        ),
        events=(
            CoordinatorEvent(name=event, group_id=group_id, details=(("member_id", member_id), ("reason", reason))),
            CoordinatorEvent(name="GroupEpochBumped", group_id=group_id, details=bumped),
        ),
    )


def session_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member without a heartbeat within its session."""
    if member_id not in group.members:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the member session expired"
    )


def rebalance_timed_out(
    group: StreamsGroup, soft: StreamsGroupSoftState, member_id: str, group_context: GroupContext
) -> CoordinatorResult | None:
    """Fence a member that has not revoked its tasks within its rebalance timeout."""
    member = group.members.get(member_id)
    # A static leave keeps the recorded state, so an away member may read UNREVOKED although nothing is pending.
    if member is None or member.state is not MemberState.UNREVOKED_TASKS or member.is_away:
        return None
    return remove_member(
        group, soft, member_id, group_context, event="MemberFenced", reason="the rebalance timeout expired"
    )
