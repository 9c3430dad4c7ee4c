"""Assignors without memory: range and roundrobin, with the results of Kafka's Java client."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from headrace.assignors.assignor import Assignment, Assignor, Subscription, TopicPartition, by_member

__all__ = ["RangeAssignor", "RoundRobinAssignor"]


class RangeAssignor(Assignor):
    """Each topic by itself: members in order get runs of consecutive partitions, the first ones one more.

    Topics with the same number of partitions and the same subscribers line up: partition 3 of one is where partition 3
    of the other is. Racks are not looked at (KIP-881).
    """

    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given: dict[str, list[TopicPartition]] = {member: [] for member in members}
        ordered = by_member(members)
        for topic in sorted(partitions):
            subscribers = [member for member in ordered if topic in members[member].topics]
            if not subscribers:
                continue
            share, extra = divmod(partitions[topic], len(subscribers))
            start = 0
            for index, member in enumerate(subscribers):
                end = start + share + (index < extra)
                given[member].extend((topic, partition) for partition in range(start, end))
                start = end
        return {member: Assignment(partitions=tuple(given[member])) for member in members}


class RoundRobinAssignor(Assignor):
    """All partitions of all topics in order, dealt to the members in turn; who does not read the topic is passed by."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given: dict[str, list[TopicPartition]] = {member: [] for member in members}
        topics = {member: frozenset(subscription.topics) for member, subscription in members.items()}
        subscribed = frozenset().union(*topics.values())
        turn = cycle(by_member(members))
        for topic in sorted(subscribed & partitions.keys()):
            for partition in range(partitions[topic]):
                member = next(turn)
                while topic not in topics[member]:
                    member = next(turn)
                given[member].append((topic, partition))
        return {member: Assignment(partitions=tuple(given[member])) for member in members}
