"""sticky (eager) and cooperative-sticky (KIP-54, KIP-429): what members had, they keep, as far as the balance allows.

What a member had travels as Kafka's Java client sends it: for `sticky` in the user data of its subscription (its
partitions and the generation), for `cooperative-sticky` in the subscription itself from v1 on, with the generation in
the user data for members that write older versions. User data that cannot be read counts as none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from headrace.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
    TopicPartition,
    by_member,
)
from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions
from headrace.assignors.sticky_balance import balanced, owners_by_generation

__all__ = [
    "CooperativeStickyAssignor",
    "StickyAssignor",
    "decode_sticky_user_data",
    "encode_sticky_user_data",
    "readable_topics",
    "without_claimed",
]

Claim = tuple[Sequence[TopicPartition], int]


class StickyAssignor(Assignor):
    """Mutable: remembers its member's last assignment, to tell the next leader."""

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[tuple[TopicPartition, ...], int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        return None if self._last is None else encode_sticky_user_data(*self._last)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._last = (assignment.partitions, generation_id)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        return _assigned(_balanced(partitions, members, {m: _told(s.user_data) for m, s in members.items()}))


class CooperativeStickyAssignor(Assignor):
    """Mutable: remembers its member's last generation.

    A partition that moves is left out of this rebalance; its owner gives it back and asks for the next one, which
    hands it out.
    """

    name = "cooperative-sticky"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self) -> None:
        self._generation_id = NO_GENERATION

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        return struct.pack(">i", self._generation_id)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:  # noqa: ARG002
        self._generation_id = generation_id

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        given = _balanced(partitions, members, {m: _owned(subscription) for m, subscription in members.items()})
        return _assigned(without_claimed(given, members))


def without_claimed(
    given: Mapping[str, Sequence[TopicPartition]], members: Mapping[str, Subscription]
) -> dict[str, list[TopicPartition]]:
    """What each member gets now: not what another one claims as its own, that is handed out when it was given back."""
    claimed = {each for subscription in members.values() for each in subscription.owned_partitions}
    now: dict[str, list[TopicPartition]] = {}
    for member, mine in given.items():
        own = frozenset(members[member].owned_partitions)
        now[member] = [partition for partition in mine if partition in own or partition not in claimed]
    return now


def encode_sticky_user_data(partitions: Sequence[TopicPartition], generation_id: int) -> bytes:
    """StickyAssignorUserData v1: partitions by topic, then the generation. It carries no version."""
    return encode_partitions(sorted(partitions)) + struct.pack(">i", generation_id)


def decode_sticky_user_data(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """v1, or v0 when the generation is missing. Raises MalformedUserData."""
    reader = Reader(data)
    partitions = reader.partitions()
    return partitions, reader.int32() if reader.left >= 4 else NO_GENERATION


def _told(user_data: bytes | None) -> Claim:
    try:
        return decode_sticky_user_data(user_data) if user_data else ((), NO_GENERATION)
    except MalformedUserData:
        return (), NO_GENERATION


def _owned(subscription: Subscription) -> Claim:
    generation_id = subscription.generation_id
    if generation_id == NO_GENERATION and subscription.user_data is not None and len(subscription.user_data) >= 4:
        (generation_id,) = struct.unpack_from(">i", subscription.user_data)
    return subscription.owned_partitions, generation_id


def _balanced(
    partitions: Mapping[str, int], members: Mapping[str, Subscription], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    if not members:
        return {}
    return balanced(partitions, readable_topics(partitions, members), owners_by_generation(claims))


def readable_topics(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, frozenset[str]]:
    """Of each member, in Kafka's order, the topics it reads that exist."""
    return {
        member: frozenset(topic for topic in members[member].topics if topic in partitions)
        for member in by_member(members)
    }


def _assigned(given: Mapping[str, Sequence[TopicPartition]]) -> dict[str, Assignment]:
    return {member: Assignment(partitions=tuple(mine)) for member, mine in given.items()}
