"""Documents about groups: the list of all types, and one group with members, tasks and partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli.consumer_group_report import user_data_of
from headrace.cli.exporter.cluster_snapshot import Assignment, ClusterSnapshot, GroupSnapshot, MemberSnapshot
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.cli.group_view import AWAY_EPOCH, task_partitions
from headrace.cli.readiness import Obstacle
from headrace.cli.ui.offset_series import OffsetSeries, Progress
from headrace.cli.ui.paging import Paging, select_page
from headrace.client.admin_groups import ConsumerGroupDescription, ConsumerMemberDescription, plain_name
from headrace.client.admin_results import StreamsGroupDescription, StreamsMemberDescription
from headrace.client.membership.topology import InternalTopic, Topology

__all__ = ["GroupsDocument", "group_document", "groups_document", "state_reason"]

TopicPartition = tuple[str, int]
# A member with thousands of scattered tasks shows so many ranges; the counts are always complete.
MOST_RANGES = 60
MOST_SUBSCRIBED = 50
# Characters; a report of thousands of tasks is for `headrace consumer-groups --user-data`.
MOST_USER_DATA = 500
GroupsDocument = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    group: GroupSnapshot
    lag: int
    rate: float | None
    waiting_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemberRow:
    member: MemberSnapshot
    described: StreamsMemberDescription | ConsumerMemberDescription | None
    lag: int
    rate: float | None


def state_reason(group: GroupSnapshot, obstacles: Sequence[Obstacle]) -> str:
    """Return a sentence about the state of a group; "" if there is nothing to say."""
    if obstacles:
        return obstacles[0].why
    state = plain_name(group.state)
    if state in _REASONS:
        return _REASONS[state]
    if state in ("reconciling", "assigning") and group.assignment_epoch is not None:
        if state == "assigning":
            return f"The coordinator computes the target assignment of epoch {group.epoch}."
        behind = sum(1 for member in group.members if (member.epoch or 0) < group.assignment_epoch)
        return f"{behind} of {len(group.members)} members have not taken over their target assignment yet."
    if not group.is_described:
        return "Members of this type of group are not shown."
    return ""


_REASONS = {
    "empty": "The group has no members; its committed offsets are kept.",
    "notready": "The group waits for its topics.",
    "preparingrebalance": "A rebalance is under way: the coordinator waits until all members have joined again.",
    "completingrebalance": "A rebalance is under way: the coordinator waits for the assignment of the leader.",
    "dead": "The group is being removed.",
}


def groups_document(
    snapshot: ClusterSnapshot,
    series: OffsetSeries,
    history: SnapshotHistory,
    obstacles: Mapping[str, Sequence[Obstacle]],
    paging: Paging,
    *,
    now_ms: int,
    group_type: str = "",
    state: str = "",
) -> GroupsDocument:
    """Return the list of groups.

    Args:
        snapshot: The cluster.
        series: Series of all groups.
        history: Changes between snapshots.
        obstacles: Reasons of streams groups without tasks.
        paging: The page.
        now_ms: Time of the snapshot.
        group_type: streams, consumer, classic or share; "" for all.
        state: State in any spelling; "" for all.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    wanted = plain_name(state)
    rows = [
        _row(group, series, history, now_ms)
        for group in snapshot.groups.values()
        if (not group_type or group.group_type == group_type) and (not wanted or plain_name(group.state) == wanted)
    ]

    def document(row: _Row) -> dict[str, Any]:
        group = row.group
        return {
            "group_id": group.group_id,
            "type": group.group_type,
            "state": group.state,
            "reason": state_reason(group, obstacles.get(group.group_id, ())),
            "members": len(group.members) if group.is_described else None,
            "topics": len({topic for topic, _ in group.committed} | {topic for topic, _ in group.inputs}),
            "lag": row.lag if group.committed else None,
            "waiting_ms": row.waiting_ms if group.committed else None,
            "rate": row.rate,
            "lag_series": _lags(series.groups.get(group.group_id)),
        }

    return {
        **select_page(
            rows,
            paging,
            matches=lambda row: row.group.group_id,
            columns={
                "group": lambda row: row.group.group_id,
                "type": lambda row: row.group.group_type,
                "state": lambda row: row.group.state,
                "members": lambda row: len(row.group.members),
                "lag": lambda row: row.lag,
                "waiting": lambda row: row.waiting_ms,
                "rate": lambda row: row.rate or 0.0,
            },
            document=document,
        ),
        "types": _counts(group.group_type for group in snapshot.groups.values()),
        "states": _counts(group.state for group in snapshot.groups.values()),
        "refused": [{"group_id": name, "code": code} for name, code in sorted(snapshot.refused.items())[:100]],
        "left_out": snapshot.left_out_groups,
    }


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _row(group: GroupSnapshot, series: OffsetSeries, history: SnapshotHistory, now_ms: int) -> _Row:
    progress = series.groups.get(group.group_id, Progress())
    waiting = history.waiting_ms(group.committed, now_ms)
    return _Row(
        group=group,
        lag=progress.lag.last(),
        rate=series.rate(progress.done) if group.committed else None,
        waiting_ms=max(waiting.values(), default=0),
    )


def _lags(progress: Progress | None) -> list[int]:
    return [] if progress is None else list(progress.lag.values)


def group_document(
    snapshot: ClusterSnapshot,
    series: OffsetSeries,
    history: SnapshotHistory,
    obstacles: Mapping[str, Sequence[Obstacle]],
    group: GroupSnapshot,
    members: Paging,
    partitions: Paging,
    *,
    now_ms: int,
) -> dict[str, Any]:
    """Return one group with a page of its members and a page of its partitions.

    Args:
        snapshot: The cluster.
        series: Series of all groups.
        history: Changes between snapshots.
        obstacles: Reasons of streams groups without tasks.
        group: The group.
        members: Page of the members.
        partitions: Page of the partitions.
        now_ms: Time of the snapshot.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    own = obstacles.get(group.group_id, ())
    progress = series.groups.get(group.group_id, Progress())
    changes = history.groups.get(group.group_id)
    described = group.description
    pending = sum(len(member.assignment ^ (member.target or member.assignment)) for member in group.members)
    topology = described.topology if isinstance(described, StreamsGroupDescription) else None
    owners = _owners(group, topology)
    return {
        "group_id": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "reason": state_reason(group, own),
        "obstacles": [{"status": each.status, "why": each.why, "do": each.do} for each in own],
        "is_described": group.is_described,
        # Members that announced where they answer: the page of the application asks them.
        "endpoints": 0
        if not isinstance(described, StreamsGroupDescription)
        else sum(1 for member in described.members if member.user_endpoint is not None),
        "assignor": described.assignor if isinstance(described, ConsumerGroupDescription) else "",
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "topology_epoch": None if topology is None else topology.epoch,
        "members_behind": None
        if group.assignment_epoch is None
        else sum(1 for member in group.members if (member.epoch or 0) < (group.assignment_epoch or 0)),
        "pending": pending if group.epoch is not None else None,
        "roles": _counts(role for member in group.members for role, _, _ in member.assignment),
        "lag": progress.lag.last() if group.committed else None,
        "rate": series.rate(progress.done) if group.committed else None,
        "waiting_ms": max(history.waiting_ms(group.committed, now_ms).values(), default=0),
        "rebalances": 0 if changes is None else changes.rebalances,
        "joined": 0 if changes is None else changes.joined,
        "left": 0 if changes is None else changes.left,
        "ages_ms": [now_ms - time_ms for time_ms in series.times_ms[-len(progress.lag.values) :]],
        "lag_series": list(progress.lag.values),
        "rate_series": _rounded(series.rates(progress.done)),
        "members": _members(group, topology, series, members),
        "partitions": _partitions(group, snapshot, series, history, owners, partitions, now_ms),
        "topology": None if topology is None else _topology(topology, snapshot, series),
    }


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 1) for value in values]


def _owners(group: GroupSnapshot, topology: Topology | None) -> dict[TopicPartition, str]:
    """Return the member that reads each partition."""
    owners: dict[TopicPartition, str] = {}
    for member in group.members:
        for key in _inputs(member, topology):
            owners[key] = member.member_id
    return owners


def _inputs(member: MemberSnapshot, topology: Topology | None) -> list[TopicPartition]:
    active: dict[str, list[int]] = {}
    owned: list[TopicPartition] = []
    for role, name, number in member.assignment:
        if role == "partition":
            owned.append((name, number))
        elif role == "active":
            active.setdefault(name, []).append(number)
    if active:
        owned += task_partitions(topology, {name: tuple(numbers) for name, numbers in active.items()})
    return owned


def _members(group: GroupSnapshot, topology: Topology | None, series: OffsetSeries, paging: Paging) -> dict[str, Any]:
    described = {} if group.description is None else {each.member_id: each for each in group.description.members}
    progress = series.group_partitions.get(group.group_id, {})
    rows = []
    for member in group.members:
        found = [progress[key] for key in _inputs(member, topology) if key in progress]
        rates = [rate for rate in (series.rate(each.done) for each in found) if rate is not None]
        rows.append(
            _MemberRow(
                member=member,
                described=described.get(member.member_id),
                lag=sum(each.lag.last() for each in found),
                rate=sum(rates) if rates else None,
            )
        )
    return select_page(
        rows,
        paging,
        matches=lambda row: f"{row.member.member_id} {_client(row)} {_text(row, 'instance_id')}",
        columns={
            "member": lambda row: (_client(row), row.member.member_id),
            "host": lambda row: _text(row, "client_host"),
            "epoch": lambda row: row.member.epoch or 0,
            "tasks": lambda row: len(row.member.assignment),
            "pending": lambda row: _pending(row.member),
            "lag": lambda row: row.lag,
            "rate": lambda row: row.rate or 0.0,
        },
        document=lambda row: _member(row, group),
    )


def _client(row: _MemberRow) -> str:
    return "" if row.described is None else row.described.client_id


def _text(row: _MemberRow, name: str) -> str:
    return str(getattr(row.described, name, None) or "")


def _pending(member: MemberSnapshot) -> int:
    return 0 if member.target is None else len(member.assignment ^ member.target)


def _member(row: _MemberRow, group: GroupSnapshot) -> dict[str, Any]:
    member, described = row.member, row.described
    subscribed: tuple[str, ...] = getattr(described, "subscribed_topics", None) or ()
    return {
        "member_id": member.member_id,
        "client_id": _client(row),
        "host": _text(row, "client_host"),
        "instance_id": _text(row, "instance_id"),
        "rack": _text(row, "rack_id"),
        "process_id": _text(row, "process_id"),
        "subscribed": list(subscribed[:MOST_SUBSCRIBED]),
        "subscribed_regex": _text(row, "subscribed_regex"),
        "user_data": _user_data(row, group),
        "epoch": member.epoch,
        "is_behind": member.epoch is not None
        and group.assignment_epoch is not None
        and member.epoch < group.assignment_epoch,
        "is_away": member.epoch == AWAY_EPOCH,
        "tasks": _tasks(member.assignment, member.target),
        "count": len(member.assignment),
        "pending": _pending(member),
        "lag": row.lag,
        "rate": row.rate,
    }


def _user_data(row: _MemberRow, group: GroupSnapshot) -> list[dict[str, str]]:
    """Return what a classic member and its leader sent each other, decoded; empty for assignors without user data."""
    described, member = group.description, row.described
    if not isinstance(described, ConsumerGroupDescription) or not isinstance(member, ConsumerMemberDescription):
        return []
    texts = [(report.role, report.text()) for report in user_data_of(described, member)]
    return [{"role": role, "text": text[:MOST_USER_DATA]} for role, text in texts if text != "-"]


def _tasks(held: Assignment, target: Assignment | None) -> list[dict[str, Any]]:
    """Return the tasks by role and subtopology or topic, with those that come and go."""
    wanted = held if target is None else target
    by_name: dict[tuple[str, str], tuple[set[int], set[int]]] = {}
    for index, assignment in enumerate((held, wanted)):
        for role, name, number in assignment:
            by_name.setdefault((role, name), (set(), set()))[index].add(number)
    rank = {"partition": 0, "active": 0, "standby": 1, "warmup": 2}
    return [
        {
            "role": role,
            "of": name,
            "kept": _ranges(has & wants),
            "coming": _ranges(wants - has),
            "leaving": _ranges(has - wants),
            "count": len(has),
        }
        for (role, name), (has, wants) in sorted(by_name.items(), key=lambda item: (rank.get(item[0][0], 3), item[0]))
    ][:MOST_RANGES]


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges[:MOST_RANGES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionRow:
    topic: str
    partition: int
    lag: int | None
    rate: float | None
    member_id: str


def _partitions(
    group: GroupSnapshot,
    snapshot: ClusterSnapshot,
    series: OffsetSeries,
    history: SnapshotHistory,
    owners: Mapping[TopicPartition, str],
    paging: Paging,
    now_ms: int,
) -> dict[str, Any]:
    progress = series.group_partitions.get(group.group_id, {})
    waiting = history.waiting_ms(group.committed, now_ms)
    clients = (
        {} if group.description is None else {each.member_id: each.client_id for each in group.description.members}
    )
    rows = [
        _PartitionRow(
            topic=key[0],
            partition=key[1],
            lag=progress[key].lag.last() if key in progress else None,
            rate=series.rate(progress[key].done) if key in progress else None,
            member_id=owners.get(key, ""),
        )
        for key in sorted(group.committed.keys() | owners.keys())
    ]

    def document(row: _PartitionRow) -> dict[str, Any]:
        key = (row.topic, row.partition)
        log = snapshot.partitions.get(key)
        seen = progress.get(key)
        return {
            "topic": row.topic,
            "partition": row.partition,
            "committed": group.committed.get(key),
            "end": None if log is None else log.end,
            "lost": 0 if log is None or log.start is None else max(0, log.start - group.committed.get(key, log.start)),
            "lag": row.lag,
            "waiting_ms": waiting.get(key),
            "rate": row.rate,
            "member_id": row.member_id,
            "client_id": clients.get(row.member_id, ""),
            "lag_series": _lags(seen),
            "rate_series": [] if seen is None else _rounded(series.rates(seen.done)),
        }

    return select_page(
        rows,
        paging,
        matches=lambda row: f"{row.topic}-{row.partition}",
        columns={
            "partition": lambda row: (row.topic, row.partition),
            "lag": lambda row: -1 if row.lag is None else row.lag,
            "waiting": lambda row: waiting.get((row.topic, row.partition), 0),
            "rate": lambda row: row.rate or 0.0,
            "member": lambda row: (clients.get(row.member_id, ""), row.member_id),
        },
        document=document,
    )


def _topology(topology: Topology, snapshot: ClusterSnapshot, series: OffsetSeries) -> list[dict[str, Any]]:
    def topic(name: str) -> dict[str, Any]:
        found = snapshot.topics.get(name)
        rate = series.rate(series.topics[name]) if name in series.topics else None
        return {"name": name, "partitions": None if found is None else len(found.partitions), "rate": rate}

    def internal(topics: Iterable[InternalTopic]) -> list[dict[str, Any]]:
        return [topic(each.name) for each in topics]

    return [
        {
            "id": each.subtopology_id,
            "sources": [topic(name) for name in each.source_topics],
            "repartition_sources": internal(each.repartition_source_topics),
            "repartition_sinks": [topic(name) for name in each.repartition_sink_topics],
            "changelogs": internal(each.state_changelog_topics),
        }
        for each in topology.subtopologies
    ]
