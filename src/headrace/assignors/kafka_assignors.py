"""Kafka's client-side assignors: range, roundrobin, sticky (KIP-54) and cooperative-sticky (KIP-429).

Range and roundrobin have the results of the Java client. The sticky ones keep what members own as far as the balance
allows (`sticky_balance`). What a member owned is encoded as by the Java client: for `sticky` in the user data of its
subscription (partitions and generation), for `cooperative-sticky` in the subscription itself since v1, with the
generation in the user data for members that write older versions. Unreadable user data counts as none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import cycle

from headrace.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
    TopicPartition,
    sort_members,
)
from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions
from headrace.assignors.sticky_balance import balance_partitions, resolve_owners

__all__ = [
    "CooperativeStickyAssignor",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "decode_sticky_user_data",
    "encode_sticky_user_data",
    "exclude_claimed",
    "subscribed_topics",
]

Claim = tuple[Sequence[TopicPartition], int]
"""The partitions that a member claims to own, and the generation in which they were assigned to it."""


class RangeAssignor(Assignor):
    """Assigns each topic on its own: members in order get consecutive partitions, the first ones one more.

    Topics with the same number of partitions and the same subscribers are co-partitioned: partition 3 of each is with
    the same member. Racks are ignored (KIP-881 is not supported).
    """

    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given: dict[str, list[TopicPartition]] = {member: [] for member in members}
        ordered = sort_members(members)
        for topic in sorted(partitions):
            # Each subscriber gets ⌊n/m⌋ partitions; the first n mod m get one more.
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
    """Assigns all partitions in order to the members in turn, skipping members that do not subscribe to the topic."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given: dict[str, list[TopicPartition]] = {member: [] for member in members}
        topics = {member: frozenset(subscription.topics) for member, subscription in members.items()}
        subscribed = frozenset().union(*topics.values())
        # One cursor for all topics, as in Kafka: it does not start again with each topic, or the first members would
        # get one more of every topic. Each topic has a subscriber (`subscribed` is their union), so the inner loop
        # ends.
        turn = cycle(sort_members(members))
        for topic in sorted(subscribed & partitions.keys()):
            for partition in range(partitions[topic]):
                member = next(turn)
                while topic not in topics[member]:
                    member = next(turn)
                given[member].append((topic, partition))
        return {member: Assignment(partitions=tuple(given[member])) for member in members}


class StickyAssignor(Assignor):
    """Sticky and eager. Mutable: keeps the last assignment of its member, for the next subscription."""

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[tuple[TopicPartition, ...], int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        # Sent with every JoinGroup. A new member has nothing to claim; in Kafka it sends no user data either.
        return None if self._last is None else encode_sticky_user_data(*self._last)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._last = (assignment.partitions, generation_id)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        return _to_assignments(
            _balance_claimed(partitions, members, {m: _claim_of_sticky(s.user_data) for m, s in members.items()})
        )


class CooperativeStickyAssignor(Assignor):
    """Sticky and cooperative. Mutable: keeps the last generation of its member.

    A partition that moves is left unassigned in the first rebalance. Its owner revokes it and joins again; the second
    rebalance assigns it.
    """

    name = "cooperative-sticky"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        # Owned partitions are a field of the subscription since v1, the generation only since v2 (KIP-792). The Java
        # client therefore keeps sending the generation here, for leaders that read v1.
        return struct.pack(">i", self._generation_id)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:  # noqa: ARG002
        self._generation_id = generation_id

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given = _balance_claimed(
            partitions, members, {m: _claim_of_cooperative(subscription) for m, subscription in members.items()}
        )
        return _to_assignments(exclude_claimed(given, members))


def exclude_claimed(
    given: Mapping[str, Sequence[TopicPartition]], members: Mapping[str, Subscription]
) -> dict[str, list[TopicPartition]]:
    """Return the assignment without the partitions that another member still claims; they follow once revoked."""
    # The counterpart of `adjustAssignment` in Kafka's CooperativeStickyAssignor (KIP-429). A partition has at most one
    # owner at any time only because the new one waits for a rebalance in which the old one does not claim it any more.
    claimed = {each for subscription in members.values() for each in subscription.owned_partitions}
    now: dict[str, list[TopicPartition]] = {}
    for member, mine in given.items():
        own = frozenset(members[member].owned_partitions)
        now[member] = [partition for partition in mine if partition in own or partition not in claimed]
    return now


def encode_sticky_user_data(partitions: Sequence[TopicPartition], generation_id: int) -> bytes:
    """Return Kafka's StickyAssignorUserData v1: partitions by topic, then the generation, without a version field."""
    return encode_partitions(sorted(partitions)) + struct.pack(">i", generation_id)


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Return partitions and generation of v1, or of v0, which has no generation. Raises MalformedUserData."""
    # v0 and v1 have no version field to tell them apart: what follows the partitions is the generation, or nothing.
    reader = Reader(data)
    partitions = reader.partitions()
    return partitions, reader.int32() if reader.left >= 4 else NO_GENERATION


def _claim_of_sticky(user_data: bytes | None) -> Claim:
    try:
        return decode_sticky_user_data(user_data) if user_data else ((), NO_GENERATION)
    except MalformedUserData:
        return (), NO_GENERATION


def _claim_of_cooperative(subscription: Subscription) -> Claim:
    # Subscriptions below v2 have no generation field; the Java client puts it into the user data as well.
    generation_id = subscription.generation_id
    if generation_id == NO_GENERATION and subscription.user_data is not None and len(subscription.user_data) >= 4:
        (generation_id,) = struct.unpack_from(">i", subscription.user_data)
    return subscription.owned_partitions, generation_id


def _balance_claimed(
    partitions: Mapping[str, int], members: Mapping[str, Subscription], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    if not members:
        return {}
    return balance_partitions(partitions, subscribed_topics(partitions, members), resolve_owners(claims))


def subscribed_topics(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, frozenset[str]]:
    """Return the existing topics that each member subscribes to; members in Kafka's order."""
    return {
        member: frozenset(topic for topic in members[member].topics if topic in partitions)
        for member in sort_members(members)
    }


def _to_assignments(given: Mapping[str, Sequence[TopicPartition]]) -> dict[str, Assignment]:
    return {member: Assignment(partitions=tuple(mine)) for member, mine in given.items()}
