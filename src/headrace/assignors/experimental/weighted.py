"""`WeightedByLoad`: members report how loaded they are, and the leader assigns fewer partitions to the loaded ones.

The user data of a subscription has rack, CPU, memory, lag, and what the member owned (so that little moves). A member
whose data cannot be read gets the average weight of the others.
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
    partitions_by_topic,
)
from headrace.assignors.consumer_protocol import MalformedUserData, encode_string
from headrace.assignors.experimental.user_data import pack, unpack
from headrace.assignors.kafka_assignors import encode_sticky_user_data, exclude_claimed, subscribed_topics
from headrace.assignors.sticky_balance import resolve_owners

__all__ = ["Load", "WeightedByLoad", "decode_user_data", "weight_of"]

_SUBSCRIPTION = 3
_NUMBERS = struct.Struct(">ddq")
MIN_WEIGHT = 0.1
STEPS = 10  # weights are rounded to tenths, so that small changes of load move nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a member: `cpu` and `memory` in use as shares (0 to 1), `lag` in records (-1 if unknown)."""

    cpu: float = 0.0
    memory: float = 0.0
    lag: int = -1
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    load: Load
    owned: tuple[TopicPartition, ...]
    generation_id: int


class WeightedByLoad(Assignor):
    """Assignor by load. Mutable: keeps the last assignment of its member.

    Loads are used when a rebalance happens; they cause none. A partition that must move stays in its rack if that is as
    balanced.

    Args:
        load: Called each time the member joins; returns its load.
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
        # 1. What each member claims to own. `owned_partitions` is Kafka's own field and wins; the copy in the user data
        #    serves members whose client sends a subscription without that field (v0).
        told = {member: _read_subscription(subscription) for member, subscription in members.items()}
        claims = {
            member: (subscription.owned_partitions, subscription.generation_id)
            if subscription.owned_partitions
            else ((), NO_GENERATION)
            if (known := told[member]) is None
            else (known.owned, known.generation_id)
            for member, subscription in members.items()
        }
        # 2. Weights: 1.0 for an idle member, less for a loaded one.
        racks = {member: "" if known is None else known.load.rack for member, known in told.items()}
        weights = _weights({member: None if known is None else known.load for member, known in told.items()})
        # 3. Divide, then withhold what another member has yet to revoke: the protocol is cooperative, and its rule of
        #    two rebalances holds whatever the balance is.
        topics = subscribed_topics(partitions, members)
        given = _divide(partitions, topics, resolve_owners(claims), weights, racks)
        now = exclude_claimed(given, members)
        return {member: Assignment(partitions=tuple(mine)) for member, mine in now.items()}


def weight_of(load: Load, median_lag: float) -> float:
    """Return the free share of the scarcer of CPU and memory, in tenths; half of it above twice the median lag."""
    # The scarcer resource decides: a member with idle memory and a busy CPU has no room for another partition. Lag is
    # compared with the median and not with the mean, which one stuck member would lift for everyone.
    free = 1.0 - max(_share(load.cpu), _share(load.memory))
    behind = median_lag > 0 and load.lag > 2 * median_lag
    return max(MIN_WEIGHT, round(free * (0.5 if behind else 1.0) * STEPS) / STEPS)


def _weights(loads: Mapping[str, Load | None]) -> dict[str, float]:
    lags = [load.lag for load in loads.values() if load is not None and load.lag >= 0]
    median_lag = median(lags) if lags else 0.0
    known = {member: weight_of(load, median_lag) for member, load in loads.items() if load is not None}
    average = sum(known.values()) / len(known) if known else 1.0
    return {member: known.get(member, average) for member in loads}


def _share(value: float) -> float:
    """Clamp an untrusted value, which may be NaN, to [0, 1]."""
    return min(1.0, max(0.0, value)) if value == value else 0.0


def _read_subscription(subscription: Subscription) -> _Report | None:
    return _read_user_data(subscription.user_data)


def _read_user_data(user_data: bytes | None) -> _Report | None:
    reader = unpack(_SUBSCRIPTION, user_data)
    if reader is None:
        return None
    try:
        cpu, memory, lag = _NUMBERS.unpack(reader.take(_NUMBERS.size))
        load = Load(cpu=_share(cpu), memory=_share(memory), lag=max(-1, lag), rack=reader.string())
        return _Report(load=load, owned=reader.partitions(), generation_id=reader.int32())
    except MalformedUserData:
        return None


def decode_user_data(data: bytes) -> dict[str, object] | None:
    """Return load, owned partitions and generation as plain values; None for other bytes."""
    told = _read_user_data(data)
    if told is None:
        return None
    load = {"cpu": told.load.cpu, "memory": told.load.memory, "lag": told.load.lag, "rack": told.load.rack}
    return {**load, "generation": told.generation_id, "owned": partitions_by_topic(told.owned)}


def _divide(
    partitions: Mapping[str, int],
    topics: Mapping[str, frozenset[str]],
    owner: Mapping[TopicPartition, str],
    weights: Mapping[str, float],
    racks: Mapping[str, str],
) -> dict[str, list[TopicPartition]]:
    """Assign free partitions to the member with the fewest for its weight; then move single ones while it helps."""
    wanted = sorted(frozenset().union(*topics.values()) & partitions.keys())
    every = [(topic, number) for topic in wanted for number in range(partitions[topic])]
    # 1. Members keep what they own and still subscribe to.
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

    # 2. Each free partition goes to the reader that is filled least after it has been added.
    rank = {member: number for number, member in enumerate(topics)}
    for each in free:
        readers = [member for member in topics if each[0] in topics[member]]
        given[min(readers, key=lambda member: (filled(member, 1), rank[member]))].append(each)
    # 3. Move single partitions while that helps. `_find_move` accepts a move only if the target ends below the level
    #    that the source had, so the loads, sorted from the fullest, fall with each move and the loop ends.
    while True:
        move = _find_move(given, topics, filled, rank, racks)
        if move is None:
            return {member: sorted(mine) for member, mine in given.items()}
        each, source, target = move
        given[source].remove(each)
        given[target].append(each)


def _find_move(
    given: Mapping[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    filled: Callable[..., float],
    rank: Mapping[str, int],
    racks: Mapping[str, str],
) -> tuple[TopicPartition, str, str] | None:
    """Return a move that leaves the target less filled than the source was, so that moving terminates; None if none."""
    for source in sorted(given, key=lambda member: (-filled(member), rank[member])):
        # From the fullest source to the least filled target. The rack decides only between targets that are equally
        # filled: moving within a rack is cheaper, but balance is what this assignor is for.
        targets = [member for member in given if filled(member, 1) < filled(source)]
        for target in sorted(targets, key=lambda m: (filled(m, 1), racks[m] != racks[source], rank[m])):
            movable = [each for each in given[source] if each[0] in topics[target]]
            if movable:
                return movable[-1], source, target
    return None
