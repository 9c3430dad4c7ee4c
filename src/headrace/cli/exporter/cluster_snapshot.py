"""A cluster at one moment, as far as the exporter reports it: brokers, partitions with their ends, groups of all types.

Groups are described by the API of their type. A consumer group of KIP-848 or a streams group of KIP-1071 has no members
for DescribeGroups, which is why exporters that use DescribeGroups alone report 0 members for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.cli.group_view import task_partitions
from headrace.client.admin_groups import CONSUMER_PROTOCOL
from headrace.client.membership.classic_task_leader import PROTOCOL_NAME
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.cli.exporter.name_filter import NameFilter
    from headrace.client.admin import Admin
    from headrace.client.admin_groups import ConsumerGroupDescription
    from headrace.client.admin_results import GroupListing, StreamsGroupDescription, StreamsMemberAssignment
    from headrace.client.cluster_metadata import TopicMetadata

__all__ = [
    "ClusterSnapshot",
    "GroupSnapshot",
    "MemberSnapshot",
    "PartitionSnapshot",
    "Selection",
    "take_snapshot",
]

TopicPartition = tuple[str, int]
Assignment = frozenset[tuple[str, str, int]]
"""(role, topic or subtopology, number) of all that a member has; roles are partition, active, standby and warmup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Groups and topics to report, and how many at most."""

    groups: NameFilter
    topics: NameFilter
    max_groups: int = 1_000
    max_partitions: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """One partition; the three offsets are None while it has no leader (-1)."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start: int | None = None
    end: int | None = None
    stable_end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """One member of a group. Epoch and target are None in classic groups."""

    member_id: str
    is_static: bool
    assignment: Assignment
    epoch: int | None = None
    target: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """One group with its committed offsets.

    `is_described` is False for types that only ListGroups knows here: share groups, and classic groups whose members
    are no consumers, such as Kafka Connect. They have a state and offsets, but no known members.
    `inputs` are the partitions that assigned members read. `description` has what a page shows beyond metrics: client
    ids, hosts, the topology.
    """

    group_id: str
    group_type: str
    state: str
    is_described: bool = True
    members: tuple[MemberSnapshot, ...] = ()
    epoch: int | None = None
    assignment_epoch: int | None = None
    inputs: frozenset[TopicPartition] = frozenset()
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    description: StreamsGroupDescription | ConsumerGroupDescription | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster.

    Attributes:
        brokers: Addresses by node id.
        partitions: The selected partitions.
        groups: The selected groups that could be described, by id.
        refused: Selected groups that the cluster did not describe, with the code of the error.
        left_out_groups: How many groups were beyond `Selection.max_groups`.
        left_out_partitions: How many partitions were beyond `Selection.max_partitions`.
        topics: Metadata of all topics, the selected ones and others.
        controller: Node id of the active controller, or of the broker that forwards to it.
        cluster_id: The id of the cluster.
    """

    brokers: Mapping[int, str]
    partitions: Mapping[TopicPartition, PartitionSnapshot]
    groups: Mapping[str, GroupSnapshot]
    refused: Mapping[str, str] = field(default_factory=dict)
    left_out_groups: int = 0
    left_out_partitions: int = 0
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    controller: int | None = None
    cluster_id: str | None = None


def take_snapshot(admin: Admin, selection: Selection) -> ClusterSnapshot:
    """Return the selected part of a cluster.

    Committed offsets are read before the ends of the log, so that a lag is never negative because of a record that
    arrived in between.

    Raises:
        CannotConnect: No broker answers.
        BrokerError: The cluster refuses a request about the whole cluster.
    """
    listed = [group for group in admin.list_groups() if selection.groups.selects(group.group_id)]
    groups: dict[str, GroupSnapshot] = {}
    refused: dict[str, str] = {}
    for group in listed[: selection.max_groups]:
        try:
            found = _read_group(admin, group)
        except BrokerError as error:
            # A group that was deleted since it was listed is no failure.
            if error.code != "group-missing":
                refused[group.group_id] = error.code
            continue
        groups[group.group_id] = _select_topics(found, selection.topics)
    metadata = admin.client.metadata(None)
    chosen = {name: topic for name, topic in sorted(metadata.topics.items()) if selection.topics.selects(name)}
    keys = [(name, partition) for name, topic in chosen.items() for partition in sorted(topic.partitions)]
    kept = keys[: selection.max_partitions]
    return ClusterSnapshot(
        brokers={node: str(address) for node, address in sorted(metadata.brokers.items())},
        partitions=_read_partitions(admin, chosen, kept),
        groups=groups,
        refused=refused,
        left_out_groups=max(0, len(listed) - selection.max_groups),
        left_out_partitions=len(keys) - len(kept),
        topics=metadata.topics,
        controller=metadata.controller,
        cluster_id=metadata.cluster_id,
    )


def _read_partitions(
    admin: Admin, topics: Mapping[str, TopicMetadata], keys: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionSnapshot]:
    keys = list(keys)
    # ListOffsets waits for a leader, so a partition without one would hold up all others.
    led = [key for key in keys if topics[key[0]].partitions[key[1]] >= 0]
    starts = admin.list_offsets(dict.fromkeys(led, "earliest"))
    # The last stable offset first: it must not seem to be beyond the end.
    stable = admin.list_offsets(dict.fromkeys(led, "latest"), isolation_level="read_committed")
    ends = admin.list_offsets(dict.fromkeys(led, "latest"))
    return {
        key: PartitionSnapshot(
            leader=topics[key[0]].partitions[key[1]],
            replicas=topics[key[0]].replicas.get(key[1], ()),
            in_sync=topics[key[0]].in_sync.get(key[1], ()),
            start=starts[key].offset if key in starts else None,
            end=ends[key].offset if key in ends else None,
            stable_end=stable[key].offset if key in stable else None,
        )
        for key in keys
    }


def _read_group(admin: Admin, listed: GroupListing) -> GroupSnapshot:
    kind = listed.group_type.lower()
    if kind == "share" or (kind == "classic" and listed.protocol_type not in ("", CONSUMER_PROTOCOL)):
        committed = {} if kind == "share" else _committed(admin, listed.group_id)
        return GroupSnapshot(
            group_id=listed.group_id, group_type=kind, state=listed.state, is_described=False, committed=committed
        )
    if kind == "streams":
        return _streams_group(
            admin.describe_streams_groups([listed.group_id])[listed.group_id], _committed(admin, listed.group_id)
        )
    # Brokers before 3.8 list no types; `describe_consumer_groups` finds out by itself.
    found = admin.describe_consumer_groups([listed.group_id])[listed.group_id]
    if found.assignor == PROTOCOL_NAME:
        streams = admin.try_describe_streams_groups([listed.group_id]).done.get(listed.group_id)
        if streams is not None:
            return _streams_group(streams, _committed(admin, listed.group_id))
    return _consumer_group(found, _committed(admin, listed.group_id))


def _committed(admin: Admin, group_id: str) -> dict[TopicPartition, int]:
    return {key: committed.offset for key, committed in admin.list_group_offsets(group_id).items()}


def _streams_group(group: StreamsGroupDescription, committed: Mapping[TopicPartition, int]) -> GroupSnapshot:
    is_classic = group.group_type == "classic"
    return GroupSnapshot(
        group_id=group.group_id,
        group_type=group.group_type,
        state=group.state,
        description=group,
        epoch=None if is_classic else group.group_epoch,
        assignment_epoch=None if is_classic else group.assignment_epoch,
        inputs=frozenset(
            key for member in group.members for key in task_partitions(group.topology, member.assignment.active)
        ),
        members=tuple(
            MemberSnapshot(
                member_id=member.member_id,
                is_static=member.instance_id is not None,
                epoch=None if is_classic else member.member_epoch,
                assignment=_tasks(member.assignment),
                target=None if is_classic else _tasks(member.target_assignment),
            )
            for member in group.members
        ),
        committed=committed,
    )


def _tasks(assignment: StreamsMemberAssignment) -> Assignment:
    roles = {"active": assignment.active, "standby": assignment.standby, "warmup": assignment.warmup}
    return frozenset(
        (role, subtopology, number)
        for role, tasks in roles.items()
        for subtopology, numbers in tasks.items()
        for number in numbers
    )


def _consumer_group(group: ConsumerGroupDescription, committed: Mapping[TopicPartition, int]) -> GroupSnapshot:
    return GroupSnapshot(
        group_id=group.group_id,
        group_type=group.group_type,
        state=group.state,
        description=group,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        inputs=frozenset(key for member in group.members for key in member.assignment),
        members=tuple(
            MemberSnapshot(
                member_id=member.member_id,
                is_static=member.instance_id is not None,
                epoch=member.member_epoch,
                assignment=_partitions(member.assignment),
                target=None if member.target_assignment is None else _partitions(member.target_assignment),
            )
            for member in group.members
        ),
        committed=committed,
    )


def _partitions(assignment: Iterable[TopicPartition]) -> Assignment:
    return frozenset(("partition", topic, number) for topic, number in assignment)


def _select_topics(group: GroupSnapshot, topics: NameFilter) -> GroupSnapshot:
    return replace(
        group,
        committed={key: offset for key, offset in group.committed.items() if topics.selects(key[0])},
        inputs=frozenset(key for key in group.inputs if topics.selects(key[0])),
    )
