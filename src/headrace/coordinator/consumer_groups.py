"""ConsumerGroups: the consumer groups of one shard, their soft state and the way from a request to its rule.

The rules are in the package `consumer`. See `group_registry.GroupType` for the interface to the shard.

ConsumerGroupDescribe (API 69; KIP-848) returns members, their subscriptions, assignments and targets. Version 1 adds
the protocol that each member speaks. A partition pending revocation is still assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias, cast
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from headrace.coordinator.assignors.partition_assignors import PartitionAssignor, RangeAssignor, UniformAssignor
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.configuration import ConsumerGroupConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.group_context import (
    Downgrade,
    GroupContext,
    MayDescribe,
    member_timers_after_load,
    regexes_timer,
)
from headrace.coordinator.consumer.heartbeat import (
    fence_member,
    process_heartbeat,
    process_leave,
    rebalance_timed_out,
    session_timed_out,
    validate_request,
)
from headrace.coordinator.consumer.member import ConsumerGroupMember, Partitions, merge_partitions, without_epochs
from headrace.coordinator.consumer.regular_expressions import ConsumerGroupSoftState, continue_resolution
from headrace.coordinator.group_registry import Group, ShardState
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.modern import JOIN_EPOCH
from headrace.coordinator.records.schemas import ConsumerGroupRegularExpressionKey
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult, SetTimer, TimerKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_describe_response, consumer_group_heartbeat_request
from headrace.protocol.messages import consumer_group_describe_response as described

__all__ = ["ConsumerGroups", "describe_error", "describe_group"]


_CLASSIC, _CONSUMER = 0, 1


def describe_group(
    group: ConsumerGroup, topics: Mapping[UUID, TopicImage], assignors: tuple[str, ...]
) -> described.DescribedGroup:
    """Return the description of a group. `topics` by id; partitions of deleted topics are left out."""
    return described.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=cast("GroupId", group.group_id),
        group_state=group.state().value,
        group_epoch=cast("i32", group.group_epoch),
        assignment_epoch=cast("i32", group.assignment_epoch),
        # None named, or a tie: the first configured one assigns, and is shown.
        assignor_name=group.preferred_assignor(assignors) or assignors[0],
        members=tuple(
            _described_member(group, group.members[member_id], topics) for member_id in sorted(group.members)
        ),
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
        assignor_name="",
        members=(),
    )


def _described_member(
    group: ConsumerGroup, member: ConsumerGroupMember, topics: Mapping[UUID, TopicImage]
) -> described.Member:
    metadata = member.metadata
    return described.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=cast("i32", member.member_epoch),
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=cast("tuple[TopicName, ...]", metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_assignment(without_epochs(merge_partitions(member.assigned, member.pending_revocation)), topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=cast("i8", _CLASSIC if member.uses_classic_protocol else _CONSUMER),
    )


def _assignment(partitions: Partitions, topics: Mapping[UUID, TopicImage]) -> described.Assignment:
    return described.Assignment(
        topic_partitions=tuple(
            described.TopicPartitions(
                topic_id=topic_id,
                topic_name=cast("TopicName", topics[topic_id].name),
                partitions=cast("tuple[i32, ...]", of_topic),
            )
            for topic_id, of_topic in partitions.items()
            # Topics are named by the image. A deleted one has no name any more; its partitions leave the assignment
            # with the next epoch.
            if topic_id in topics
        )
    )


Upgrade: TypeAlias = Callable[[ClassicGroup, GroupContext], tuple[ConsumerGroup, CoordinatorResult]]

_ASSIGNORS: tuple[PartitionAssignor, ...] = (UniformAssignor(), RangeAssignor())


class ConsumerGroups:
    """A `GroupType`. Mutable: soft state, which may vanish at a restart."""

    def __init__(self, state: ShardState, downgrade: Downgrade | None = None) -> None:
        self._state = state
        self._downgrade = downgrade
        self._soft: dict[str, ConsumerGroupSoftState] = {}
        self._seen_image: MetadataImage | None = None
        self._new_topics_version = 0
        self._by_id: tuple[MetadataImage | None, Mapping[UUID, TopicImage]] = (None, {})

    # --- requests ---

    def heartbeat(
        self,
        request: consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
        may_describe: MayDescribe | None = None,
        upgrade: Upgrade | None = None,
    ) -> CoordinatorResult:
        """Process ConsumerGroupHeartbeat (API 68).

        The member has an id, also one that joins. A classic group with members becomes its group by `upgrade`. Raises
        CoordinatorError.
        """
        group_id, registry = request.group_id, self._state.registry
        group_context = self.group_context(group_id, now_ms, may_describe)
        validate_request(request, context.api_version, tuple(group_context.assignors))
        # 1. A leave, 2. a heartbeat of a member, 3. a join: only a join may create a group, or change the type of an
        #    existing one.
        if request.member_epoch < JOIN_EPOCH:
            return process_leave(registry.consumer_group(group_id), request, context, group_context)
        if request.member_epoch > JOIN_EPOCH:
            if registry.get(group_id) is None:
                raise CoordinatorError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
            group = registry.consumer_group(group_id)
            return process_heartbeat(group, self.soft_state(group_id), request, context, group_context)
        known = registry.get(group_id)
        # 3a. A classic group with members: online upgrade (KIP-848), if its policy allows it. 3b. Anything else is
        #    created, or converted while it is empty.
        if upgrade is not None and isinstance(known, ClassicGroup) and not known.is_empty:
            group, conversion = upgrade(known, group_context)
        else:
            group, tombstones = registry.consumer_group_to_join(group_id)
            conversion = CoordinatorResult(records=tombstones)
        soft = self.soft_state(group_id)
        result = process_heartbeat(group, soft, request, context, group_context)
        # The group that the rule saw is not the one that replay creates: its soft state is kept under its name once the
        # records count.
        keep = partial(self._keep_soft_state, group_id, soft, then=result.soft)
        return conversion.followed_by(replace(result, soft=keep))

    def describe(
        self,
        group_ids: Iterable[str],
        context: RequestContext,  # noqa: ARG002 - a later version of the API answers by it
    ) -> tuple[consumer_group_describe_response.DescribedGroup, ...]:
        """Describe groups (API 69). A group that is missing or of another type carries GROUP_ID_NOT_FOUND."""
        return tuple(self._described(group_id) for group_id in group_ids)

    # --- what the shard asks ---

    def owns(self, group: Group) -> bool:
        return isinstance(group, ConsumerGroup)

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        for group in self._state.registry.consumer_groups():
            # Once, from the finished members: while the log is read, records come in any order that compaction left.
            group.rebuild_holders()
            yield from member_timers_after_load(group, self.group_context(group.group_id, now_ms))
            soft = self._soft.get(group.group_id)
            if soft is not None and soft.resolution is not None:  # its timer may have been lost with a failed append
                yield SetTimer(key=regexes_timer(group.group_id), deadline_ms=now_ms)
            elif soft is not None:
                soft.regexes_seen_version = None

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        group = self._state.registry.consumer_group(key.group_id)
        group_context = self.group_context(key.group_id, now_ms)
        if key.kind == "session":
            return session_timed_out(group, key.member_id, group_context)
        if key.kind == "rebalance":
            return rebalance_timed_out(group, key.member_id, group_context)
        if key.kind == "member-join":
            return fence_member(group, key.member_id, group_context, reason="it did not join again in time")
        if key.kind == "member-sync":
            return fence_member(group, key.member_id, group_context, reason="it did not ask for its assignment")
        if key.kind == "regexes":
            return continue_resolution(group, self.soft_state(key.group_id), group_context)
        return None

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:  # noqa: ARG002 - GroupType's
        """Do nothing: groups follow with the next heartbeat of a member, as in Kafka."""
        self._look_for_new_topics()
        return iter(())

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        return (CancelTimer(key=regexes_timer(group_id)),)

    def invalidate(self, group_id: str) -> None:
        """Do nothing: no answer is kept."""

    def invalidate_all(self) -> None:
        """Do nothing: no answer is kept."""

    def on_replayed(self, record: CoordinatorRecord) -> None:
        key = record.key
        group_id = getattr(key, "group_id", None)
        if group_id is None:
            return
        if isinstance(key, ConsumerGroupRegularExpressionKey) and record.value is not None:
            self.soft_state(group_id).regexes_seen_version = getattr(record.value, "version", None)
        has_gone = record.value is None and not isinstance(self._state.registry.get(group_id), ConsumerGroup)
        if has_gone:
            self._soft.pop(group_id, None)

    # --- parts ---

    def _keep_soft_state(
        self, group_id: str, soft: ConsumerGroupSoftState, *, then: Callable[[], None] | None = None
    ) -> None:
        """Keep the soft state of a group that exists since its first member's records were replayed."""
        self._soft[group_id] = soft
        if then is not None:
            then()

    def soft_state(self, group_id: str) -> ConsumerGroupSoftState:
        """Return the soft state of a group. That of a new group is kept once its first heartbeat was accepted."""
        known = self._soft.get(group_id)
        if known is None:
            known = ConsumerGroupSoftState()
            if isinstance(self._state.registry.get(group_id), ConsumerGroup):
                self._soft[group_id] = known
        return known

    def group_context(self, group_id: str, now_ms: int, may_describe: MayDescribe | None = None) -> GroupContext:
        state = self._state
        configuration = state.configuration.for_consumer_group(group_id)
        self._look_for_new_topics()
        return GroupContext(
            configuration=configuration,
            image=state.image,
            new_topics_version=self._new_topics_version,
            assignors=_chosen(configuration),
            now_ms=now_ms,
            regexes_timer_runs=state.timers.deadline_ms(regexes_timer(group_id)) is not None,
            may_describe=may_describe,
            downgrade=self._downgrade,
        )

    def _look_for_new_topics(self) -> None:
        """Resolve regular expressions again after topics were created; deleted topics are no reason (as in Kafka)."""
        image, seen = self._state.image, self._seen_image
        if image is seen:
            return
        known = {} if seen is None else seen.topics
        # By id, not by name: a topic that was deleted and created again is a new one for an expression.
        if seen is None or any(
            name not in known or known[name].topic_id != topic.topic_id for name, topic in image.topics.items()
        ):
            self._new_topics_version = image.version
        self._seen_image = image

    def _described(self, group_id: str) -> consumer_group_describe_response.DescribedGroup:
        try:
            group = self._state.registry.consumer_group(group_id)
        except CoordinatorError as error:
            return describe_error(group_id, error.code, error.message)
        configuration = self._state.configuration.for_consumer_group(group_id)
        return describe_group(group, self.topics_by_id(), configuration.assignors)

    def topics_by_id(self) -> Mapping[UUID, TopicImage]:
        image = self._state.image
        if self._by_id[0] is not image:
            # Once per image. A describe of many groups would otherwise build it for each.
            self._by_id = (image, {topic.topic_id: topic for topic in image.topics.values()})
        return self._by_id[1]


def _chosen(configuration: ConsumerGroupConfiguration) -> Mapping[str, PartitionAssignor]:
    known = {assignor.name: assignor for assignor in _ASSIGNORS}
    return {name: known[name] for name in configuration.assignors}
