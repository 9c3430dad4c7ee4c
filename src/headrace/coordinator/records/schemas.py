"""Keys and values of all groups and of offsets in `__consumer_offsets`, as Kafka defines them.

Facts: the definitions `common/message/*.json` in kafka-group-coordinator 4.3.1 (kio does not carry them). Names and
order of fields are Kafka's; the annotations are the whole description of the bytes, see `codec`. Every value is
immutable and hashable, so hard state holds it as it is. Lists that Kafka sorts are sorted by the builders of records:
those of offsets and classic groups are at the end of this module, the others in `consumer.records` and
`streams.records` (Kafka's `GroupCoordinatorRecordHelpers` and `StreamsCoordinatorRecordHelpers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias
from uuid import UUID

from headrace.coordinator.records.codec import Int8, Int16, Int32, Int64, Tagged, UInt16, Versions
from headrace.coordinator.result import CoordinatorRecord

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
    "CopartitionGroup",
    "CurrentTaskIds",
    "CurrentTopicPartitions",
    "Endpoint",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "PartitionMetadataOfTopic",
    "RecordKey",
    "RecordValue",
    "StreamsGroupCurrentMemberAssignmentKey",
    "StreamsGroupCurrentMemberAssignmentValue",
    "StreamsGroupMemberMetadataKey",
    "StreamsGroupMemberMetadataValue",
    "StreamsGroupMetadataKey",
    "StreamsGroupMetadataValue",
    "StreamsGroupTargetAssignmentMemberKey",
    "StreamsGroupTargetAssignmentMemberValue",
    "StreamsGroupTargetAssignmentMetadataKey",
    "StreamsGroupTargetAssignmentMetadataValue",
    "StreamsGroupTopologyKey",
    "StreamsGroupTopologyValue",
    "Subtopology",
    "TaskIds",
    "TopicInfo",
    "TopicPartitions",
    "group_metadata_record",
    "group_metadata_tombstone",
    "offset_commit_record",
    "offset_commit_tombstone",
    "pending_offset_record",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Type 1; type 0, its older twin, is read as the same."""

    group: str
    topic: str
    partition: Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """`expire_timestamp` -1 = by retention; `topic_id` None = the commit named no id."""

    offset: Int64
    leader_epoch: Annotated[Int32, Versions(3)] = -1
    metadata: str = ""
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Versions(1, 1)] = -1
    topic_id: Annotated[UUID | None, Versions(4), Tagged(0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """Type 2: a classic group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a classic group; subscription and assignment are its protocol's own bytes."""

    member_id: str
    group_instance_id: Annotated[str | None, Versions(3)] = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Annotated[Int32, Versions(1)] = -1
    session_timeout_ms: Int32
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    """A generation of a classic group, with its members. `current_state_timestamp` in ms."""

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: Annotated[Int64, Versions(2)] = -1
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMetadataKey:
    """Type 17."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMetadataValue:
    """`validated_topology_epoch` -1: the topics are not (yet) what the topology needs."""

    epoch: Int32
    metadata_hash: Int64
    validated_topology_epoch: Annotated[Int32, Tagged(0)] = -1
    last_assignment_configs: Annotated[tuple[tuple[str, str], ...], Tagged(1)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMemberMetadataKey:
    """Type 19."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Host and port for interactive queries."""

    host: str
    port: UInt16


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMemberMetadataValue:
    """Metadata that a member of a streams group reports in its heartbeats."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32
    process_id: str
    user_endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMetadataKey:
    """Type 20."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMetadataValue:
    """`assignment_timestamp` (ms): when the assignor last ran; 0 = never, or before 4.3."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tagged(0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMemberKey:
    """Type 21."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIds:
    """Tasks of one subtopology in a target."""

    subtopology_id: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMemberValue:
    """Target of one member."""

    active_tasks: tuple[TaskIds, ...] = ()
    standby_tasks: tuple[TaskIds, ...] = ()
    warmup_tasks: tuple[TaskIds, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupCurrentMemberAssignmentKey:
    """Type 22."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTaskIds:
    """`assignment_epochs` runs beside `partitions`; only active tasks have them."""

    subtopology_id: str
    partitions: tuple[Int32, ...]
    assignment_epochs: Annotated[tuple[Int32, ...] | None, Tagged(0)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupCurrentMemberAssignmentValue:
    """`state` is a number of `streams.member.MemberState`."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    active_tasks: tuple[CurrentTaskIds, ...] = ()
    standby_tasks: tuple[CurrentTaskIds, ...] = ()
    warmup_tasks: tuple[CurrentTaskIds, ...] = ()
    active_tasks_pending_revocation: tuple[CurrentTaskIds, ...] = ()
    standby_tasks_pending_revocation: tuple[CurrentTaskIds, ...] = ()
    warmup_tasks_pending_revocation: tuple[CurrentTaskIds, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyKey:
    """Type 23."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """`partitions` 0 = derived from the topology; `replication_factor` 0 = the broker's default."""

    name: str
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopartitionGroup:
    """Indices into the lists of the same subtopology."""

    source_topics: tuple[Int16, ...] = ()
    source_topic_regex: tuple[Int16, ...] = ()
    repartition_source_topics: tuple[Int16, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
    """A subtopology as a member describes it. Topics with `partitions` 0 get a derived count."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyValue:
    """Order inside the lists is the member's and matters: another order is another topology (as in Kafka)."""

    epoch: Int32
    subtopologies: tuple[Subtopology, ...] = ()


RecordKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
RecordValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)


def offset_commit_record(group: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    return CoordinatorRecord(key=OffsetCommitKey(group=group, topic=topic, partition=partition), value=value)


def offset_commit_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the tombstone of a committed offset."""
    return CoordinatorRecord(key=OffsetCommitKey(group=group, topic=topic, partition=partition), value=None)


def pending_offset_record(
    key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int, producer_epoch: int = -1
) -> CoordinatorRecord:
    """Return the record of an offset in a transaction; it counts once the transaction commits."""
    return CoordinatorRecord(key=key, value=value, producer_id=producer_id, producer_epoch=producer_epoch)


def group_metadata_record(group: str, value: GroupMetadataValue) -> CoordinatorRecord:
    """Return the record of a classic group."""
    return CoordinatorRecord(key=GroupMetadataKey(group=group), value=value)


def group_metadata_tombstone(group: str) -> CoordinatorRecord:
    """Return the tombstone of a classic group."""
    return CoordinatorRecord(key=GroupMetadataKey(group=group), value=None)


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
