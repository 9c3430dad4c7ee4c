"""ConsumerGroup: hard state, changed only by `replay_*`, with indexes of partition holders and subscriptions.

Compaction may leave any subset of a group's records, so every replay creates what it needs and tolerates missing state.
Epochs start at 1, so the first join is group epoch 2 (Kafka 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.member import (
    NO_METADATA,
    NO_PARTITIONS,
    ConsumerGroupMember,
    MemberState,
    Partitions,
    partition_epochs_from_records,
    partitions_from_records,
)
from headrace.coordinator.metadata_image import MetadataImage, TopicImage, group_hash
from headrace.coordinator.modern import FIRST_EPOCH, ModernGroup
from headrace.coordinator.records.schemas import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["ConsumerGroup", "GroupState", "PartitionHolders", "Subscriptions"]


class PartitionHolders:
    """Partition → member id. Mutable: it is an index."""

    __slots__ = ("_of_topic",)

    def __init__(self) -> None:
        self._of_topic: dict[UUID, dict[int, str]] = {}

    def copy(self) -> PartitionHolders:
        other = PartitionHolders()
        other._of_topic = {topic_id: dict(holders) for topic_id, holders in self._of_topic.items()}
        return other

    def of_topic(self, topic_id: UUID) -> dict[int, str]:
        """Return the holders by partition. Do not change the result."""
        return self._of_topic.get(topic_id, {})

    def hold(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                self._of_topic.setdefault(topic_id, {}).update(dict.fromkeys(of_topic, member.member_id))

    def release(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                holders = self._of_topic.get(topic_id)
                if holders is None:
                    continue
                for partition in of_topic:
                    # Only the present holder's release frees a partition: after compaction the next holder's record may
                    # come first in the log.
                    if holders.get(partition) == member.member_id:
                        del holders[partition]
                if not holders:
                    del self._of_topic[topic_id]


class Subscriptions:
    """`names`, `regexes`: how many members subscribe to each. `resolved`: the topics behind a regular expression.

    Mutable: it is an index.
    """

    __slots__ = ("names", "regexes", "resolved")

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.regexes: dict[str, int] = {}
        self.resolved: dict[str, ConsumerGroupRegularExpressionValue] = {}

    def copy(self) -> Subscriptions:
        other = Subscriptions()
        other.names, other.regexes, other.resolved = dict(self.names), dict(self.regexes), dict(self.resolved)
        return other

    def change(self, before: ConsumerGroupMemberMetadataValue, after: ConsumerGroupMemberMetadataValue) -> None:
        """Replace a member's subscription `before` by `after`."""
        if before.subscribed_topic_names != after.subscribed_topic_names:
            _count(self.names, before.subscribed_topic_names, -1)
            _count(self.names, after.subscribed_topic_names, 1)
        if before.subscribed_topic_regex != after.subscribed_topic_regex:
            _count(self.regexes, filter(None, (before.subscribed_topic_regex,)), -1)
            _count(self.regexes, filter(None, (after.subscribed_topic_regex,)), 1)

    def changed(
        self, before: ConsumerGroupMemberMetadataValue, after: ConsumerGroupMemberMetadataValue
    ) -> Subscriptions:
        """Return a copy after the change, without regular expressions that no member subscribes to any more."""
        copy = self.copy()
        copy.change(before, after)
        left = before.subscribed_topic_regex
        if left and left != after.subscribed_topic_regex and left not in copy.regexes:
            # The last subscriber is gone, and with it the reason for the resolved topics; its tombstone is written in
            # the same step.
            copy.resolved.pop(left, None)
        return copy

    def resolve(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.resolved.pop(regex, None)
        else:
            self.resolved[regex] = value

    def topics(self) -> dict[str, None]:
        """Return all subscribed topics, existing or not."""
        found = dict.fromkeys(self.names)
        for value in self.resolved.values():
            found.update(dict.fromkeys(value.topics))
        return found

    def topics_of(self, member: ConsumerGroupMember, image: MetadataImage) -> dict[str, TopicImage]:
        """Return the existing topics of a member's subscription, in the order of names."""
        # A member has names or an expression, a client of the wire may send both: the union counts.
        names = dict.fromkeys(member.metadata.subscribed_topic_names)
        resolved = self.resolved.get(member.regex or "")
        if resolved is not None:
            names.update(dict.fromkeys(resolved.topics))
        return {name: image.topics[name] for name in sorted(names) if name in image.topics}

    def metadata_hash(self, image: MetadataImage) -> int:
        return group_hash(image.topics[name] for name in self.topics() if name in image.topics)

    def is_homogeneous(self, members: int) -> bool:
        """Whether all members read the same, as far as an assignor cares; Kafka's rule, which takes a group in which
        some use names and some a regular expression as different whatever they come to."""
        # 1. Names alone: each is counted once per member.
        if not self.regexes:
            return all(count == members for count in self.names.values())
        # 2. Expressions: the same one for all, and no names beside it.
        if next(iter(self.regexes.values())) != members or self.names:
            return False
        of_regex: dict[str, int] = {}
        for value in self.resolved.values():
            _count(of_regex, value.topics, 1)
        # 3. A topic behind two expressions would be counted for both.
        return all(count == 1 for count in of_regex.values())


def _count(counts: dict[str, int], names: Iterable[str], step: int) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + step
        if counts[name] == 0:
            del counts[name]


_UNWRITTEN = ConsumerGroupMetadataValue(epoch=FIRST_EPOCH)
"""Metadata of a group without a metadata record. Compared by identity: an upgraded group may have epoch 1 as well."""


class GroupState(Enum):
    """Derived, never stored; in this order of precedence. Values are the names on the wire."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerGroup(ModernGroup[ConsumerGroupMember, Partitions]):
    """Mutable, because replay writes it. `target` holds a member's target from its first assignment on.
    `static_members`: instance id → member id. `partition_metadata`: what a broker before 4.1 wrote, until it is taken
    out with the next group epoch."""

    group_id: str
    metadata: ConsumerGroupMetadataValue = _UNWRITTEN
    members: dict[str, ConsumerGroupMember] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    target_metadata: ConsumerGroupTargetAssignmentMetadataValue = ConsumerGroupTargetAssignmentMetadataValue(  # noqa: RUF009
        assignment_epoch=FIRST_EPOCH
    )
    holders: PartitionHolders = field(default_factory=PartitionHolders)
    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    static_members: dict[str, str] = field(default_factory=dict)
    partition_metadata: ConsumerGroupPartitionMetadataValue | None = None

    @property
    def group_epoch(self) -> int:
        return self.metadata.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.target_metadata.assignment_epoch

    @property
    def is_blank(self) -> bool:
        """Whether the group has no state: only tombstones are left of its records."""
        nothing = not (self.members or self.target or self.subscriptions.resolved)
        return nothing and self.metadata is _UNWRITTEN and self.assignment_epoch == FIRST_EPOCH

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, NO_PARTITIONS)

    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        # The target is older than the group: it will be computed by a heartbeat, at once or after the interval.
        if self.group_epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.STABLE if self.are_members_reconciled else GroupState.RECONCILING

    def preferred_assignor(self, order: Iterable[str], changed: ConsumerGroupMember | None = None) -> str | None:
        """Return the assignor that most members name; of equals, the first in `order`.

        `changed` stands in for the stored member. None: no member names an assignor of `order`.
        """
        members = self.members if changed is None else {**self.members, changed.member_id: changed}
        # A member may name an assignor that was taken out of `group.consumer.assignors` since; it has no vote.
        votes = dict.fromkeys(order, 0)
        for member in members.values():
            named = member.metadata.server_assignor
            if named is not None and named in votes:
                votes[named] += 1
        most = max(votes, key=votes.__getitem__, default=None)
        return most if most is not None and votes[most] else None

    # --- replay ---

    def replay_metadata(self, value: ConsumerGroupMetadataValue) -> None:
        self.metadata = value

    def replay_partition_metadata(self, value: ConsumerGroupPartitionMetadataValue | None) -> None:
        self.partition_metadata = value

    def replay_target_metadata(self, value: ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.target_metadata = value or ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=FIRST_EPOCH)

    def replay_target(self, member_id: str, value: ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        if value is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = partitions_from_records(value.topic_partitions)

    def replay_regular_expression(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        self.subscriptions.resolve(regex, value)

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the tombstones of the whole group, members included."""
        return records.group_tombstones(self.group_id, sorted(self.members), sorted(self.subscriptions.resolved))

    def hard_state(self) -> Iterator[CoordinatorRecord]:
        """Yield records that rebuild this group. Their order differs from the log's."""
        if self.metadata is not _UNWRITTEN:
            yield records.group_metadata_record(self.group_id, self.metadata)
        if self.partition_metadata is not None:
            key = ConsumerGroupPartitionMetadataKey(group_id=self.group_id)
            yield CoordinatorRecord(key=key, value=self.partition_metadata)
        yield records.target_assignment_metadata_record(
            self.group_id, epoch=self.assignment_epoch, timestamp_ms=self.target_metadata.assignment_timestamp
        )
        for regex in sorted(self.subscriptions.resolved):
            yield records.regular_expression_record(self.group_id, regex, self.subscriptions.resolved[regex])
        for member_id in sorted(self.members):
            member = self.members[member_id]
            if member.metadata is not NO_METADATA:
                yield records.member_record(self.group_id, member)
            yield records.current_assignment_record(self.group_id, member)
        for member_id in sorted(self.target):
            yield records.target_assignment_record(self.group_id, member_id, self.target[member_id])

    # --- what ModernGroup asks ---

    def _copy(self) -> ConsumerGroup:
        return replace(
            self,
            members=dict(self.members),
            target=dict(self.target),
            holders=self.holders.copy(),
            subscriptions=self.subscriptions.copy(),
            static_members=dict(self.static_members),
        )

    def _new_member(self, member_id: str) -> ConsumerGroupMember:
        return ConsumerGroupMember(member_id=member_id)

    def _metadata_of(self, member: ConsumerGroupMember | None) -> ConsumerGroupMemberMetadataValue:
        return NO_METADATA if member is None else member.metadata

    def _index_metadata(
        self,
        member_id: str,  # noqa: ARG002 - subscriptions are counted, not kept by member
        before: ConsumerGroupMemberMetadataValue,
        after: ConsumerGroupMemberMetadataValue | None,
    ) -> None:
        # Counts of subscribers, so that a heartbeat needs no look at all members to find the topics of the group.
        self.subscriptions.change(before, after or NO_METADATA)

    def _with_current(
        self, member: ConsumerGroupMember, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> ConsumerGroupMember:
        return replace(
            member,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=partition_epochs_from_records(value.assigned_partitions, member_epoch=value.member_epoch),
            pending_revocation=partition_epochs_from_records(
                value.partitions_pending_revocation, member_epoch=value.member_epoch
            ),
        )

    def _holders(self) -> PartitionHolders:
        return self.holders

    def _reset_holders(self) -> None:
        self.holders = PartitionHolders()
