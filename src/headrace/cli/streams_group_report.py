"""Output of kafka-streams-groups for one group (Apache Kafka 4.3.1): its columns and their widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.group_view import PartitionLag, lag_by_partition, task_partitions
from headrace.cli.terminal import kafka_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.admin import Admin
    from headrace.client.admin_results import StreamsGroupDescription, StreamsMemberDescription

__all__ = ["member_lines", "offset_lines", "state_lines"]

CLASSIC_TOPOLOGY_EPOCH = -1


def offset_lines(admin: Admin, group: StreamsGroupDescription, verbose: bool) -> list[str]:
    """GROUP TOPIC PARTITION OFFSET-LAG of the partitions of assigned tasks."""
    lags = lag_by_partition(admin, group, isolation_level="read_uncommitted")  # what Kafka's tool asks for
    owned = {key for member in group.members for key in task_partitions(group.topology, member.assignment.active)}
    rows = [(group.group_id, *key, *_positions(lags[key], verbose)) for key in sorted(owned) if key in lags]
    columns = [("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10)]
    if verbose:
        titles = ("CURRENT-OFFSET", "LEADER-EPOCH", "LOG-END-OFFSET", "OFFSET-LAG")
        columns += [(title, 15) for title in titles]
    else:
        columns.append(("OFFSET-LAG", 0))
    return kafka_table(columns, rows, grow=("GROUP", "TOPIC"))


def _positions(lag: PartitionLag, verbose: bool) -> tuple[object, ...]:
    # Not cut off at 0, unlike `PartitionLag.records`: Kafka's tool subtracts as it is, and its number may be negative
    # after a topic was created again.
    behind = lag.end - (lag.start if lag.committed is None else lag.committed)
    if not verbose:
        return (behind,)
    epoch = "-" if lag.leader_epoch < 0 else lag.leader_epoch
    return ("-" if lag.committed is None else lag.committed, epoch, lag.end, behind)


def state_lines(group: StreamsGroupDescription, coordinator: str, verbose: bool) -> list[str]:
    """GROUP COORDINATOR (ID) STATE [GROUP-EPOCH TARGET-ASSIGNMENT-EPOCH] #MEMBERS."""
    columns = [("GROUP", 15), ("COORDINATOR (ID)", 25), ("STATE", 25)]
    row: list[object] = [group.group_id, coordinator, group.state]
    if verbose:
        columns += [("GROUP-EPOCH", 15), ("TARGET-ASSIGNMENT-EPOCH", 25)]
        row += [_epoch(group.group_epoch), _epoch(group.assignment_epoch)]
    columns.append(("#MEMBERS", 0))
    row.append(len(group.members))
    return kafka_table(columns, [row], grow=("GROUP", "COORDINATOR (ID)"))


def member_lines(group: StreamsGroupDescription, verbose: bool) -> list[str]:
    """GROUP MEMBER PROCESS CLIENT-ID ASSIGNMENTS, with epochs and targets when verbose."""
    if not verbose:
        return kafka_table(
            [("GROUP", 15), ("MEMBER", 15), ("PROCESS", 15), ("CLIENT-ID", 15), ("ASSIGNMENTS", 0)],
            [(group.group_id, m.member_id, m.process_id, m.client_id, _assignments(m)) for m in group.members],
            grow=("GROUP", "MEMBER", "PROCESS", "CLIENT-ID"),
        )
    return _verbose_member_lines(group)


def _verbose_member_lines(group: StreamsGroupDescription) -> list[str]:
    """The verbose form. Kafka's tool leaves no blank between TOPOLOGY-EPOCH and MEMBER, so neither do we."""
    table = kafka_table(
        [
            ("GROUP", 15),
            ("TARGET-ASSIGNMENT-EPOCH", 25),
            ("TOPOLOGY-EPOCH", 15),
            ("MEMBER", 15),
            ("MEMBER-PROTOCOL", 15),
            ("MEMBER-EPOCH", 15),
            ("PROCESS", 15),
            ("CLIENT-ID", 15),
            ("ASSIGNMENTS", 0),
        ],
        [
            (
                group.group_id,
                _epoch(group.assignment_epoch),
                _epoch(m.topology_epoch),
                m.member_id,
                group.group_type,
                m.member_epoch if group.group_type == "streams" else "-",
                m.process_id,
                m.client_id,
                _assignments(m, with_target=True),
            )
            for m in group.members
        ],
        grow=("GROUP", "MEMBER", "PROCESS", "CLIENT-ID"),
    )
    # GROUP, TARGET-ASSIGNMENT-EPOCH and TOPOLOGY-EPOCH with one blank between them: the next blank is the one that
    # Kafka's format string lacks.
    group_width = max(15, len(group.group_id))
    blank = group_width + 1 + 25 + 1 + 15
    return [line[:blank] + line[blank + 1 :] for line in table]


def _epoch(epoch: int) -> object:
    """The epoch, or "-" in a classic group, which has none."""
    return "-" if epoch < 0 else epoch


def _assignments(member: StreamsMemberDescription, *, with_target: bool = False) -> str:
    parts = [
        ("ACTIVE", member.assignment.active),
        ("STANDBY", member.assignment.standby),
        ("WARMUP", member.assignment.warmup),
    ]
    if with_target:
        parts += [
            ("TARGET-ACTIVE", member.target_assignment.active),
            ("TARGET-STANDBY", member.target_assignment.standby),
            ("TARGET-WARMUP", member.target_assignment.warmup),
        ]
    return "".join(_task_text(title, tasks) for title, tasks in parts if tasks)


def _task_text(title: str, tasks: Mapping[str, tuple[int, ...]]) -> str:
    return f"{title}: " + "".join(
        f"{name}:[{','.join(str(partition) for partition in partitions)}]; " for name, partitions in tasks.items()
    )
