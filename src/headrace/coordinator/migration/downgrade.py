"""A consumer group becomes a classic group: the last member that spoke the consumer protocol went, or a static member
that speaks the classic protocol took its place.

Written are the consumer group's tombstones and one GroupMetadata record: who stays has its target as its assignment,
and the generation is the group epoch. When members left it rebalances at once.

Where we differ from Kafka 4.3.1, on purpose: a group whose members' metadata cannot be read, or that have no protocol
in common, stays a consumer group; there the request that would downgrade it fails, and the member cannot leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from headrace.assignors.consumer_protocol import MalformedUserData
from headrace.coordinator.classic.group import ClassicGroupState, ClassicMembership, common_protocols
from headrace.coordinator.classic.member import CONSUMER_PROTOCOL_TYPE, ClassicMember
from headrace.coordinator.classic.rebalance import prepare_rebalance
from headrace.coordinator.classic_groups import ClassicGroups
from headrace.coordinator.configuration import allows_downgrade
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.consumer.timers import cancel_member_timers, regexes_timer
from headrace.coordinator.group_type import ShardState
from headrace.coordinator.metadata_image import TopicImage
from headrace.coordinator.migration.embedded_protocol import assignment_bytes
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult

__all__ = ["DowngradeRule"]


class DowngradeRule:
    """The way back of the groups of one shard; a `Downgrade`."""

    def __init__(self, state: ShardState, classic: ClassicGroups) -> None:
        self._state = state
        self._classic = classic

    def __call__(self, group: ConsumerGroup, leaving: Collection[str], *, now_ms: int) -> CoordinatorResult | None:
        """Return None if the group stays a consumer group.

        It does if a remaining member speaks its protocol, if none remains, or if the policy does not allow a downgrade.
        """
        staying = [group.members[each] for each in sorted(group.members) if each not in leaving]
        if not staying or not self.is_due(staying):
            return None
        reason = "the last members that spoke the consumer protocol left"
        return self.downgrade_group(group, staying, now_ms=now_ms, rebalance_reason=reason)

    def is_due(self, members: Collection[ConsumerGroupMember]) -> bool:
        """Whether a group with these members is to be a classic one, and may."""
        configuration = self._state.configuration
        return (
            all(member.uses_classic_protocol for member in members)
            and allows_downgrade(configuration.consumer_migration_policy)
            and len(members) <= configuration.classic_groups.max_size
        )

    def downgrade_group(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerGroupMember],
        *,
        now_ms: int,
        rebalance_reason: str | None,
        records: tuple[CoordinatorRecord, ...] = (),
    ) -> CoordinatorResult | None:
        """`group` goes, with `members` a classic group comes; the first leads. `records` come before all others.
        Without a reason to rebalance it is stable. None: it cannot be one."""
        topics = {topic.topic_id: topic for topic in self._state.image.topics.values()}
        try:
            membership = _membership(group, members, topics, now_ms)
        except MalformedUserData:
            return None
        if membership is None:
            return None
        transition = self._classic.transition(membership, now_ms, (*records, *group.tombstones()))
        transition.write_group()
        transition.add_event("GroupDowngraded", generation=str(membership.generation), members=str(len(members)))
        for member in tuple(membership.members.values()):
            transition.set_session_timer(member)
        if rebalance_reason is not None:
            prepare_rebalance(transition, rebalance_reason)
        result = transition.result()
        gone = [timer for each in sorted(group.members) for timer in cancel_member_timers(group.group_id, each)]
        gone.append(CancelTimer(key=regexes_timer(group.group_id)))
        return replace(result, timers=(*gone, *result.timers))


def _membership(
    group: ConsumerGroup, members: Sequence[ConsumerGroupMember], topics: Mapping[UUID, TopicImage], now_ms: int
) -> ClassicMembership | None:
    """Stable, each member with its target. None: they have no protocol in common. Raises MalformedUserData."""
    found = ClassicMembership(
        group_id=group.group_id,
        state=ClassicGroupState.STABLE,
        state_since_ms=now_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
    )
    for member in members:
        found.put(_classic_member(member))
    if not common_protocols(found.protocol_counts, len(members)):
        return None
    found.protocol = found.select_protocol()
    found.update_subscribed_topics()
    for each in tuple(found.members.values()):
        target, subscription = group.target_of(each.member_id), each.metadata(found.protocol)
        found.put(replace(each, assignment=assignment_bytes(target, topics, subscription)))
    return found


def _classic_member(member: ConsumerGroupMember) -> ClassicMember:
    """It speaks the classic protocol."""
    metadata = member.metadata
    classic = metadata.classic_member_metadata
    assert classic is not None
    return ClassicMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.supported_protocols,
    )
