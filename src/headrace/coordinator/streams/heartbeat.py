"""StreamsGroupHeartbeat (API 88; KIP-1071, assignment interval KIP-1263): a member joins or heartbeats.

Steps of a heartbeat, one function each (Kafka: `GroupMetadataManager.streamsGroupHeartbeat`):
  1 validate the request            heartbeat_messages
  2 find or create the member       fencing by epoch; a lost reply is tolerated; static members (shared rules: `modern`)
  3 update the member               what the request changes
  4 initialize the topology         the first one stays; another is refused
  5 configure the topics            ready, or a status for every member
  6 bump the group epoch            when anything above changed what the assignor sees
  7 target assignment               now, or by a named timer
  8 current assignment              current_assignment: revoke first, then assign
  9 reply                           heartbeat_messages

Deliberate differences from Kafka 4.3.1:
- the initial delay and the assignment interval have timers that compute the target when they fire;
- topology, shutdown request and endpoint epoch of the very first heartbeat are kept;
- an endpoint without configured topics gets empty lists instead of an error;
- a known member that joins again does not count against the maximum group size (as Kafka 4.4);
- the reply repeats the tasks when the member's epoch or its owned tasks show that it has not heard of them;
- an owned task that the topics no longer have is forgiven as long as the member was assigned it;
- a grown source topic leaves tasks with state as they are, with a status (`configured_topology.retain_tasks`);
- a member whose topology is older than the group's is given no tasks.

**Fast path** of heartbeats that change nothing: the same request bytes get the same reply bytes again. A rule is a
function of the request, the caller, the group's hard and soft state, the settings, the image and the time. If its
result had no records, events, topics to create or soft changes, and no timer but the member's own session, then none of
that changed, and the next such heartbeat has the same reply as long as nothing does. Changes are counted by
`StreamsGroupSoftState.version`: the shard raises it with every replayed record of the group (except committed offsets),
soft change, setting, image, load, and timer of the group that is set, cancelled or fires.

Time alone changes a reply while an assignment is due, so such a heartbeat is not repeatable. `is_repeatable` is the
only eligibility predicate. Checks before the rules (authorization, quotas) are not known here: the cache of replies in
the broker is keyed by what those checks depend on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from headrace.coordinator.assignors.task_assignor import Task, TasksTuple
from headrace.coordinator.modern import (
    JOIN_EPOCH,
    UNCHANGED_TIMEOUT_MS,
    Admission,
    cancel_replaced_member_timers,
    check_epoch,
    check_released,
    find_member,
    heartbeat_events,
    replace_member,
)
from headrace.coordinator.records.schemas import (
    Endpoint,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTopologyValue,
)
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
    Timer,
)
from headrace.coordinator.streams import records
from headrace.coordinator.streams.configured_topology import ConfiguredSubtopology, ConfiguredTopology
from headrace.coordinator.streams.current_assignment import reconcile
from headrace.coordinator.streams.group import NO_TASKS, StreamsGroup
from headrace.coordinator.streams.group_context import (
    GroupContext,
    MemberTaskOffsets,
    StreamsGroupSoftState,
    epoch_reason,
    initial_delay_timer,
    interval_timer,
    member_timers,
    reported_offsets,
    topology_events,
)
from headrace.coordinator.streams.heartbeat_messages import (
    heartbeat_reply,
    is_same_topology,
    owned_tasks,
    statuses,
    topology_of,
)
from headrace.coordinator.streams.internal_topics import StatusCode, TopicStatus
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.target_assignment import compute_target, interval_end_ms
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m
from headrace.protocol.messages import streams_group_heartbeat_response as replies

__all__ = [
    "RepeatableHeartbeat",
    "StreamsGroupAdmission",
    "admit_member",
    "is_relevant_to_assignor",
    "is_repeatable",
    "needs_new_target",
    "process_heartbeat",
    "update_member",
]

StreamsGroupAdmission: TypeAlias = Admission[StreamsGroup, StreamsGroupMember]


_UNCHANGED_TIMEOUT = from_ms(UNCHANGED_TIMEOUT_MS)
_DELAYED_INITIALLY = TopicStatus(
    code=StatusCode.ASSIGNMENT_DELAYED,
    detail="Assignment delayed due to the configured initial rebalance delay.",
)
_DELAYED_BY_INTERVAL = TopicStatus(
    code=StatusCode.ASSIGNMENT_DELAYED,
    detail="Assignment delayed due to the configured assignment interval.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Step 7's answer for this member, and what comes with it."""

    epoch: int
    tasks: TasksTuple
    records: tuple[CoordinatorRecord, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    delay: TopicStatus | None = None


def process_heartbeat(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    request: m.StreamsGroupHeartbeatRequest,
    context: RequestContext,
    group_context: GroupContext,
) -> CoordinatorResult:
    """Process a heartbeat of a member that joins (epoch 0) or is in the group (epoch > 0).

    Args:
        group: the group; a new one if it does not exist yet.
        soft: its state that is not recorded.
        request: the heartbeat.
        context: the caller.
        group_context: settings, topics and time.

    Returns:
        Records to append, the reply, topics to create, timers and soft changes.

    Raises:
        CoordinatorError: the heartbeat is refused; nothing has changed.
    """
    # Steps 2 and 3. Everything that may refuse the request comes before the first record is built.
    owned = owned_tasks(request)
    admission = admit_member(group, request, owned, max_size=group_context.configuration.max_size)
    group, member = admission.group, admission.member
    updated = update_member(member, request, context)
    # Steps 4 and 5. `configured` is cached: computing it for every heartbeat of a large group would dominate its cost.
    topology = initialize_topology(group, request)
    configured = configure_topics(group, soft, topology, group_context)
    check_owned_tasks(member, request, owned, configured)
    # Steps 6 to 8 work on `updated`, the member as this request changes it, while the group is still as it was.
    offsets = reported_offsets(soft.task_offsets_of(member.member_id), request)
    member_changed = needs_new_target(admission, updated, request)
    metadata = bump_group_epoch(group, group_context, configured, member_changed=member_changed)
    target = target_assignment(
        group, updated, metadata, configured, group_context, soft.task_offsets_with(member.member_id, offsets)
    )
    reconciled = reconcile(group, updated, target=target.tasks, target_epoch=target.epoch, owned=owned)

    # The order of the records is Kafka's: tests compare logs byte by byte.
    written = [] if admission.replacement is None else [*admission.replacement.records]
    if updated.metadata != member.metadata:
        written.append(records.member_record(group.group_id, updated))
    if topology is not group.topology:
        written.append(records.topology_record(group.group_id, topology))
    if metadata is not group.metadata:
        written.append(records.group_metadata_record(group.group_id, metadata))
    written.extend(target.records)
    if reconciled is not updated:
        written.append(records.current_assignment_record(group.group_id, reconciled))

    # Soft state as it is after this heartbeat, for the reply. It is written once the records are (`soft=` below): if
    # the log refuses them, the member sends this heartbeat again and must find the group as it was.
    endpoints_changed = _endpoints_changed(member, reconciled)
    endpoint_epoch = soft.endpoint_epoch + endpoints_changed
    shutdown_requested_by = soft.shutdown_requested_by
    if shutdown_requested_by is None and request.shutdown_application:
        shutdown_requested_by = reconciled.member_id
    soft_changes = None
    if (
        endpoints_changed
        or shutdown_requested_by != soft.shutdown_requested_by
        or offsets is not soft.task_offsets_of(member.member_id)
        or admission.replaced_id is not None
    ):
        soft_changes = partial(
            soft.update,
            member.member_id,
            endpoints_changed=endpoints_changed,
            shutdown_requested_by=shutdown_requested_by,
            task_offsets=offsets,
            replaced_id=admission.replaced_id,
        )
    response = heartbeat_reply(
        member_id=reconciled.member_id,
        member_epoch=reconciled.member_epoch,
        configuration=group_context.configuration,
        statuses=statuses(
            reconciled.metadata,
            configured,
            delay=target.delay,
            shutdown_requested_by=shutdown_requested_by,
            required_tags=group_context.configuration.rack_aware_assignment_tags,
            api_version=context.api_version,
        ),
        tasks=reconciled.assigned.without_epochs() if _must_send_tasks(request, owned, member, reconciled) else None,
        endpoint_epoch=endpoint_epoch,
        endpoints=(
            None
            if endpoint_epoch == request.endpoint_information_epoch
            else _endpoints(group, soft, reconciled, configured)
        ),
    )
    return CoordinatorResult(
        records=tuple(written),
        replies=(Reply(token=context.token, response=response),),
        timers=(
            *cancel_replaced_member_timers(admission.group.group_id, admission.replaced_id, admission.member.member_id),
            *member_timers(group, member, reconciled, group_context),
            *target.timers,
        ),
        topics_to_create=configured.topics_to_create,
        soft=soft_changes,
        events=(
            *heartbeat_events(
                admission.group.group_id,
                admission.member.member_id,
                joined=admission.member.member_id not in admission.group.members,
                replaced_id=admission.replaced_id,
                bumped_to=_epoch_and_reason(admission, metadata, member_changed=member_changed),
                computed_for=target.epoch if target.records else None,
            ),
            *topology_events(admission.group, configured),
        ),
    )


def _epoch_and_reason(
    admission: StreamsGroupAdmission, metadata: StreamsGroupMetadataValue, *, member_changed: bool
) -> tuple[int, str] | None:
    """Return the new epoch and its reason; None when the epoch stayed, which is the common case."""
    group = admission.group
    if metadata is group.metadata:
        return None
    joined = admission.member.member_id not in group.members
    return metadata.epoch, epoch_reason(group.metadata, metadata, joined=joined, member_changed=member_changed)


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
    keeps_timeout = request.rebalance_timeout == _UNCHANGED_TIMEOUT
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
        rebalance_timeout_ms=known.rebalance_timeout_ms if keeps_timeout else to_ms(request.rebalance_timeout),
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


def initialize_topology(group: StreamsGroup, request: m.StreamsGroupHeartbeatRequest) -> StreamsGroupTopologyValue:
    """Step 4: the group's topology; the first member's becomes it. One with a lower epoch is stale and passes, any
    other that differs is INVALID_REQUEST."""
    # KIP-1071: the topology of the first member becomes the group's. A rolling update sends members with a newer
    # topology before the group may change (KIP-1071, "Topology updates"), which is not supported yet, as in Kafka 4.3.
    given = None if request.topology is None else topology_of(request.topology)
    if group.topology is None:
        if given is None:
            raise CoordinatorError(
                ErrorCode.invalid_request, f"Group {group.group_id} has no topology; the member must rejoin with one."
            )
        return given
    is_stale = given is None or given.epoch < group.topology.epoch
    if given is not None and not is_stale and not is_same_topology(given, group.topology):
        raise CoordinatorError(ErrorCode.invalid_request, "Topology updates are not supported yet.")
    return group.topology


def configure_topics(
    group: StreamsGroup,
    soft: StreamsGroupSoftState,
    topology: StreamsGroupTopologyValue,
    group_context: GroupContext,
) -> ConfiguredTopology:
    """Configure the topics (step 5). Raises STREAMS_INVALID_TOPOLOGY for a topology that no topics can satisfy."""
    configured = soft.configured_topology(group, topology, group_context.image)
    if configured.invalid is not None:
        raise CoordinatorError(ErrorCode.streams_invalid_topology, configured.invalid)
    return configured


def bump_group_epoch(
    group: StreamsGroup, group_context: GroupContext, configured: ConfiguredTopology, *, member_changed: bool
) -> StreamsGroupMetadataValue:
    """Bump the group epoch when the input of the assignor has changed (step 6); else return the same object."""
    # Four things are compared, exactly those that are part of the metadata record. A restart of the coordinator finds
    # the same record and comes to the same answer.
    configs = group_context.configuration.assignment_configs
    unchanged = (
        not member_changed
        and configured.metadata_hash == group.metadata.metadata_hash
        and configured.validated_epoch == group.metadata.validated_topology_epoch
        and configs == group.metadata.last_assignment_configs
    )
    if unchanged:
        return group.metadata
    return StreamsGroupMetadataValue(
        epoch=group.group_epoch + 1,
        metadata_hash=configured.metadata_hash,
        validated_topology_epoch=configured.validated_epoch,
        last_assignment_configs=configs,
    )


def target_assignment(
    group: StreamsGroup,
    member: StreamsGroupMember,
    metadata: StreamsGroupMetadataValue,
    configured: ConfiguredTopology,
    group_context: GroupContext,
    task_offsets: Mapping[str, MemberTaskOffsets],
) -> _Target:
    """Return the target of this member (step 7).

    During the initial delay no member has a target. After that it is the stored target, a new one, or the stored one
    again until the assignment interval is over.
    """
    # 1. Initial delay (`group.streams.initial.rebalance.delay.ms`): when an application starts, its instances join
    #    within seconds of each other. Assigning to the first one alone would move nearly all tasks again at once.
    configuration, now_ms = group_context.configuration, group_context.now_ms
    starts_delay = not group.members and configuration.initial_rebalance_delay_ms > 0
    if group_context.initial_delay_runs or starts_delay:
        timers: tuple[SetTimer, ...] = ()
        if not group_context.initial_delay_runs:
            end_ms = now_ms + configuration.initial_rebalance_delay_ms
            timers = (SetTimer(key=initial_delay_timer(group.group_id), deadline_ms=end_ms),)
        return _Target(epoch=group.assignment_epoch, tasks=NO_TASKS, timers=timers, delay=_DELAYED_INITIALLY)
    # 2. The stored target is current.
    stored = _Target(epoch=group.assignment_epoch, tasks=group.target_of(member.member_id))
    if group.assignment_epoch >= metadata.epoch:
        return stored
    # 3. It is not, but the assignor ran less than an assignment interval ago (KIP-1263). The member gets the old target
    #    and a status; the timer computes the new one, so a group in which many members join is assigned once per
    #    interval.
    end_of_interval_ms = interval_end_ms(group, configuration, now_ms)
    key = interval_timer(group.group_id)
    if end_of_interval_ms is not None:
        due = () if group_context.interval_timer_runs else (SetTimer(key=key, deadline_ms=end_of_interval_ms),)
        return replace(stored, timers=due, delay=_DELAYED_BY_INTERVAL)
    # 4. Compute it now, with this member as the heartbeat leaves it.
    computed = compute_target(
        group,
        epoch=metadata.epoch,
        configured=configured,
        assignment_configs=metadata.last_assignment_configs,
        assignor=group_context.assignor,
        now_ms=now_ms,
        task_offsets=task_offsets,
        joining=member,
    )
    return _Target(
        epoch=computed.epoch,
        tasks=computed.target_of(member.member_id),
        records=computed.records,
        timers=(CancelTimer(key=key),) if group_context.interval_timer_runs else (),
    )


def _endpoints_changed(before: StreamsGroupMember, after: StreamsGroupMember) -> bool:
    """Return whether clients that route queries by endpoint need new information."""
    endpoint = after.metadata.user_endpoint
    return endpoint != before.metadata.user_endpoint or (endpoint is not None and _tasks_changed(before, after))


def _tasks_changed(before: StreamsGroupMember, after: StreamsGroupMember) -> bool:
    return before.assigned is not after.assigned and (
        before.assigned.without_epochs() != after.assigned.without_epochs()
    )


def _must_send_tasks(
    request: m.StreamsGroupHeartbeatRequest,
    owned: TasksTuple | None,
    before: StreamsGroupMember,
    after: StreamsGroupMember,
) -> bool:
    """Return whether the reply carries the tasks: on a join, after a change, or if the last reply was lost."""
    # A reply without tasks means "unchanged", so it may only be sent to a member that has received the last change. An
    # old epoch shows that it has not; so does a list of owned tasks that differs (Kafka repeats the tasks only on a
    # join and on a change, and a member whose reply was lost waits for its next change).
    has_old_epoch = request.member_epoch != before.member_epoch
    owns_others = owned is not None and owned != after.assigned.without_epochs()
    return request.member_epoch == JOIN_EPOCH or has_old_epoch or owns_others or _tasks_changed(before, after)


def _endpoints(
    group: StreamsGroup, soft: StreamsGroupSoftState, member: StreamsGroupMember, configured: ConfiguredTopology
) -> tuple[replies.EndpointToPartitions, ...]:
    others = (group.members[each] for each in group.with_endpoint if each != member.member_id)
    return soft.endpoints.of((*others, member), configured)


class RepeatableHeartbeat:
    """Permission to repeat one reply; each repetition restarts the member's session. Implements `Repeatable`.

    The shard creates it, the broker's cache of replies keeps it.
    """

    __slots__ = ("_session", "_session_timeout_ms", "_soft", "_version")

    def __init__(self, soft: StreamsGroupSoftState, session: Timer, session_timeout_ms: int) -> None:
        self._soft = soft
        self._version = soft.version
        self._session = session
        self._session_timeout_ms = session_timeout_ms

    def renew(self, now_ms: int) -> bool:
        """Restart the member's session. False, without side effects, if the state changed: the rule has to run."""
        if self._soft.version != self._version:
            return False
        self._session.deadline_ms = now_ms + self._session_timeout_ms
        return True


def is_repeatable(result: CoordinatorResult, group: StreamsGroup, group_context: GroupContext) -> bool:
    """Whether the result of a heartbeat would be the same once more."""
    # What a repeated reply would leave out must be nothing at all. The session timer is the one effect that every
    # heartbeat has; `RepeatableHeartbeat.renew` restarts it.
    changes_nothing = (
        not result.records
        and not result.events
        and not result.topics_to_create
        and result.soft is None
        and len(result.replies) == 1
        and len(result.timers) == 1
        and isinstance(result.timers[0], SetTimer)
        and result.timers[0].key.kind == "session"
    )
    # If a target is due, the next heartbeat may compute it although nothing but the time has changed.
    waits_for_time = (
        group.group_epoch > group.assignment_epoch
        or group_context.initial_delay_runs
        or group_context.interval_timer_runs
    )
    return changes_nothing and not waits_for_time
