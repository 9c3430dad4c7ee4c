"""Keys and values of consumer groups in `__consumer_offsets` (KIP-848), as `schemas` has those of the other kinds.

Facts: the definitions `ConsumerGroup*.json` in kafka-group-coordinator 4.3.1. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from headrace.coordinator.records.codec import Int8, Int32, Int64, Tagged

__all__ = [
    "ClassicMemberMetadata",
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupCurrentMemberAssignmentValue",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupMemberMetadataValue",
    "ConsumerGroupMetadataKey",
    "ConsumerGroupMetadataValue",
    "ConsumerGroupPartitionMetadataKey",
    "ConsumerGroupPartitionMetadataValue",
    "ConsumerGroupRegularExpressionKey",
    "ConsumerGroupRegularExpressionValue",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ConsumerGroupTargetAssignmentMemberValue",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataValue",
    "CurrentTopicPartitions",
    "PartitionMetadataOfTopic",
    "TopicPartitions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataKey:
    """Type 3."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue:
    """`metadata_hash` 0 = no topic, or a record from before 4.1."""

    # The first fields are those of Kafka 4.0; what came later is a tagged field, so that older brokers skip it
    # (KIP-482).
    epoch: Int32
    metadata_hash: Annotated[Int64, Tagged(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataKey:
    """Type 4: written before 4.1, when there was no metadata hash."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadataOfTopic:
    """`racks`: partition and its racks, where they were known."""

    topic_id: UUID
    topic_name: str
    num_partitions: Int32
    racks: tuple[tuple[Int32, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupPartitionMetadataValue:
    """Topics of the group as a broker before 4.1 wrote them."""

    topics: tuple[PartitionMetadataOfTopic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey:
    """Type 5."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata:
    """Session timeout and protocols (name, subscription bytes) of a member that speaks the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: tuple[tuple[str, bytes], ...] = ()


_KAFKAS_DEFAULT = ClassicMemberMetadata(session_timeout_ms=0)
"""Kafka's reading of a record without the tag, since nullable structs have no null default in tagged fields.

So the tag is written even for None; without it Kafka would take the member for a classic one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue:
    """`subscribed_topic_names` is sorted, each name once."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None = None
    # A classic member's protocols are kept, so that the group can become a classic one again without asking its members
    # (online downgrade).
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tagged(0, absent=_KAFKAS_DEFAULT)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey:
    """Type 6."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue:
    """`assignment_timestamp` (ms): when the assignor last ran; 0 = never, or before 4.3."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tagged(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey:
    """Type 7."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """Partitions of one topic in a target."""

    topic_id: UUID
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue:
    """Target of one member."""

    topic_partitions: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey:
    """Type 8."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopicPartitions:
    """`assignment_epochs` runs beside `partitions`; None before Kafka 4.3 (KIP-1251)."""

    topic_id: UUID
    partitions: tuple[Int32, ...]
    assignment_epochs: Annotated[tuple[Int32, ...] | None, Tagged(0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue:
    """`state` is a number of `consumer.member.MemberState`."""

    member_epoch: Int32
    # Kept on disk: after a failover the repeated heartbeat of a lost reply must still be recognized.
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = ()
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey:
    """Type 16."""

    group_id: str
    regular_expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue:
    """Topics that match a regular expression. `version`: of the metadata image; `timestamp` (ms): of the match."""

    topics: tuple[str, ...]
    version: Int64
    timestamp: Int64
