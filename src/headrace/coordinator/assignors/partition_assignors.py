"""Server-side partition assignors of consumer groups: their protocol, and `uniform` and `range`. KIP-848.

An assignor sees a `ConsumerGroupSpec` and nothing else, and is deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

__all__ = [
    "ConsumerGroupSpec",
    "MemberSubscription",
    "PartitionAssignor",
    "RangeAssignor",
    "TargetPartitions",
    "UniformAssignor",
]

TargetPartitions = Mapping[UUID, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member as an assignor sees it: the topics it reads, and `previous`, its last target. Partitions are sorted."""

    topic_ids: tuple[UUID, ...]
    instance_id: str | None = None
    rack_id: str | None = None
    previous: TargetPartitions = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSpec:
    """`members` in the order of their ids; `partition_counts` of every topic that is read; `is_homogeneous`: all
    members read the same topics. Previous targets do not overlap."""

    members: Mapping[str, MemberSubscription]
    partition_counts: Mapping[UUID, int]
    is_homogeneous: bool


class PartitionAssignor(Protocol):
    """Pure: the same spec has the same answer."""

    @property
    def name(self) -> str: ...

    def assign(self, spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
        """Assign each partition to one member that reads its topic: topics in the order of ids, partitions sorted."""


class RangeAssignor:
    """Assigns ranges of partitions. Not sticky."""

    name = "range"

    def assign(self, spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
        order = sorted(spec.members, key=lambda member_id: _rank(spec, member_id))
        readers: dict[UUID, list[str]] = {}
        for member_id in order:
            for topic_id in spec.members[member_id].topic_ids:
                readers.setdefault(topic_id, []).append(member_id)
        assigned: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in spec.members}
        for topic_id in sorted(readers):
            quota, wider = divmod(spec.partition_counts[topic_id], len(readers[topic_id]))
            start = 0
            for number, member_id in enumerate(readers[topic_id]):
                end = start + quota + (number < wider)
                if start < end:
                    assigned[member_id][topic_id] = tuple(range(start, end))
                start = end
        return assigned


def _rank(spec: ConsumerGroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return instance_id is None, member_id if instance_id is None else instance_id


_MOST_ROUNDS = 16
"""Kafka's: each round is thought to halve the imbalance."""


class UniformAssignor:
    """Assigns equal numbers of partitions; balance has priority over stickiness."""

    name = "uniform"

    def assign(self, spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
        if not spec.members:
            return {}
        return _by_quota(spec) if spec.is_homogeneous else _Balancing(spec).assigned()


def _by_quota(spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
    """Assign by quota, if all members read the same topics: `extra` members get one partition more than `quota`."""
    topic_ids = sorted(next(iter(spec.members.values())).topic_ids)
    quota, extra = divmod(sum(spec.partition_counts[topic_id] for topic_id in topic_ids), len(spec.members))
    # 1. `waiting`: partitions without a previous owner first, then those beyond a quota (step 2), in Kafka's order.
    held = {topic_id: set[int]() for topic_id in topic_ids}
    for member in spec.members.values():
        for topic_id in member.previous.keys() & held.keys():
            held[topic_id].update(member.previous[topic_id])
    waiting = [
        (topic_id, partition)
        for topic_id in topic_ids
        for partition in range(spec.partition_counts[topic_id])
        if partition not in held[topic_id]
    ]
    # 2. Each member keeps up to its quota. `room`: how many more it gets.
    kept: dict[str, dict[UUID, list[int]]] = {}
    room: dict[str, int] = {}
    behind = len(spec.members)  # members from this one to the last
    for member_id, member in spec.members.items():
        may_have = quota + (extra > 0)
        kept[member_id] = {}
        for topic_id in sorted(member.previous.keys() & held.keys()):
            known = [each for each in member.previous[topic_id] if each < spec.partition_counts[topic_id]]
            waiting.extend((topic_id, each) for each in known[may_have:])
            if known[:may_have]:
                kept[member_id][topic_id] = known[:may_have]
            may_have -= len(known[:may_have])
        if extra > 0:
            # The extra one is left to a later member, unless all that are left have to take one.
            if may_have > 0 and behind > extra:
                may_have -= 1
            else:
                extra -= 1
        room[member_id] = may_have
        behind -= 1
    # 3. The waiting partitions fill the rooms in the order of members.
    behind = 0
    for member_id, may_have in room.items():
        for topic_id, partition in waiting[behind : behind + may_have]:
            kept[member_id].setdefault(topic_id, []).append(partition)
        behind += may_have
    return {member_id: _plain(of_member) for member_id, of_member in kept.items()}


def _plain(partitions: Mapping[UUID, list[int]]) -> TargetPartitions:
    return {topic_id: tuple(sorted(partitions[topic_id])) for topic_id in sorted(partitions)}


class _Balancing:
    """Members read different topics. Mutable: the assignment as it grows, members by their number."""

    def __init__(self, spec: ConsumerGroupSpec) -> None:
        self._spec = spec
        self._ids = list(spec.members)
        self._readers: dict[UUID, list[int]] = {}
        for number, member_id in enumerate(self._ids):
            for topic_id in spec.members[member_id].topic_ids:
                self._readers.setdefault(topic_id, []).append(number)
        self._load = [0] * len(self._ids)
        self._owner: dict[UUID, list[int | None]] = {
            topic_id: [None] * spec.partition_counts[topic_id] for topic_id in self._readers
        }

    def assigned(self) -> Mapping[str, TargetPartitions]:
        # 1. Sticky: everyone keeps what it still reads. 2. Free partitions are handed out, topics with the least choice
        #    first (many partitions for few readers): handed out last, they would find their readers loaded with what
        #    others could have taken. 3. Rounds of balancing, topic by topic.
        self._keep()
        # The fewer readers for so many partitions, the less choice: those topics come first.
        topic_ids = sorted(
            self._readers,
            key=lambda topic_id: (
                -len(self._owner[topic_id]) / len(self._readers[topic_id]),
                len(self._readers[topic_id]),
                topic_id,
            ),
        )
        for topic_id in topic_ids:
            self._distribute(topic_id)
        # A topic with one reader cannot be balanced. Kafka's UniformHeterogeneousAssignmentBuilder stops after 16
        # rounds too: each round is expected to halve the imbalance, and a perfect balance of differing subscriptions
        # may need more moves than it is worth.
        shared = [topic_id for topic_id in topic_ids if len(self._readers[topic_id]) > 1]
        for _ in range(_MOST_ROUNDS):
            if sum([self._balance(topic_id) for topic_id in shared]) == 0:
                break
        found: list[dict[UUID, list[int]]] = [{} for _ in self._ids]
        for topic_id, owners in self._owner.items():
            for partition, owner in enumerate(owners):
                if owner is not None:
                    found[owner].setdefault(topic_id, []).append(partition)
        return {member_id: _plain(found[number]) for number, member_id in enumerate(self._ids)}

    def _keep(self) -> None:
        """Let each member keep its partitions of the topics that it still reads."""
        for number, member_id in enumerate(self._ids):
            member = self._spec.members[member_id]
            for topic_id in member.topic_ids:
                owners = self._owner[topic_id]
                for partition in member.previous.get(topic_id, ()):
                    if partition < len(owners) and owners[partition] is None:
                        owners[partition] = number
                        self._load[number] += 1

    def _distribute(self, topic_id: UUID) -> None:
        owners = self._owner[topic_id]
        if None not in owners:
            return
        readers = [(self._load[number], number) for number in self._readers[topic_id]]
        heapq.heapify(readers)
        for partition, owner in enumerate(owners):
            if owner is None:
                load, number = readers[0]
                heapq.heapreplace(readers, (load + 1, number))
                owners[partition] = number
                self._load[number] += 1

    def _balance(self, topic_id: UUID) -> int:
        """Move partitions of a topic from its most loaded to its least loaded readers; return how many moved."""
        readers, owners = self._readers[topic_id], self._owner[topic_id]
        # `max - min <= 1` within the readers of a topic means that no move of its partitions helps.
        loads = [self._load[number] for number in readers]
        if max(loads) - min(loads) <= 1:
            return 0
        has: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            if owner is not None:
                has.setdefault(owner, []).append(partition)
        most = [(-self._load[number], -number) for number in has]
        least = [(self._load[number], number) for number in readers]
        heapq.heapify(most)
        heapq.heapify(least)
        moved = 0
        while most:
            # The entries of both heaps may be out of date, because a member can be giver and taker in one round. An
            # entry whose load differs from the member's is replaced when it comes up: cheaper than finding and updating
            # it in the heap.
            giver, taker = -most[0][1], least[0][1]
            if self._load[taker] != least[0][0]:  # it has given meanwhile
                heapq.heapreplace(least, (self._load[taker], taker))
                continue
            if -most[0][0] != self._load[giver]:  # it has taken meanwhile
                heapq.heapreplace(most, (-self._load[giver], -giver))
                continue
            if not has[giver]:
                heapq.heappop(most)
                continue
            if self._load[giver] - self._load[taker] <= 1:
                break
            partition = has[giver].pop()
            owners[partition] = taker
            self._load[giver] -= 1
            self._load[taker] += 1
            heapq.heapreplace(most, (-self._load[giver], -giver))
            heapq.heapreplace(least, (self._load[taker], taker))
            moved += 1
        return moved
