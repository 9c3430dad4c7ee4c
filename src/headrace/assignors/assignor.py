"""What a client-side assignor is: what members say, what the leader decides, and the doors for one's own assignor.

Pure: no clock, no chance, no I/O. User data is opaque to brokers and travels in both directions (KIP-54's doors): each
member's with its subscription to the leader, the leader's with each assignment to the member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "NO_GENERATION",
    "Assignment",
    "Assignor",
    "RebalanceProtocol",
    "Subscription",
    "TopicPartition",
    "by_member",
]

TopicPartition = tuple[str, int]
NO_GENERATION = -1


class RebalanceProtocol(Enum):
    """What a member does before it joins a rebalance: give everything back, or keep what it may (KIP-429)."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What one member says when it joins. `owned_partitions` with `generation_id`: what it had, and since when."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the leader gives one member."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class Assignor:
    """Base of all client-side assignors: `assign` is what an own one has to write, the rest has defaults.

    `name` travels in JoinGroup: all members of a group need one in common. An assignor that names COOPERATIVE promises
    to give a partition to a new owner only after its old one stopped claiming it.
    """

    name: str = ""
    protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.EAGER})

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        """What this member tells the leader beside its topics; asked for each time it joins."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """On the leader: who gets what. `partitions`: of each topic that exists, how many. One entry per member."""
        raise NotImplementedError

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """On every member, after each rebalance: what it was given, with the leader's user data."""


def by_member(members: Mapping[str, Subscription]) -> list[str]:
    """Member ids in Kafka's order: static members by instance id, then the others by member id."""
    return sorted(members, key=lambda member: _rank(member, members[member]))


def _rank(member_id: str, subscription: Subscription) -> tuple[bool, str]:
    instance_id = subscription.instance_id
    return (False, instance_id) if instance_id is not None else (True, member_id)
