"""The interface of client-side assignors: what members send when they join, and what the leader assigns.

Pure: no clock, no randomness, no I/O. User data is opaque to brokers and travels in both directions (KIP-54): that of a
member with its subscription to the leader, that of the leader with each assignment to the member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "NO_GENERATION",
    "Assignment",
    "Assignor",
    "RebalanceProtocol",
    "Subscription",
    "TopicPartition",
    "partitions_by_topic",
    "sort_members",
]

TopicPartition = tuple[str, int]
# Of a member that owns nothing from an earlier generation: any claim of another member is newer.
NO_GENERATION = -1


class RebalanceProtocol(Enum):
    """Whether a member revokes everything before a rebalance (eager), or only what moves (cooperative, KIP-429)."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The subscription of one member in JoinGroup.

    Attributes:
        topics: Topics to read.
        user_data: Data of the assignor.
        owned_partitions: Partitions that the member owns.
        generation_id: Generation in which they were assigned.
        rack_id: Rack of the member.
        instance_id: Id of a static member (KIP-345).
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The assignment of one member in SyncGroup: its partitions, and user data of the leader."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


class Assignor:
    """Base class of client-side assignors. A subclass must define `name` and `assign`.

    Attributes:
        name: Sent in JoinGroup; the members of a group must have one in common.
        protocols: Supported rebalance protocols. With COOPERATIVE an assignor must not assign a partition to a new
            owner while the old one still claims it.

    Example:
        class FirstMemberTakesAll(Assignor):
            name = "first-member"

            def assign(self, partitions, members):
                first = min(members)
                every = [(topic, n) for topic, count in partitions.items() for n in range(count)]
                return {m: Assignment(partitions=tuple(every) if m == first else ()) for m in members}
    """

    name: str = ""
    protocols: frozenset[RebalanceProtocol] = frozenset({RebalanceProtocol.EAGER})

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        """Return the user data of this member's subscription; called each time it joins."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        """Assign partitions to members; called on the leader.

        Args:
            partitions: Existing topic → number of partitions.
            members: Member id → subscription.

        Returns:
            One assignment per member.
        """
        raise NotImplementedError

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        """Take note of this member's assignment; called on every member after each rebalance."""


def sort_members(members: Mapping[str, Subscription]) -> list[str]:
    """Return member ids in Kafka's order: static members by instance id, then the others by member id."""
    # Static members first, by instance id: their order survives a restart, in which the member id changes (KIP-345).
    return sorted(members, key=lambda member: _rank(member, members[member]))


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return topic → partition numbers, both sorted."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _rank(member_id: str, subscription: Subscription) -> tuple[bool, str]:
    instance_id = subscription.instance_id
    # False sorts before True.
    return (False, instance_id) if instance_id is not None else (True, member_id)
