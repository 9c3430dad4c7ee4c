"""`WarmSpares`: besides its owner a partition has spares, which read it without acting; one of them takes over at once.

A partition is in the assignment of several members. The user data of the assignment names those that the member only
keeps warm; the others it owns. Members send both in the user data of their subscription, so that any leader knows them.
If an owner dies, a spare is the owner in the next generation: it has read everything already, and no partition moves.

Two live members never own a partition at the same time: one that moves is revoked first and has no owner until the next
generation. A spare must not commit; `WarmSpares.roles` tells which partitions are owned.
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
    partitions_by_topic,
)
from headrace.assignors.consumer_protocol import MalformedUserData, encode_partitions
from headrace.assignors.experimental.user_data import pack, unpack
from headrace.assignors.kafka_assignors import encode_sticky_user_data, subscribed_topics
from headrace.assignors.sticky_balance import balance_partitions, resolve_owners

__all__ = ["Roles", "WarmSpares", "decode_user_data"]

_ASSIGNMENT, _SUBSCRIPTION = 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of a member: it acts on its active partitions and only reads its spare ones."""

    active: frozenset[TopicPartition] = frozenset()
    spare: frozenset[TopicPartition] = frozenset()
    generation_id: int = NO_GENERATION


class WarmSpares(Assignor):
    """Assignor with spare readers. Mutable.

    Args:
        spares: Spares per partition, as far as there are members.
        on_roles: Called with the new roles after each rebalance, on the thread of the membership and before the
        consumer
            is notified, so it must be fast.

    Attributes:
        roles: The current roles of this member; read them for each batch.
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
        told = {member: _read_subscription(subscription) for member, subscription in members.items()}
        # 1. Who acts on what, from the newest claims. 2. Partitions without an owner go to a spare, which has read
        #    them. 3. The balance. 4. What would change its owner is not assigned as active in this generation
        #    (`moving`): its old owner must revoke it first. 5. Spares.
        owner = resolve_owners({member: (sorted(roles.active), roles.generation_id) for member, roles in told.items()})
        topics = subscribed_topics(partitions, members)
        target = balance_partitions(partitions, topics, owner | _heirs(partitions, topics, told, owner))
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
        """Choose the spares: members that are spares already, then those with the fewest partitions.

        The next owner of a partition that moves is a spare of it until the old one has revoked it.
        """
        spares: dict[str, set[TopicPartition]] = {member: set() for member in target}
        for owner, mine in target.items():
            for each in mine:
                able = [m for m in target if m != owner and m != moving.get(each) and each[0] in topics[m]]
                # A spare that has read the partition already comes first: a new one would start at its beginning.
                able.sort(key=lambda m: (each not in told[m].spare, len(spares[m]) + len(target[m])))
                chosen = able[: self._spares]
                # The next owner must be among the spares, whatever their number: it warms up while the old owner still
                # acts.
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
    """Return a new owner for each partition without one: the spare with the fewest partitions."""
    loads = {member: sum(1 for each in owner if owner[each] == member) for member in topics}
    heirs: dict[TopicPartition, str] = {}
    for topic in sorted(partitions):
        for each in [(topic, number) for number in range(partitions[topic])]:
            holders = [member for member in topics if each in told[member].spare and topic in topics[member]]
            if each in owner or not holders:
                continue
            heirs[each] = min(holders, key=lambda member: loads[member])
            # Counted at once, so that one spare does not inherit everything of an owner that died.
            loads[heirs[each]] += 1
    return heirs


def _read_subscription(subscription: Subscription) -> Roles:
    reader = unpack(_SUBSCRIPTION, subscription.user_data)
    try:
        if reader is not None:
            active, generation_id = reader.partitions(), reader.int32()
            held = frozenset(subscription.owned_partitions)
            # A member must not act on a partition it does not hold any more, whatever its user data says.
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
    """Return the roles in a subscription, or the spares in an assignment, as plain values; None for other bytes."""
    told, spares = unpack(_SUBSCRIPTION, data), unpack(_ASSIGNMENT, data)
    try:
        if told is not None:
            active, generation_id = partitions_by_topic(told.partitions()), told.int32()
            return {"generation": generation_id, "active": active, "spare": partitions_by_topic(told.partitions())}
        return None if spares is None else {"spare": partitions_by_topic(spares.partitions())}
    except MalformedUserData:
        return None
