"""ConsumerGroupMember, its states, and the partitions it is assigned.

`Partitions` maps topic ids to sorted partitions, `PartitionEpochs` to partitions with the epoch of their assignment.
Neither is changed in place, neither has a topic without partitions, and topics are ordered by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TypeAlias
from uuid import UUID

from headrace.coordinator.modern import ModernGroupMember
from headrace.coordinator.records.schemas import (
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
    TopicPartitions,
)

__all__ = [
    "NO_METADATA",
    "NO_PARTITIONS",
    "ConsumerGroupMember",
    "MemberState",
    "PartitionEpochs",
    "Partitions",
    "contains_any",
    "merge_partitions",
    "partition_count",
    "partition_epochs_from_records",
    "partitions_from_records",
    "partitions_of",
    "partitions_to_records",
    "with_epochs",
    "without_epochs",
]

Partitions: TypeAlias = Mapping[UUID, tuple[int, ...]]
PartitionEpochs: TypeAlias = Mapping[UUID, Mapping[int, int]]
NO_PARTITIONS: Mapping[UUID, tuple[int, ...]] = {}


def partitions_of(given: Iterable[tuple[UUID | None, Iterable[int]]]) -> Partitions:
    """Return the partitions by topic id, from pairs in any order, a topic perhaps several times."""
    found: dict[UUID, set[int]] = {}
    for topic_id, partitions in given:
        # kio reads the zero id as None. A request may contain it; no topic has it.
        if topic_id is not None:
            found.setdefault(topic_id, set()).update(partitions)
    return {topic_id: tuple(sorted(found[topic_id])) for topic_id in sorted(found) if found[topic_id]}


def with_epochs(partitions: Partitions, epoch: int) -> PartitionEpochs:
    """Return the partitions, each with this epoch."""
    return {topic_id: dict.fromkeys(of_topic, epoch) for topic_id, of_topic in partitions.items()}


def without_epochs(assigned: PartitionEpochs) -> Partitions:
    """Return the partitions without their epochs."""
    return {topic_id: tuple(sorted(of_topic)) for topic_id, of_topic in assigned.items()}


def contains_any(assigned: PartitionEpochs, partitions: Partitions) -> bool:
    """Whether some partition is in both."""
    return any(
        not assigned[topic_id].keys().isdisjoint(of_topic)
        for topic_id, of_topic in partitions.items()
        if topic_id in assigned
    )


def merge_partitions(one: PartitionEpochs, other: PartitionEpochs) -> PartitionEpochs:
    """Return the union of both, ordered; `other` wins for partitions in both."""
    # The common case: nothing pending revocation, and no new mapping.
    if not other:
        return one
    return {
        topic_id: dict(sorted({**one.get(topic_id, {}), **other.get(topic_id, {})}.items()))
        for topic_id in sorted({*one, *other})
    }


def partition_count(partitions: PartitionEpochs | Partitions) -> int:
    """Return the number of partitions."""
    return sum(map(len, partitions.values()))


def partitions_to_records(partitions: Partitions) -> tuple[TopicPartitions, ...]:
    """Return partitions as records store them."""
    return tuple(TopicPartitions(topic_id=each, partitions=partitions[each]) for each in partitions)


def partitions_from_records(records: Iterable[TopicPartitions]) -> Partitions:
    """Return partitions as the coordinator keeps them."""
    return partitions_of((each.topic_id, each.partitions) for each in records)


def partition_epochs_from_records(records: Iterable[CurrentTopicPartitions], *, member_epoch: int) -> PartitionEpochs:
    """Return partitions with their assignment epochs.

    Where epochs are missing or do not match, the member's epoch is used (0 for a member that is away).
    """
    found: dict[UUID, dict[int, int]] = {}
    stand_in = max(member_epoch, 0)
    for each in records:
        # Records before Kafka 4.3 have no epochs of partitions (KIP-1251). The member's epoch is the newest that they
        # can have.
        known = each.assignment_epochs
        if known is None or len(known) != len(each.partitions):
            known = (stand_in,) * len(each.partitions)
        if each.partitions:
            found.setdefault(each.topic_id, {}).update(zip(each.partitions, known, strict=True))
    return {topic_id: dict(sorted(found[topic_id].items())) for topic_id in sorted(found)}


NO_METADATA = ConsumerGroupMemberMetadataValue(client_id="", client_host="", subscribed_topic_regex="")


class MemberState(IntEnum):
    """Numbers of the current assignment record; those of streams groups are others."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        # A newer broker may have written a state that is not known here: it must not keep the log from being loaded.
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember(ModernGroupMember):
    """Hard state of a member: its metadata record and its current assignment record. A static member that left for a
    while has STATIC_LEAVE_EPOCH."""

    metadata: ConsumerGroupMemberMetadataValue = NO_METADATA
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)

    @property
    def regex(self) -> str | None:
        """The regular expression it subscribes to; an empty one is none."""
        return self.metadata.subscribed_topic_regex or None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.metadata.classic_member_metadata is not None

    @property
    def is_stable(self) -> bool:
        """Whether it has what its target says, or does not know of a newer target yet."""
        return self.state is MemberState.STABLE

    @property
    def is_revoking(self) -> bool:
        """Whether it has been asked to revoke something and has not confirmed it."""
        return self.state is MemberState.UNREVOKED_PARTITIONS

    def with_assignment(
        self,
        *,
        epoch: int,
        state: MemberState,
        assigned: PartitionEpochs,
        pending_revocation: PartitionEpochs | None = None,
    ) -> ConsumerGroupMember:
        """Return the member after one step. Its previous epoch is the present one, even if that stays (as in Kafka)."""
        return replace(
            self,
            member_epoch=epoch,
            # So a member whose reply was lost may repeat its heartbeat with the former epoch once.
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation or {},
        )
