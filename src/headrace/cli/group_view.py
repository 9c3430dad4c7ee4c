"""One streams group as an operator sees it: who owns which tasks, how far they are, and what it waits for.

Everything comes over Kafka's protocol, so it works against any broker with streams groups and without the application.
Time is an argument: rates come from two looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.readiness import Obstacle, obstacles, unread_partitions
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin, IsolationLevel
    from headrace.client.admin_results import StreamsGroupDescription, StreamsMemberDescription
    from headrace.client.cluster_metadata import TopicMetadata
    from headrace.client.membership.topology import Topology

__all__ = [
    "AWAY_EPOCH",
    "CommitRates",
    "GroupPoller",
    "GroupView",
    "MemberView",
    "PartitionLag",
    "find_obstacles",
    "lag_by_partition",
    "task_partitions",
]

TopicPartition = tuple[str, int]
Tasks = Mapping[str, tuple[int, ...]]
# Commits arrive once per micro-batch, often a second apart: over one look a rate would alternate between 0 and double.
RATE_WINDOW_MS = 5_000
AWAY_EPOCH = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Positions of one input partition; `committed` None until something was committed. Offsets, not records."""

    start: int
    end: int
    committed: int | None = None
    leader_epoch: int = -1  # of the commit; -1: none was given

    @property
    def records(self) -> int:
        """Return the records between the committed position (without one: the log's start) and the end."""
        return max(0, self.end - (self.start if self.committed is None else max(self.committed, self.start)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member: `active` is what it has, `target` what it is to have."""

    member_id: str
    client_id: str
    process_id: str
    instance_id: str | None  # of a static member
    member_epoch: int
    topology_epoch: int
    active: Tasks
    standby: Tasks
    warmup: Tasks
    target: Tasks
    lag: int
    records_per_s: float | None  # of the source topics; None at the first look

    @property
    def tasks(self) -> int:
        return sum(len(partitions) for partitions in self.active.values())

    @property
    def is_away(self) -> bool:
        """A static member that left and will be back before its session ends (KIP-1071, epoch -2)."""
        return self.member_epoch == AWAY_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The group at one moment. `done` and `known` count positions of the source topics."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology_epoch: int | None
    members: tuple[MemberView, ...]
    tasks: int
    lag: int
    done: int
    known: int
    obstacles: tuple[Obstacle, ...]
    group_type: str = "streams"  # or classic, without epochs (-1)

    @property
    def assigned(self) -> int:
        """Return the number of assigned tasks."""
        return sum(member.tasks for member in self.members)

    @property
    def settled(self) -> bool:
        """Stable, and every task has its owner."""
        return self.state == "Stable" and self.tasks > 0 and self.assigned == self.tasks


class CommitRates:
    """Records per second by partition, from the committed offsets of the last looks at a group. Mutable.

    A partition has a rate from its second look with a commit on.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Mapping[TopicPartition, int]]] = deque()
        self.by_partition: dict[TopicPartition, float] = {}

    def add(self, committed: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Add the committed offsets of a look and compute the rates anew."""
        # 1. The oldest look that is kept is the last one at or before the window's begin: a rate spans at least 5 s
        #    once there is that much history. Offsets move in steps, one per micro-batch.
        while len(self._seen) > 1 and self._seen[1][0] <= now_ms - RATE_WINDOW_MS:
            self._seen.popleft()
        # 2. Each partition counts from the oldest look that has a commit of it. A first commit is no progress since the
        #    look before: counted from 0, it would show the whole length of the topic as the rate of one second.
        rates = {}
        for key, offset in committed.items():
            then = next(((then_ms, seen[key]) for then_ms, seen in self._seen if key in seen), None)
            if then is not None and now_ms > then[0]:
                rates[key] = max(0, offset - then[1]) * 1000 / (now_ms - then[0])
        self.by_partition = rates
        self._seen.append((now_ms, committed))


class GroupPoller:
    """Looks at one group again and again. Mutable: it keeps the rates of its commits."""

    def __init__(self, admin: Admin, group_id: str) -> None:
        self._admin = admin
        self.group_id = group_id
        self._rates = CommitRates()

    def close(self) -> None:
        self._admin.close()

    def look(self, *, now_ms: int) -> GroupView:
        """The group now. Raises BrokerError `group-missing`, CannotConnect."""
        # 1. The group first, then positions and ends. A commit in between makes the lag smaller than it was at the
        #    description, never negative: `PartitionLag.records` is cut off at 0.
        group = self._admin.describe_streams_groups([self.group_id])[self.group_id]
        lags = lag_by_partition(self._admin, group)
        sources = _source_topics(group.topology)
        # 2. Rates count source topics alone; a record that passes a repartition topic would count twice.
        self._rates.add(
            {key: lag.committed for key, lag in lags.items() if key[0] in sources and lag.committed is not None}, now_ms
        )
        # 3. Lag and rate of a member are those of the partitions of its active tasks.
        members = tuple(self._member(member, group.topology, lags) for member in group.members)
        own = [lag for (topic, _), lag in lags.items() if topic in sources]
        return GroupView(
            group_id=group.group_id,
            group_type=group.group_type,
            state=group.state,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            topology_epoch=None if group.topology is None else group.topology.epoch,
            members=members,
            tasks=_task_count(group.topology, lags),
            lag=sum(lag.records for lag in lags.values()),
            done=sum((lag.committed or lag.start) for lag in own),
            known=sum(lag.end for lag in own),
            obstacles=find_obstacles(self._admin, group),
        )

    def _member(
        self, member: StreamsMemberDescription, topology: Topology | None, lags: Mapping[TopicPartition, PartitionLag]
    ) -> MemberView:
        owned = task_partitions(topology, member.assignment.active)
        rates = self._rates.by_partition
        known = [key for key in owned if key in rates]
        return MemberView(
            member_id=member.member_id,
            client_id=member.client_id,
            process_id=member.process_id,
            instance_id=member.instance_id,
            member_epoch=member.member_epoch,
            topology_epoch=member.topology_epoch,
            active=member.assignment.active,
            standby=member.assignment.standby,
            warmup=member.assignment.warmup,
            target=member.target_assignment.active,
            lag=sum(lags[key].records for key in owned if key in lags),
            records_per_s=sum(rates[key] for key in known) if known else None,
        )


def find_obstacles(admin: Admin, group: StreamsGroupDescription) -> tuple[Obstacle, ...]:
    """Return the reasons why a streams group has no tasks, or does not read everything."""
    # All topics are listed, for near names of a missing source; the common case below asks for the named topics only.
    if group.state == "NotReady" or group.topology is None:
        topics = admin.list_topics(include_internal=True)
        return obstacles(group.topology, topics, _internal_settings(admin, group.topology, topics))
    stateful = [each for each in group.topology.subtopologies if each.state_changelog_topics and each.source_topics]
    names = {name for each in stateful for name in each.source_topics}
    names |= {topic.name for each in stateful for topic in each.state_changelog_topics}
    return unread_partitions(group.topology, admin.describe_topics(names)) if names else ()


def _internal_settings(
    admin: Admin, topology: Topology | None, topics: Mapping[str, TopicMetadata]
) -> dict[str, dict[str, str]]:
    """Return the effective settings of the internal topics that exist; none without DESCRIBE_CONFIGS on them."""
    names = [] if topology is None else [topic.name for topic in topology.internal_topics if topic.name in topics]
    try:
        described = admin.describe_configs([("topic", name) for name in names]) if names else {}
    # DESCRIBE_CONFIGS is a right of its own. Without it the cause "retention of an internal topic" is not looked for.
    except BrokerError:
        return {}
    return {
        name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        for (_, name), entries in described.items()
    }


def task_partitions(topology: Topology | None, tasks: Tasks) -> list[TopicPartition]:
    """The input partitions of tasks: partition p of every source and repartition topic of the subtopology."""
    if topology is None:
        return []
    inputs = {s.subtopology_id: _inputs(s) for s in topology.subtopologies}
    return sorted(
        {
            (topic, partition)
            for name, numbers in tasks.items()
            for topic in inputs.get(name, ())
            for partition in numbers
        }
    )


def lag_by_partition(
    admin: Admin, group: StreamsGroupDescription, *, isolation_level: IsolationLevel = "read_committed"
) -> dict[TopicPartition, PartitionLag]:
    """Positions of every input partition of the group's topology; topics that do not exist are left out."""
    if group.topology is None:
        return {}
    wanted = sorted({topic for subtopology in group.topology.subtopologies for topic in _inputs(subtopology)})
    topics = admin.describe_topics(wanted)
    partitions = [
        (name, partition)
        for name, topic in topics.items()
        for partition, leader in topic.partitions.items()
        if leader >= 0
    ]
    if not partitions:
        return {}
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level=isolation_level)
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    committed = admin.list_group_offsets(group.group_id)
    return {
        key: PartitionLag(
            start=starts[key].offset,
            end=ends[key].offset,
            committed=committed[key].offset if key in committed else None,
            leader_epoch=committed[key].leader_epoch if key in committed else -1,
        )
        for key in partitions
    }


def _inputs(subtopology: object) -> tuple[str, ...]:
    from headrace.client.membership.topology import Subtopology

    assert isinstance(subtopology, Subtopology)
    return (*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics))


def _source_topics(topology: Topology | None) -> frozenset[str]:
    if topology is None:
        return frozenset()
    # A repartition topic may be listed as a source by the subtopology that reads it.
    internal = {topic.name for s in topology.subtopologies for topic in s.repartition_source_topics}
    return frozenset(topic for s in topology.subtopologies for topic in s.source_topics if topic not in internal)


def _task_count(topology: Topology | None, lags: Mapping[TopicPartition, PartitionLag]) -> int:
    """Tasks of the whole topology: for each subtopology as many as its widest input topic has partitions."""
    if topology is None:
        return 0
    widths: dict[str, int] = {}
    for topic, _ in lags:
        widths[topic] = widths.get(topic, 0) + 1
    return sum(max((widths.get(topic, 0) for topic in _inputs(s)), default=0) for s in topology.subtopologies)
