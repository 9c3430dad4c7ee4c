"""Keys and values of `__consumer_offsets` as dataclasses (kio does not carry them).

Facts: the definitions `common/message/*.json` in kafka-group-coordinator 4.3.1. Field names are Kafka's. Every value is
frozen and hashable, so hard state may hold it as it stands. Lists that Kafka sorts are sorted by `builders.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

__all__ = [
    "CopartitionGroup",
    "CurrentTaskIds",
    "Endpoint",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
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
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey:
    """Type 1; type 0, its older twin, is read as the same."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue:
    """`expire_timestamp` -1 = by retention; `topic_id` None = the commit named no id."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey:
    """Type 2: a classic group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a classic group; subscription and assignment are its protocol's own bytes."""

    member_id: str
    group_instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue:
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = -1
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMetadataKey:
    """Type 17."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMetadataValue:
    """`validated_topology_epoch` -1: the topics are not (yet) what the topology needs."""

    epoch: int
    metadata_hash: int
    validated_topology_epoch: int = -1
    last_assignment_configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMemberMetadataKey:
    """Type 19."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int = -1
    topology_epoch: int
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

    assignment_epoch: int
    assignment_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMemberKey:
    """Type 21."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIds:
    subtopology_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTargetAssignmentMemberValue:
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
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupCurrentMemberAssignmentValue:
    """`state` is a number of `streams.member.MemberState`."""

    member_epoch: int
    previous_member_epoch: int
    state: int
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
    partitions: int = 0
    replication_factor: int = 0
    topic_configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopartitionGroup:
    """Indices into the lists of the same subtopology."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtopology:
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

    epoch: int
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
