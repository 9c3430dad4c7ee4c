"""Groups whose leaders die: which partitions move, how many had to, with whichever assignor. Bytes as on the wire.

All members read all topics, so that the least possible number of moves is known: what the dead had, and what whoever
stays has above the fair share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from headrace.assignors.assignor import NO_GENERATION, Assignment, Assignor, Subscription, TopicPartition
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.assignors.experimental import LeaderIndependentSticky
from headrace.assignors.kafka_assignors import RoundRobinAssignor, StickyAssignor

__all__ = ["ASSIGNORS", "Group", "Moves", "play_leader_kills"]

ASSIGNORS: dict[str, Callable[[], Assignor]] = {
    "leader-independent": LeaderIndependentSticky,
    "sticky": StickyAssignor,
    "roundrobin": RoundRobinAssignor,
}


@dataclass
class _Member:
    assignor: Assignor
    instance_id: str | None = None
    had: tuple[TopicPartition, ...] = ()


@dataclass
class Moves:
    """Partitions whose owner is another afterwards, though it lives; how many had to; those of the dead apart."""

    moved: int = 0
    must: int = 0
    orphaned: int = 0
    rebalances: int = 0


@dataclass
class Group:
    """Mutable. An eager group: everybody gives everything back, one rebalance for each event."""

    make: Callable[[], Assignor]
    topics: dict[str, int]
    members: dict[str, _Member] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)  # by member, or instance
    generation_id: int = 0
    moves: Moves = field(default_factory=Moves)
    garbage: bytes | None = None  # what one member sends as its user data
    serial: int = 0

    def join(self, instance_id: str | None = None) -> str:
        self.serial += 1
        member_id = f"m{self.serial:03}"
        self.members[member_id] = _Member(self.make(), instance_id)
        return member_id

    def restart(self, member_id: str) -> str:
        """The process is new and remembers nothing; a static member keeps its instance id."""
        old = self.members.pop(member_id)
        return self.join(old.instance_id)

    def place(self, member_id: str) -> str:
        return self.members[member_id].instance_id or member_id

    def rebalance(self, leader: str | None = None) -> dict[str, tuple[TopicPartition, ...]]:
        self.generation_id += 1
        said = {}
        for member_id, member in self.members.items():
            user_data = member.assignor.subscription_user_data(tuple(self.topics))
            if self.garbage is not None and member_id == min(self.members):
                user_data = self.garbage
            sent = encode_subscription(
                Subscription(topics=tuple(self.topics), user_data=user_data, generation_id=NO_GENERATION)
            )
            said[member_id] = decode_subscription(sent, instance_id=member.instance_id)
        chosen = self.members[leader or min(self.members)].assignor
        given = chosen.assign(self.topics, said)
        for member_id, member in self.members.items():
            assignment = decode_assignment(encode_assignment(given.get(member_id, Assignment())))
            member.had = assignment.partitions
            member.assignor.on_assignment(assignment, self.generation_id)
        self._count()
        return {member_id: member.had for member_id, member in self.members.items()}

    def _count(self) -> None:
        places = {self.place(member_id): member_id for member_id in self.members}
        every = sum(self.topics.values())
        share, rest = divmod(every, len(places))
        kept: dict[str, int] = dict.fromkeys(places, 0)
        for owner in self.owners.values():
            if owner in kept:
                kept[owner] += 1
        # Who has most may keep one more, as many as there are extra ones.
        for number, owner in enumerate(sorted(kept, key=lambda place: -kept[place])):
            self.moves.must += max(0, kept[owner] - share - (number < rest))
        now = {each: self.place(m) for m, member in self.members.items() for each in member.had}
        assert len(now) == every == sum(len(member.had) for member in self.members.values())
        self.moves.rebalances += 1
        for each, owner in self.owners.items():
            if owner not in places:
                self.moves.orphaned += 1
            elif now[each] != owner:
                self.moves.moved += 1
        self.owners = now


def play_leader_kills(make: Callable[[], Assignor], seed: int, *, rounds: int = 30) -> Moves:
    """Leaders are killed and come back (static ones as themselves), alone or with others; members come and go."""
    random = Random(seed)
    group = Group(make, {f"t{number}": random.randint(3, 40) for number in range(random.randint(1, 3))})
    for number in range(random.randint(3, 8)):
        group.join(f"i{number}" if random.random() < 0.7 else None)
    group.rebalance()
    extra = 0
    for _ in range(rounds):
        leader = min(group.members)
        others = [member for member in sorted(group.members) if member != leader]
        # Somebody who was there at the last rebalance stays: with the last copy goes the memory of any assignor.
        witnesses = [member for member, known in group.members.items() if known.had]
        if len(witnesses) < 2 or not set(witnesses) - {leader, *others[: len(others) // 2]}:
            group.rebalance()
            continue
        match random.choice(["restart", "restart", "restart-many", "kill", "join", "leave"]):
            case "restart":
                group.restart(leader)
            case "restart-many":
                for member in [leader, *others[: random.randint(0, len(others) // 2)]]:
                    group.restart(member)
            case "kill" if len(group.members) > 2:
                del group.members[leader]
            case "leave" if len(group.members) > 2:
                del group.members[others[0]]
            case _:
                extra += 1
                group.join(f"x{extra}" if random.random() < 0.7 else None)
        if group.members.keys() and random.random() < 0.9:  # at times two things happen before the next rebalance
            group.rebalance()
    return group.moves
