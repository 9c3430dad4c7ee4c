"""StreamsGroups: the streams groups of one shard, their soft state and the way from a request to its rule.

The rules are in the package `streams`. See `group_registry.GroupType` for the interface to the shard.

StreamsGroupDescribe (API 89; KIP-1071) returns topology, members, their assignments and targets. Version 1 (Kafka 4.4)
adds the assignor's name, and the topology's description, which is not stored here (KIP-1331). During a rebalance
members ask for the description of the whole group again and again: a joiner to restore the state of its target ahead,
an owner to see whether the copy of a task is complete. A group of 1,000 members took 24 ms for each. A member's
description is made from three immutable values, so it is kept until one of them is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import cast

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i16, i32, i64, u16

from headrace.coordinator.assignors.task_assignor import Task, TaskAssignor, TasksTuple, by_subtopology
from headrace.coordinator.group_registry import Group, ShardState
from headrace.coordinator.modern import JOIN_EPOCH
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue, Subtopology, TopicInfo
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    CreatableTopic,
    SetTimer,
    TimerKey,
)
from headrace.coordinator.streams.configured_topology import ConfiguredSubtopology, ConfiguredTopology
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import (
    NO_OFFSETS,
    GroupContext,
    MemberTaskOffsets,
    StreamsGroupSoftState,
    initial_delay_timer,
    interval_timer,
)
from headrace.coordinator.streams.heartbeat import RepeatableHeartbeat, is_repeatable, process_heartbeat
from headrace.coordinator.streams.heartbeat_messages import validate_request
from headrace.coordinator.streams.leave_and_fence import process_leave, rebalance_timed_out, session_timed_out
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.target_assignment import assignment_due, on_context_change, timers_after_load
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import streams_group_describe_response, streams_group_heartbeat_request
from headrace.protocol.messages import streams_group_describe_response as described

__all__ = ["DescribedMembers", "StreamsGroups", "describe_error", "describe_group", "key_values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A description and the objects it was made from."""

    description: described.Member
    member: StreamsGroupMember
    target: TasksTuple
    offsets: MemberTaskOffsets


class DescribedMembers:
    """Descriptions of the members of one group. Mutable: a cache."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(self, group: StreamsGroup, task_offsets: Mapping[str, MemberTaskOffsets]) -> tuple[described.Member, ...]:
        """Return the descriptions in the order of member ids; the very same objects while nothing changed."""
        entries: dict[str, _Entry] = {}
        for member_id in sorted(group.members):
            member, target = group.members[member_id], group.target_of(member_id)
            offsets, known = task_offsets.get(member_id, NO_OFFSETS), self._entries.get(member_id)
            # Compared by identity: replay replaces these objects and never changes them.
            if (
                known is None
                or known.member is not member
                or known.target is not target
                or known.offsets is not offsets
            ):
                description = _described_member(member, target, offsets)
                known = _Entry(description=description, member=member, target=target, offsets=offsets)
            entries[member_id] = known
        # Only members of now: those that left are forgotten with this description.
        self._entries = entries
        return tuple([entry.description for entry in entries.values()])


def key_values(pairs: tuple[tuple[str, str], ...]) -> tuple[described.KeyValue, ...]:
    """Return tags or topic settings as the response lists them."""
    return tuple(described.KeyValue(key=key, value=value) for key, value in pairs)


def _described_member(member: StreamsGroupMember, target: TasksTuple, offsets: MemberTaskOffsets) -> described.Member:
    metadata = member.metadata
    endpoint = metadata.user_endpoint
    return described.Member(
        member_id=member.member_id,
        member_epoch=cast("i32", member.member_epoch),
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=cast("i32", metadata.topology_epoch),
        process_id=metadata.process_id,
        user_endpoint=None
        if endpoint is None
        else described.Endpoint(host=endpoint.host, port=cast("u16", endpoint.port)),
        client_tags=key_values(metadata.client_tags),
        task_offsets=_task_offsets(offsets.offsets),
        task_end_offsets=_task_offsets(offsets.end_offsets),
        assignment=_assignment(member.assigned.without_epochs()),
        target_assignment=_assignment(target),
        is_classic=False,
    )


def _task_offsets(offsets: Mapping[Task, int]) -> tuple[described.TaskOffset, ...]:
    return tuple(
        described.TaskOffset(subtopology_id=name, partition=cast("i32", partition), offset=cast("i64", offset))
        for (name, partition), offset in offsets.items()
    )


def _assignment(tasks: TasksTuple) -> described.Assignment:
    return described.Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(tasks: tuple[Task, ...]) -> tuple[described.TaskIds, ...]:
    return tuple(
        described.TaskIds(subtopology_id=name, partitions=cast("tuple[i32, ...]", partitions))
        for name, partitions in by_subtopology(tasks)
    )


_NOT_REQUESTED, _NOT_STORED = 0, 1


def describe_group(
    group: StreamsGroup,
    configured: ConfiguredTopology | None,
    *,
    task_offsets: Mapping[str, MemberTaskOffsets] = MappingProxyType({}),
    assignor_name: str | None = None,
    wants_description: bool = False,
    members: DescribedMembers | None = None,
) -> described.DescribedGroup:
    """Describe a group. Partition counts are the configured ones if the topology is ready, else those of the member.

    `members` keeps descriptions of members between calls.
    """
    return described.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=cast("GroupId", group.group_id),
        group_state=group.state().value,
        group_epoch=cast("i32", group.group_epoch),
        assignment_epoch=cast("i32", group.assignment_epoch),
        topology=None if group.topology is None else _topology(group.topology, configured),
        members=(members or DescribedMembers()).of(group, task_offsets),
        topology_description_status=cast("i8", _NOT_STORED if wants_description else _NOT_REQUESTED),
        assignor_name=assignor_name,
    )


def describe_error(group_id: str, code: ErrorCode, message: str) -> described.DescribedGroup:
    """Return a group with an error code."""
    return described.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state="",
        group_epoch=cast("i32", 0),
        assignment_epoch=cast("i32", 0),
        topology=None,
        members=(),
    )


def _topology(topology: StreamsGroupTopologyValue, configured: ConfiguredTopology | None) -> described.Topology:
    ready = configured.subtopologies if configured is not None and configured.is_ready else {}
    ordered = sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
    return described.Topology(
        epoch=cast("i32", topology.epoch),
        subtopologies=tuple(_subtopology(each, ready.get(each.subtopology_id)) for each in ordered),
    )


def _subtopology(subtopology: Subtopology, configured: ConfiguredSubtopology | None) -> described.Subtopology:
    changelogs: Iterable[TopicInfo | CreatableTopic] = subtopology.state_changelog_topics
    repartitions: Iterable[TopicInfo | CreatableTopic] = subtopology.repartition_source_topics
    if configured is not None:
        changelogs, repartitions = configured.changelog_topics, configured.repartition_source_topics
    # What the member asked for, also where the topic is created with the broker's default.
    asked = (*subtopology.state_changelog_topics, *subtopology.repartition_source_topics)
    factors = {topic.name: topic.replication_factor for topic in asked}
    return described.Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=cast("tuple[TopicName, ...]", tuple(sorted(subtopology.source_topics))),
        repartition_sink_topics=cast("tuple[TopicName, ...]", tuple(sorted(subtopology.repartition_sink_topics))),
        state_changelog_topics=_topics(changelogs, factors),
        repartition_source_topics=_topics(repartitions, factors),
    )


def _topics(
    topics: Iterable[TopicInfo | CreatableTopic], factors: Mapping[str, int]
) -> tuple[described.TopicInfo, ...]:
    return tuple(
        described.TopicInfo(
            name=cast("TopicName", topic.name),
            partitions=cast("i32", topic.partitions),
            replication_factor=cast("i16", factors[topic.name]),
            topic_configs=key_values(topic.configs if isinstance(topic, CreatableTopic) else topic.topic_configs),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )


_SECONDS_IN_INT32 = 2**31


class StreamsGroups:
    """A `GroupType`. Mutable: soft state, which may vanish at a restart."""

    def __init__(self, state: ShardState, assignor: TaskAssignor) -> None:
        self._state = state
        self._assignor = assignor
        self._soft: dict[str, StreamsGroupSoftState] = {}
        self._described_members: dict[str, DescribedMembers] = {}
        self._first_endpoint_epoch = 0

    # --- requests ---

    def heartbeat(
        self,
        request: streams_group_heartbeat_request.StreamsGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process StreamsGroupHeartbeat (API 88). Raises CoordinatorError."""
        validate_request(request)
        group_id = request.group_id
        registry = self._state.registry
        group_context = self._group_context(group_id, now_ms)
        soft = self.soft_state(group_id)
        if request.member_epoch < JOIN_EPOCH:
            group = registry.streams_group(group_id)
            return process_leave(group, soft, request, context, group_context)
        if request.member_epoch > JOIN_EPOCH:
            group = registry.streams_group(group_id)
            result = process_heartbeat(group, soft, request, context, group_context)
            return self._with_repeatable(result, group, soft, group_context)
        group, conversion = registry.streams_group_to_join(group_id)
        result = process_heartbeat(group, soft, request, context, group_context)
        # Kafka keeps what a first heartbeat stores softly in an object that is thrown away: replay makes another group.
        # A lone first member then gets its tasks only with its next heartbeat, 5 s later. Here the soft state is
        # registered under the group's id once the records are replayed.
        keep = partial(self._keep_soft_state, group_id, soft, then=result.soft)
        return replace(result, records=(*conversion, *result.records), soft=keep)

    def describe(
        self,
        group_ids: Iterable[str],
        context: RequestContext,  # noqa: ARG002 - a later version of the API answers by it
        *,
        wants_description: bool = False,
    ) -> tuple[streams_group_describe_response.DescribedGroup, ...]:
        """Describe groups (API 89). A group that is missing or of another type carries GROUP_ID_NOT_FOUND."""
        return tuple(self._described(group_id, wants_description=wants_description) for group_id in group_ids)

    # --- what the shard asks ---

    def owns(self, group: Group) -> bool:
        return isinstance(group, StreamsGroup)

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        # Seconds of the clock, so that the epoch is another one after a restart. If it began at 0 each time, as in
        # Kafka, a client could find its own old number and keep endpoints from before the restart.
        self._first_endpoint_epoch = (now_ms // 1000) % _SECONDS_IN_INT32
        for group in self._state.registry.streams_groups():
            group.rebuild_holders()
            yield from timers_after_load(group, self._group_context(group.group_id, now_ms))

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        group = self._state.registry.streams_group(key.group_id)
        soft, group_context = self.soft_state(key.group_id), self._group_context(key.group_id, now_ms)
        if key.kind == "session":
            return session_timed_out(group, soft, key.member_id, group_context)
        if key.kind == "rebalance":
            return rebalance_timed_out(group, soft, key.member_id, group_context)
        if key.kind in ("initial-delay", "assignment-interval"):
            return assignment_due(group, soft, group_context)
        return None  # of another kind of group that had this id

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        for group in self._state.registry.streams_groups():
            soft, group_context = self.soft_state(group.group_id), self._group_context(group.group_id, now_ms)
            result = on_context_change(group, soft, group_context)
            if result is not None:
                yield result

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        return (CancelTimer(key=initial_delay_timer(group_id)), CancelTimer(key=interval_timer(group_id)))

    def invalidate(self, group_id: str) -> None:
        soft = self._soft.get(group_id)
        if soft is not None:
            soft.invalidate_replies()

    def invalidate_all(self) -> None:
        for soft in self._soft.values():
            soft.invalidate_replies()

    def on_replayed(self, record: CoordinatorRecord) -> None:
        group_id = getattr(record.key, "group_id", None)
        # Offsets are the most frequent records. They do not make replies invalid.
        if group_id is None:  # a committed offset's key has `group`: no answer to a heartbeat depends on it
            return
        self.invalidate(group_id)
        if record.value is None and self._state.registry.get(group_id) is None:
            self._soft.pop(group_id, None)
            self._described_members.pop(group_id, None)

    # --- parts ---

    def _keep_soft_state(
        self, group_id: str, soft: StreamsGroupSoftState, *, then: Callable[[], None] | None = None
    ) -> None:
        """Keep the soft state of a group that exists since its first member's records were replayed."""
        self._soft[group_id] = soft
        if then is not None:
            then()

    def soft_state(self, group_id: str) -> StreamsGroupSoftState:
        """Return the soft state of a group. That of a new group is kept once its first heartbeat was accepted."""
        known = self._soft.get(group_id)
        if known is None:
            known = StreamsGroupSoftState(endpoint_epoch=self._first_endpoint_epoch)
            if isinstance(self._state.registry.get(group_id), StreamsGroup):
                self._soft[group_id] = known
        return known

    def _group_context(self, group_id: str, now_ms: int) -> GroupContext:
        state = self._state
        return GroupContext(
            configuration=state.configuration.for_streams_group(group_id),
            image=state.image,
            assignor=self._assignor,
            now_ms=now_ms,
            initial_delay_runs=state.timers.deadline_ms(initial_delay_timer(group_id)) is not None,
            interval_timer_runs=state.timers.deadline_ms(interval_timer(group_id)) is not None,
        )

    def _with_repeatable(
        self, result: CoordinatorResult, group: StreamsGroup, soft: StreamsGroupSoftState, group_context: GroupContext
    ) -> CoordinatorResult:
        """Add the permission to repeat the answer, if the result has nothing else in it."""
        # Soft state that is not registered would never be marked as changed, so its replies would stay valid for ever.
        if not is_repeatable(result, group, group_context) or self._soft.get(group.group_id) is not soft:
            return result
        set_session = cast("SetTimer", result.timers[0])
        session = self._state.timers.timer(set_session.key)
        if session is None:
            return result
        repeatable = RepeatableHeartbeat(soft, session, set_session.deadline_ms - group_context.now_ms)
        return replace(result, repeatable=repeatable)

    def _described(self, group_id: str, *, wants_description: bool) -> streams_group_describe_response.DescribedGroup:
        try:
            group = self._state.registry.streams_group(group_id)
        except CoordinatorError as error:
            return describe_error(group_id, error.code, error.message)
        soft = self.soft_state(group_id)
        return describe_group(
            group,
            None if group.topology is None else soft.configured_topology(group, group.topology, self._state.image),
            task_offsets=soft.task_offsets,
            assignor_name=self._assignor.name,
            wants_description=wants_description,
            members=self._described_members.setdefault(group_id, DescribedMembers()),
        )
