"""`WarmSpares`: besides its owner a partition has spares, who read it without acting; one of them takes over at once.

A partition is in the assignment of several members; the assignment's user data says which ones the member only keeps
warm (the rest are its own). Members tell both in their subscription user data, so any leader knows. When an owner dies
a spare becomes the owner in the next generation: it has read everything already, and no partition changes hands.

Rules it obeys: two living members never own a partition at the same time: one that moves is taken away first, and is
owned by nobody until the next generation. A spare never commits: `roles` says what is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
    TopicPartition,
)
from headrace.assignors.consumer_protocol import MalformedUserData, encode_partitions
from headrace.assignors.experimental.user_data import pack, unpack
from headrace.assignors.partition_lists import partitions_by_topic
from headrace.assignors.sticky_assignors import encode_sticky_user_data, readable_topics
from headrace.assignors.sticky_balance import balanced, owners_by_generation

__all__ = ["Roles", "WarmSpares", "decode_user_data"]

_ASSIGNMENT, _SUBSCRIPTION = 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What a member is to do with its partitions: act on the active ones, only read the spare ones."""

    active: frozenset[TopicPartition] = frozenset()
    spare: frozenset[TopicPartition] = frozenset()
    generation_id: int = NO_GENERATION


class WarmSpares(Assignor):
    """Mutable: the member's present roles. Read `roles` for each batch; `on_roles` hears of changes.

    `spares`: how many for each partition, as far as there are members. `on_roles` is called on the membership's thread,
    before the consumer is told: it must be short.
    """

    name = "headrace-warm-spares"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE})

    def __init__(self, spares: int = 1, on_roles: Callable[[Roles], None] | None = None) -> None:
        self._spares = spares
        self._on_roles = on_roles
        self.roles = Roles()

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        roles = self.roles
        owned = encode_sticky_user_data(sorted(roles.active), roles.generation_id)
        return pack(_SUBSCRIPTION, owned + encode_partitions(sorted(roles.spare)))

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        spare = _spares_in(assignment)
        every = frozenset(assignment.partitions)
        self.roles = Roles(active=every - spare, spare=every & spare, generation_id=generation_id)
        if self._on_roles is not None:
            self._on_roles(self.roles)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        if not members:
            return {}
        told = {member: _told(subscription) for member, subscription in members.items()}
        owner = owners_by_generation(
            {member: (sorted(roles.active), roles.generation_id) for member, roles in told.items()}
        )
        topics = readable_topics(partitions, members)
        target = balanced(partitions, topics, owner | _heirs(partitions, topics, told, owner))
        moving = {
            each: owner[each] for member, mine in target.items() for each in mine if owner.get(each, member) != member
        }
        spares = self._spares_of(target, topics, told, moving)
        return {
            member: Assignment(
                partitions=tuple(sorted({each for each in target[member] if each not in moving} | spares[member])),
                user_data=pack(_ASSIGNMENT, encode_partitions(sorted(spares[member]))),
            )
            for member in target
        }

    def _spares_of(
        self,
        target: Mapping[str, Sequence[TopicPartition]],
        topics: Mapping[str, frozenset[str]],
        told: Mapping[str, Roles],
        moving: Mapping[TopicPartition, str],
    ) -> dict[str, set[TopicPartition]]:
        """Who keeps what warm: who does already, then who has least. The next owner of a moving one is its spare."""
        spares: dict[str, set[TopicPartition]] = {member: set() for member in target}
        for owner, mine in target.items():
            for each in mine:
                able = [m for m in target if m != owner and m != moving.get(each) and each[0] in topics[m]]
                able.sort(key=lambda m: (each not in told[m].spare, len(spares[m]) + len(target[m])))
                chosen = able[: self._spares]
                if each in moving:
                    chosen = [owner, *chosen[: max(0, self._spares - 1)]]
                for member in chosen:
                    spares[member].add(each)
        return spares


def _heirs(
    partitions: Mapping[str, int],
    topics: Mapping[str, frozenset[str]],
    told: Mapping[str, Roles],
    owner: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """For what nobody owns any more: the spare that has least to do."""
    loads = {member: sum(1 for each in owner if owner[each] == member) for member in topics}
    heirs: dict[TopicPartition, str] = {}
    for topic in sorted(partitions):
        for each in [(topic, number) for number in range(partitions[topic])]:
            holders = [member for member in topics if each in told[member].spare and topic in topics[member]]
            if each in owner or not holders:
                continue
            heirs[each] = min(holders, key=lambda member: loads[member])
            loads[heirs[each]] += 1
    return heirs


def _told(subscription: Subscription) -> Roles:
    reader = unpack(_SUBSCRIPTION, subscription.user_data)
    try:
        if reader is not None:
            active, generation_id = reader.partitions(), reader.int32()
            held = frozenset(subscription.owned_partitions)
            # What it does not hold any more it cannot act on, whatever it once was told.
            return Roles(
                active=frozenset(active) & held,
                spare=frozenset(reader.partitions()) & held,
                generation_id=generation_id,
            )
    except MalformedUserData:
        pass
    return Roles(active=frozenset(subscription.owned_partitions), generation_id=subscription.generation_id)


def _spares_in(assignment: Assignment) -> frozenset[TopicPartition]:
    reader = unpack(_ASSIGNMENT, assignment.user_data)
    try:
        return frozenset() if reader is None else frozenset(reader.partitions())
    except MalformedUserData:
        return frozenset()


def decode_user_data(data: bytes) -> dict[str, object] | None:
    """Roles as plain values: active and spare partitions of a subscription, spares of an assignment; None for other
    bytes."""
    told, spares = unpack(_SUBSCRIPTION, data), unpack(_ASSIGNMENT, data)
    try:
        if told is not None:
            active, generation_id = partitions_by_topic(told.partitions()), told.int32()
            return {"generation": generation_id, "active": active, "spare": partitions_by_topic(told.partitions())}
        return None if spares is None else {"spare": partitions_by_topic(spares.partitions())}
    except MalformedUserData:
        return None
