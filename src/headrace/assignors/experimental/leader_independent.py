"""`LeaderIndependentSticky`: the whole assignment in every member's user data, so any leader knows who had what.

With Kafka's sticky assignors each member tells its own partitions. What nobody tells is free: a static member that came
back without a memory has lost its claim, and gets whatever is left. Here the leader writes the complete assignment into
everybody's assignment user data, everybody brings it along when it joins again, and the next leader takes the youngest
copy that can be read. Static members are known by their instance id, so they find their place again.
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
)
from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions, encode_string
from headrace.assignors.experimental.user_data import member_key, pack, unpack
from headrace.assignors.partition_lists import partitions_by_topic
from headrace.assignors.sticky_assignors import readable_topics, without_claimed
from headrace.assignors.sticky_balance import balanced, owners_by_generation

__all__ = ["LeaderIndependentSticky", "decode_user_data"]

_ASSIGNMENT, _SUBSCRIPTION = 1, 2
Whole = Mapping[str, Sequence[TopicPartition]]
"""Of each member's key what it has."""


class LeaderIndependentSticky(Assignor):
    """Mutable: remembers the whole assignment of its last generation, to tell the next leader.

    As even as `StickyAssignor`. In an eager group (beside eager assignors) everything is given back before a rebalance,
    in a cooperative one only what moves. An assignment too large to be told (a mebibyte) is told by nobody: then only
    what members say they own counts.
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
        self._last = None if whole is None else (_encode_whole(whole), generation_id)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        if not members:
            return {}
        target = balanced(partitions, readable_topics(partitions, members), _owners(members))
        keys = {member: member_key(member, members[member].instance_id) for member in target}
        told = pack(_ASSIGNMENT, _encode_whole({keys[member]: mine for member, mine in target.items()}))
        now = without_claimed(target, members)
        return {member: Assignment(partitions=tuple(mine), user_data=told) for member, mine in now.items()}


def _owners(members: Mapping[str, Subscription]) -> dict[TopicPartition, str]:
    """Who had what: the youngest whole assignment that anybody brings, then what members own by their own word."""
    by_key = {member_key(member, subscription.instance_id): member for member, subscription in members.items()}
    owner: dict[TopicPartition, str] = {}
    generation_id = NO_GENERATION
    for member in sorted(members):
        whole, since = _told(members[member])
        if since > generation_id:
            generation_id = since
            owner = {each: by_key[key] for key, mine in whole.items() if key in by_key for each in mine}
    claims = {
        member: (members[member].owned_partitions, members[member].generation_id)
        for member in sorted(members)
        if members[member].owned_partitions
    }
    younger = {member: claim for member, claim in claims.items() if claim[1] > generation_id}
    return owners_by_generation(claims) | owner | owners_by_generation(younger)


def _told(subscription: Subscription) -> tuple[Whole, int]:
    return _read_told(subscription.user_data)


def _read_told(user_data: bytes | None) -> tuple[Whole, int]:
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
        return {reader.string(): reader.partitions() for _ in range(reader.count(6))}
    except MalformedUserData:
        return None


def decode_user_data(data: bytes) -> dict[str, object] | None:
    """The whole assignment by member (and its generation, in a subscription) as plain values; None for other bytes."""
    generation: dict[str, object] = {}
    whole = _read_whole(unpack(_ASSIGNMENT, data))
    if whole is None:
        told, generation_id = _read_told(data)
        if generation_id == NO_GENERATION:
            return None
        whole, generation = told, {"generation": generation_id}
    return {**generation, "assignment": {key: partitions_by_topic(mine) for key, mine in whole.items()}}
