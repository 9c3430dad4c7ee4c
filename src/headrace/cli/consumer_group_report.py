"""Output of kafka-consumer-groups for one group (Apache Kafka 4.3.1): its columns, their widths and order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.assignors.user_data_report import Role, UserDataReport
from headrace.cli.member_user_data import report_member_data
from headrace.cli.terminal import Column, kafka_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.client.admin import Admin
    from headrace.client.admin_groups import ConsumerGroupDescription, ConsumerMemberDescription

__all__ = [
    "PartitionRow",
    "member_lines",
    "offset_lines",
    "partition_rows",
    "state_lines",
    "user_data_lines",
    "user_data_of",
]

NOTHING = "-"
TopicPartition = tuple[str, int]
ROLES: tuple[Role, ...] = ("subscription", "assignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition that a member has, or that has a committed position; None where there is nothing to tell."""

    topic: str
    partition: int
    committed: int | None
    leader_epoch: int | None
    end: int | None
    member_id: str | None
    client_host: str | None
    client_id: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed


def partition_rows(admin: Admin, group: ConsumerGroupDescription) -> list[PartitionRow]:
    """Members with the most partitions first, unassigned partitions last."""
    committed = admin.list_group_offsets(group.group_id)
    # 1. Partitions by member, then by topic and partition. Kafka's tool sorts members by the number of their partitions
    #    and leaves the rest to a hash map; the member id makes the order repeatable.
    held = [(m, key) for m in sorted(group.members, key=_most_first) for key in sorted(m.assignment)]
    owned = {key for _, key in held}
    # 2. Then partitions with a position and without an owner, as after a member has left or a topic was unsubscribed.
    everything: list[tuple[ConsumerMemberDescription | None, TopicPartition]] = [*held]
    everything += [(None, key) for key in sorted(committed) if key not in owned]
    # 3. Ends for all of them in one request per broker. A partition without a leader has none: its row shows "-".
    ends = _ends(admin, [key for _, key in everything])
    rows = []
    for member, (topic, partition) in everything:
        position = committed.get((topic, partition))
        # -1 is the protocol's "no leader epoch was committed" (KIP-320).
        known_epoch = position is not None and position.leader_epoch >= 0
        rows.append(
            PartitionRow(
                topic=topic,
                partition=partition,
                committed=None if position is None else position.offset,
                leader_epoch=position.leader_epoch if position is not None and known_epoch else None,
                end=ends.get((topic, partition)),
                member_id=None if member is None else member.member_id,
                client_host=None if member is None else member.client_host,
                client_id=None if member is None else member.client_id,
            )
        )
    return rows


def _most_first(member: ConsumerMemberDescription) -> tuple[int, str]:
    return (-len(member.assignment), member.member_id)


def _ends(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the end offsets of the partitions that exist and have a leader."""
    wanted = list(partitions)
    topics = admin.describe_topics({topic for topic, _ in wanted}) if wanted else {}
    # ListOffsets for a missing partition would fail the whole description; positions of deleted topics stay in a group
    # until they expire.
    led = [key for key in wanted if key[0] in topics and topics[key[0]].partitions.get(key[1], -1) >= 0]
    found = admin.list_offsets(dict.fromkeys(led, "latest")) if led else {}
    return {key: at.offset for key, at in found.items()}


def offset_lines(group_id: str, rows: Sequence[PartitionRow], verbose: bool) -> list[str]:
    """GROUP TOPIC PARTITION [LEADER-EPOCH] CURRENT-OFFSET LOG-END-OFFSET LAG CONSUMER-ID HOST CLIENT-ID."""
    columns: list[Column] = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10)]
    columns += [("LEADER-EPOCH", 15)] if verbose else []
    columns += [("CURRENT-OFFSET", 15), ("LOG-END-OFFSET", 15), ("LAG", 15), ("CONSUMER-ID", 15), ("HOST", 15)]
    columns.append(("CLIENT-ID", 0))
    cells = [
        (
            group_id,
            row.topic,
            row.partition,
            *([_or_dash(row.leader_epoch)] if verbose else []),
            *map(_or_dash, (row.committed, row.end, row.lag, row.member_id, row.client_host, row.client_id)),
        )
        for row in rows
    ]
    return kafka_table(columns, cells, grow=("GROUP", "TOPIC", "CONSUMER-ID", "HOST"))


def member_lines(group: ConsumerGroupDescription, verbose: bool) -> list[str]:
    """GROUP CONSUMER-ID [GROUP-INSTANCE-ID] HOST CLIENT-ID #PARTITIONS, with epochs and partitions when verbose.

    Kafka's tool ends the short form with a blank. UPGRADED stands there while members of both protocols do.
    """
    # The column exists only where a member is static, as in ConsumerGroupCommand.printMembers.
    static = any(member.instance_id for member in group.members)
    kinds = {member.uses_consumer_protocol for member in group.members}
    # During an online migration between the protocols (KIP-848) a group of type consumer has members of both.
    mixed = {True, False} <= kinds
    columns: list[Column] = [("GROUP", 15), ("CONSUMER-ID", 15)]
    columns += [("GROUP-INSTANCE-ID", 17)] if static else []
    columns += [("HOST", 15), ("CLIENT-ID", 15), ("#PARTITIONS", 15)]
    if verbose:
        columns += [("CURRENT-EPOCH", 15), ("CURRENT-ASSIGNMENT", 20), ("TARGET-EPOCH", 15), ("TARGET-ASSIGNMENT", 20)]
        columns += [("UPGRADED", 0)] if mixed else []
    rows = []
    for member in group.members:
        row: list[object] = [group.group_id, member.member_id]
        row += [member.instance_id or ""] if static else []
        row += [member.client_host, member.client_id, len(member.assignment)]
        if verbose:
            row += [_or_dash(member.member_epoch), _partition_text(member.assignment)]
            row += [_or_dash(group.assignment_epoch), _partition_text(member.target_assignment or ())]
            row += [_boolean_text(member.uses_consumer_protocol)] if mixed else []
        rows.append(row)
    grow = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "CURRENT-ASSIGNMENT", "TARGET-ASSIGNMENT")
    lines = kafka_table(columns, rows, grow=grow)
    return lines if verbose else [f"{line} " for line in lines]


def user_data_lines(group: ConsumerGroupDescription) -> list[str]:
    """GROUP CONSUMER-ID ROLE USER-DATA, two rows for each member: its subscription and its assignment."""
    rows = [
        (group.group_id, member.member_id, report.role, report.text())
        for member in group.members
        for report in user_data_of(group, member)
    ]
    columns = [("GROUP", 15), ("CONSUMER-ID", 15), ("ROLE", 12), ("USER-DATA", 0)]
    return kafka_table(columns, rows, grow=("GROUP", "CONSUMER-ID"))


def user_data_of(group: ConsumerGroupDescription, member: ConsumerMemberDescription) -> list[UserDataReport]:
    """Return findings on user data in both directions; none for members of the consumer protocol (KIP-848)."""
    sent = (member.subscription_bytes, member.assignment_bytes)
    return [
        report_member_data("consumer", group.assignor, role, data)
        for role, data in zip(ROLES, sent, strict=True)
        if data is not None
    ]


def state_lines(group: ConsumerGroupDescription, coordinator: str, verbose: bool) -> list[str]:
    """GROUP COORDINATOR (ID) ASSIGNMENT-STRATEGY STATE [GROUP-EPOCH TARGET-ASSIGNMENT-EPOCH] #MEMBERS."""
    columns: list[Column] = [("GROUP", 15), ("COORDINATOR (ID)", 25), ("ASSIGNMENT-STRATEGY", 20), ("STATE", 20)]
    row: list[object] = [group.group_id, coordinator, group.assignor or NOTHING, group.state]
    if verbose:
        columns += [("GROUP-EPOCH", 15), ("TARGET-ASSIGNMENT-EPOCH", 25)]
        row += [_or_dash(group.group_epoch), _or_dash(group.assignment_epoch)]
    columns.append(("#MEMBERS", 0))
    return kafka_table(columns, [[*row, len(group.members)]], grow=("GROUP", "COORDINATOR (ID)"))


def _or_dash(value: object) -> object:
    return NOTHING if value is None else value


def _boolean_text(value: bool | None) -> str:
    return NOTHING if value is None else str(value).lower()


def _partition_text(partitions: Iterable[TopicPartition]) -> str:
    """`flights:0,2;delays:1`."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(str(partition))
    return ";".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items()) or NOTHING
