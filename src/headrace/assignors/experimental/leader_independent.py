"""`LeaderIndependentSticky`: every member carries the whole assignment, so that any leader knows who owned what.

With Kafka's sticky assignors each member reports its own partitions only. What no member reports is free: a static
member that restarted without its memory has lost its claim, and gets whatever is left. Here the leader writes the
complete assignment into the user data of every assignment, every member returns it when it joins again, and the next
leader uses the newest copy that can be read. Static members are identified by their instance id, so they get their
partitions back.
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
    partitions_by_topic,
)
from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions, encode_string
from headrace.assignors.experimental.user_data import member_key, pack, unpack
from headrace.assignors.kafka_assignors import exclude_claimed, subscribed_topics
from headrace.assignors.sticky_balance import balance_partitions, resolve_owners

__all__ = ["LeaderIndependentSticky", "decode_user_data"]

# First byte of the user data. The numbers of all experimental assignors differ, so that bytes of another one are never
# read as these.
_ASSIGNMENT, _SUBSCRIPTION = 1, 2
Whole = Mapping[str, Sequence[TopicPartition]]
"""Member key (`member_key`) → its partitions."""


class LeaderIndependentSticky(Assignor):
    """Sticky across leaders. Mutable: keeps the whole assignment of the last generation for the next leader.

    As balanced as `StickyAssignor`. In an eager group (one with members that only support eager assignors) everything
    is revoked before a rebalance, in a cooperative one only what moves. An assignment above 1 MiB is not sent; then
    only the partitions that members claim count.
    """

    name = "headrace-leader-independent-sticky"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self) -> None:
        self._last: tuple[bytes, int] | None = None

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        if self._last is None:
            return None
        whole, generation_id = self._last
        return pack(_SUBSCRIPTION, struct.pack(">i", generation_id) + whole)

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        whole = _read_whole(unpack(_ASSIGNMENT, assignment.user_data))
        # Encoded once here, not with each join: a member may join many times during one rebalance.
        self._last = None if whole is None else (_encode_whole(whole), generation_id)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        if not members:
            return {}
        # The user data describe the target, the partitions what may be assigned now: one that still moves is left out
        # until its owner has revoked it (`exclude_claimed`), but the next leader must know where it was going.
        target = balance_partitions(partitions, subscribed_topics(partitions, members), _owners(members))
        keys = {member: member_key(member, members[member].instance_id) for member in target}
        told = pack(_ASSIGNMENT, _encode_whole({keys[member]: mine for member, mine in target.items()}))
        now = exclude_claimed(target, members)
        return {member: Assignment(partitions=tuple(mine), user_data=told) for member, mine in now.items()}


def _owners(members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Return the owner of each partition: by the newest whole assignment, then by the claims of members."""
    by_key = {member_key(member, subscription.instance_id): member for member, subscription in members.items()}
    owner: dict[TopicPartition, str] = {}
    generation_id = NO_GENERATION
    for member in sorted(members):
        whole, since = _read_subscription(members[member])
        # The newest copy wins. Copies of one generation are equal, because one leader wrote them.
        if since > generation_id:
            generation_id = since
            owner = {each: by_key[key] for key, mine in whole.items() if key in by_key for each in mine}
    claims = {
        member: (members[member].owned_partitions, members[member].generation_id)
        for member in sorted(members)
        if members[member].owned_partitions
    }
    # Claims from a later generation than the copy are newer than it; older ones only fill gaps.
    younger = {member: claim for member, claim in claims.items() if claim[1] > generation_id}
    return resolve_owners(claims) | owner | resolve_owners(younger)


def _read_subscription(subscription: Subscription) -> tuple[Whole, int]:
    return _read_user_data(subscription.user_data)


def _read_user_data(user_data: bytes | None) -> tuple[Whole, int]:
    reader = unpack(_SUBSCRIPTION, user_data)
    if reader is None:
        return {}, NO_GENERATION
    try:
        generation_id = reader.int32()
    except MalformedUserData:
        return {}, NO_GENERATION
    whole = _read_whole(reader)
    return ({}, NO_GENERATION) if whole is None else (whole, generation_id)


def _encode_whole(whole: Whole) -> bytes:
    parts = [struct.pack(">i", len(whole))]
    for key in sorted(whole):
        parts += [encode_string(key), encode_partitions(sorted(whole[key]))]
    return b"".join(parts)


def _read_whole(reader: Reader | None) -> Whole | None:
    if reader is None:
        return None
    try:
        # 6: the fewest bytes of an entry (a string's length and a count), which bounds what a false count can cost.
        return {reader.string(): reader.partitions() for _ in range(reader.count(6))}
    except MalformedUserData:
        return None


def decode_user_data(data: bytes) -> dict[str, object] | None:
    """Return the whole assignment (and of a subscription its generation) as plain values; None for other bytes."""
    generation: dict[str, object] = {}
    whole = _read_whole(unpack(_ASSIGNMENT, data))
    if whole is None:
        told, generation_id = _read_user_data(data)
        if generation_id == NO_GENERATION:
            return None
        whole, generation = told, {"generation": generation_id}
    return {**generation, "assignment": {key: partitions_by_topic(mine) for key, mine in whole.items()}}
