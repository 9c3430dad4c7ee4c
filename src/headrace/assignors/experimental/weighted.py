"""`WeightedByLoad`: members tell the leader how busy they are, and the leader gives the busy ones less.

Subscription user data carries rack, CPU, memory, lag, and what the member had (so that little moves). A member whose
data cannot be read weighs as much as the average of the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from headrace.assignors.assignor import (
    NO_GENERATION,
    Assignment,
    Assignor,
    RebalanceProtocol,
    Subscription,
    TopicPartition,
)
from headrace.assignors.consumer_protocol import MalformedUserData, encode_string
from headrace.assignors.experimental.user_data import pack, unpack
from headrace.assignors.partition_lists import partitions_by_topic
from headrace.assignors.sticky_assignors import encode_sticky_user_data, readable_topics, without_claimed
from headrace.assignors.sticky_balance import owners_by_generation

__all__ = ["Load", "WeightedByLoad", "decode_user_data", "weight_of"]

_SUBSCRIPTION = 3
_NUMBERS = struct.Struct(">ddq")
LEAST_WEIGHT = 0.1
STEPS = 10  # weights are rounded to tenths: small changes of load move nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How a member is doing: `cpu` and `memory` as shares in use (0 to 1), `lag` in records, -1 when not known."""

    cpu: float = 0.0
    memory: float = 0.0
    lag: int = -1
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    load: Load
    owned: tuple[TopicPartition, ...]
    generation_id: int


class WeightedByLoad(Assignor):
    """Mutable: remembers its member's last assignment. `load` is asked each time the member joins.

    Loads count when a rebalance happens; they cause none. A partition that must move goes to the rack that had it, if
    that is as good.
    """

    name = "headrace-weighted-by-load"
    protocols = frozenset({RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER})

    def __init__(self, load: Callable[[], Load] = Load) -> None:
        self._load = load
        self._last: tuple[tuple[TopicPartition, ...], int] = ((), NO_GENERATION)

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:  # noqa: ARG002
        load = self._load()
        numbers = _NUMBERS.pack(_share(load.cpu), _share(load.memory), max(-1, load.lag))
        return pack(_SUBSCRIPTION, numbers + encode_string(load.rack) + encode_sticky_user_data(*self._last))

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self._last = (assignment.partitions, generation_id)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        if not members:
            return {}
        told = {member: _read(subscription) for member, subscription in members.items()}
        claims = {
            member: (subscription.owned_partitions, subscription.generation_id)
            if subscription.owned_partitions
            else ((), NO_GENERATION)
            if (known := told[member]) is None
            else (known.owned, known.generation_id)
            for member, subscription in members.items()
        }
        racks = {member: "" if known is None else known.load.rack for member, known in told.items()}
        weights = _weights({member: None if known is None else known.load for member, known in told.items()})
        topics = readable_topics(partitions, members)
        given = _divided(partitions, topics, owners_by_generation(claims), weights, racks)
        now = without_claimed(given, members)
        return {member: Assignment(partitions=tuple(mine)) for member, mine in now.items()}


def weight_of(load: Load, usual_lag: float) -> float:
    """What is free of the scarcer of CPU and memory, in tenths; half of it with more than twice the usual lag."""
    free = 1.0 - max(_share(load.cpu), _share(load.memory))
    behind = usual_lag > 0 and load.lag > 2 * usual_lag
    return max(LEAST_WEIGHT, round(free * (0.5 if behind else 1.0) * STEPS) / STEPS)


def _weights(loads: Mapping[str, Load | None]) -> dict[str, float]:
    lags = [load.lag for load in loads.values() if load is not None and load.lag >= 0]
    usual = median(lags) if lags else 0.0
    known = {member: weight_of(load, usual) for member, load in loads.items() if load is not None}
    average = sum(known.values()) / len(known) if known else 1.0
    return {member: known.get(member, average) for member in loads}


def _share(value: float) -> float:
    """What a stranger sends may be anything, NaN included."""
    return min(1.0, max(0.0, value)) if value == value else 0.0


def _read(subscription: Subscription) -> _Told | None:
    return _read_told(subscription.user_data)


def _read_told(user_data: bytes | None) -> _Told | None:
    reader = unpack(_SUBSCRIPTION, user_data)
    if reader is None:
        return None
    try:
        cpu, memory, lag = _NUMBERS.unpack(reader.take(_NUMBERS.size))
        load = Load(cpu=_share(cpu), memory=_share(memory), lag=max(-1, lag), rack=reader.string())
        return _Told(load=load, owned=reader.partitions(), generation_id=reader.int32())
    except MalformedUserData:
        return None


def decode_user_data(data: bytes) -> dict[str, object] | None:
    """Load, owned partitions and generation as plain values, for reports; None for other bytes."""
    told = _read_told(data)
    if told is None:
        return None
    load = {"cpu": told.load.cpu, "memory": told.load.memory, "lag": told.load.lag, "rack": told.load.rack}
    return {**load, "generation": told.generation_id, "owned": partitions_by_topic(told.owned)}


def _divided(
    partitions: Mapping[str, int],
    topics: Mapping[str, frozenset[str]],
    owner: Mapping[TopicPartition, str],
    weights: Mapping[str, float],
    racks: Mapping[str, str],
) -> dict[str, list[TopicPartition]]:
    """Who has fewest for its weight gets the next one; then single ones move while that makes the fullest emptier."""
    wanted = sorted(frozenset().union(*topics.values()) & partitions.keys())
    every = [(topic, number) for topic in wanted for number in range(partitions[topic])]
    given: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    free = []
    for each in every:
        member = owner.get(each)
        if member is not None and each[0] in topics.get(member, frozenset()):
            given[member].append(each)
        else:
            free.append(each)

    def filled(member: str, more: int = 0) -> float:
        return (len(given[member]) + more) / weights[member]

    rank = {member: number for number, member in enumerate(topics)}
    for each in free:
        readers = [member for member in topics if each[0] in topics[member]]
        given[min(readers, key=lambda member: (filled(member, 1), rank[member]))].append(each)
    while True:
        step = _step(given, topics, filled, rank, racks)
        if step is None:
            return {member: sorted(mine) for member, mine in given.items()}
        each, source, target = step
        given[source].remove(each)
        given[target].append(each)


def _step(
    given: Mapping[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    filled: Callable[..., float],
    rank: Mapping[str, int],
    racks: Mapping[str, str],
) -> tuple[TopicPartition, str, str] | None:
    """A move after which the one who got is less full than the one who gave was: so it comes to an end."""
    for source in sorted(given, key=lambda member: (-filled(member), rank[member])):
        targets = [member for member in given if filled(member, 1) < filled(source)]
        for target in sorted(targets, key=lambda m: (filled(m, 1), racks[m] != racks[source], rank[m])):
            movable = [each for each in given[source] if each[0] in topics[target]]
            if movable:
                return movable[-1], source, target
    return None
