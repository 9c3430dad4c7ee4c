"""A classic group without sockets: members with their assignors, a leader, generations; what is valid and balanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from headrace.assignors.assignor import NO_GENERATION, Assignment, Assignor, Subscription, TopicPartition
from headrace.assignors.consumer_protocol import decode_subscription, encode_subscription
from headrace.assignors.registry import ASSIGNORS

__all__ = ["Divide", "Group", "excess", "our_divide", "play"]

Given = Mapping[str, tuple[TopicPartition, ...]]


class Divide(Protocol):
    """What the leader does, ours or Kafka's."""

    def __call__(self, name: str, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Given: ...


@dataclass
class Member:
    topics: tuple[str, ...]
    instance_id: str | None
    assignor: Assignor
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


@dataclass
class Group:
    """Mutable: topics, members and the generation. A rebalance is what all members do together."""

    name: str
    topics: dict[str, int]
    divide: Divide
    members: dict[str, Member] = field(default_factory=dict)
    generation_id: int = 0
    moved: int = 0

    def join(self, member_id: str, topics: tuple[str, ...], instance_id: str | None = None) -> None:
        self.members[member_id] = Member(topics, instance_id, ASSIGNORS[self.name]())

    def subscriptions(self) -> dict[str, Subscription]:
        """As the leader reads them off the wire."""
        cooperative = self.name == "cooperative-sticky"
        return {
            member_id: decode_subscription(
                encode_subscription(
                    Subscription(
                        topics=member.topics,
                        user_data=member.assignor.subscription_user_data(member.topics),
                        owned_partitions=member.owned if cooperative else (),
                        generation_id=member.generation_id,
                    )
                ),
                instance_id=member.instance_id,
            )
            for member_id, member in self.members.items()
        }

    def rebalance(self) -> Given:
        """One generation; with cooperative-sticky as many as it takes until nobody gives anything back."""
        before = {each: m for m, member in self.members.items() for each in member.owned}
        while True:
            self.generation_id += 1
            given = self.divide(self.name, self.topics, self.subscriptions())
            check_valid(self, given)
            again = False
            for member_id, member in self.members.items():
                mine = given[member_id]
                again |= self.name == "cooperative-sticky" and not set(member.owned) <= set(mine)
                member.owned = mine
                member.generation_id = self.generation_id
                member.assignor.on_assignment(Assignment(partitions=mine), self.generation_id)
            if not again:
                break
        check_complete(self, given)
        after = {each: m for m, member in self.members.items() for each in member.owned}
        self.moved += sum(1 for each, m in after.items() if before.get(each, m) != m)
        return given


def check_valid(group: Group, given: Given) -> None:
    assert given.keys() == group.members.keys()
    seen: set[TopicPartition] = set()
    for member_id, mine in given.items():
        assert not seen & set(mine), "two own one partition"
        assert len(set(mine)) == len(mine)
        seen |= set(mine)
        for topic, partition in mine:
            assert topic in group.members[member_id].topics
            assert 0 <= partition < group.topics[topic]
    if group.name == "cooperative-sticky":
        for member_id, member in group.members.items():
            for other, mine in given.items():
                assert other == member_id or not set(mine) & set(member.owned), "given away before it was given back"


def check_complete(group: Group, given: Given) -> None:
    wanted = {
        (topic, number)
        for topic, count in group.topics.items()
        if any(topic in member.topics for member in group.members.values())
        for number in range(count)
    }
    assert {each for mine in given.values() for each in mine} == wanted


def excess(group: Group, given: Given) -> int:
    """How many single moves would still make the group evener: 0 is balanced (KIP-54)."""
    left = 0
    for full, mine in given.items():
        for member_id, member in group.members.items():
            if member_id != full and len(given[member_id]) + 1 < len(mine):
                left += any(topic in member.topics for topic, _ in mine)
    return left


def our_divide(name: str, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Given:
    return {m: a.partitions for m, a in ASSIGNORS[name]().assign(topics, members).items()}


@dataclass
class Tally:
    moved: int = 0
    excess: int = 0
    rounds: int = 0


def play(name: str, seed: int, divide: Divide, *, rounds: int = 8, tally: Tally | None = None) -> Tally:
    """A random history: members come and go, topics grow; the same for whoever divides."""
    random = Random(seed)
    tally = tally or Tally()
    names = [f"t{number}" for number in range(random.randint(1, 4))]
    group = Group(name, {topic: random.randint(1, 12) for topic in names}, divide)
    equal = random.random() < 0.5
    serial = 0
    for _ in range(rounds):
        for _ in range(random.choice([1, 1, 2, 3])):
            if len(group.members) > 1 and random.random() < 0.45:
                del group.members[random.choice(sorted(group.members))]
            else:
                serial += 1
                some = tuple(names) if equal else tuple(sorted(random.sample(names, random.randint(1, len(names)))))
                group.join(f"m{serial}", some, f"i{serial}" if random.random() < 0.3 else None)
        if random.random() < 0.15:
            group.topics[random.choice(names)] += random.randint(1, 3)
        given = group.rebalance()
        tally.excess += excess(group, given)
        tally.rounds += 1
    tally.moved += group.moved
    return tally
