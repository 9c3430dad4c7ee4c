"""The balance that both sticky assignors look for: as even as subscriptions allow, with few partitions moving.

`balanced` keeps what members own as far as an even share allows, hands out what is left, and then moves single
partitions from fuller to emptier members until no move helps. With equal subscriptions nobody ends with more than one
partition more than another, and no partition moves that need not.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from headrace.assignors.assignor import TopicPartition

__all__ = ["balanced", "owners_by_generation"]

Claims = Mapping[str, tuple[Sequence[TopicPartition], int]]


def owners_by_generation(claims: Claims) -> dict[TopicPartition, str]:
    """Who owns what, of what members say: the youngest generation is right; two of the same generation both are not."""
    owner: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    disputed: set[TopicPartition] = set()
    for member, (partitions, generation) in claims.items():
        for partition in dict.fromkeys(partitions):
            known = since.get(partition)
            if known is not None and generation <= known:
                if generation == known:
                    disputed.add(partition)
                continue
            disputed.discard(partition)
            owner[partition] = member
            since[partition] = generation
    return {partition: member for partition, member in owner.items() if partition not in disputed}


def balanced(
    partitions: Mapping[str, int], topics: Mapping[str, frozenset[str]], owner: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """`topics` of each member, in the order that decides between equals; `owner` as things are."""
    wanted = sorted(frozenset().union(*topics.values()) & partitions.keys())
    every = [(topic, number) for topic in wanted for number in range(partitions[topic])]
    kept = {
        partition: owner[partition]
        for partition in every
        if partition in owner and partition[0] in topics.get(owner[partition], frozenset())
    }
    if len(set(topics.values())) == 1:
        return _even(every, list(topics), kept)
    return _uneven(every, topics, kept)


def _even(
    every: list[TopicPartition], members: list[str], kept: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """All read the same: everybody gets the least share, and as many as there is a rest for one more."""
    share, rest = divmod(len(every), len(members))
    owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for partition in every:
        if partition in kept:
            owned[kept[partition]].append(partition)
    given: dict[str, list[TopicPartition]] = {}
    for member in members:
        more = len(owned[member]) > share and rest > 0
        rest -= more
        given[member] = owned[member][: share + more]
    taken = {partition for mine in given.values() for partition in mine}
    free = iter([partition for partition in every if partition not in taken])
    for member in members:
        while len(given[member]) < share:
            given[member].append(next(free))
    # What is left now is the rest that nobody owned: one each.
    for member, partition in zip((m for m in members if len(given[m]) == share), free, strict=False):
        given[member].append(partition)
    return given


def _uneven(
    every: list[TopicPartition], topics: Mapping[str, frozenset[str]], kept: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    given: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    for partition, member in kept.items():
        given[member].append(partition)
    readers = {
        topic: [member for member in topics if topic in topics[member]] for topic in dict.fromkeys(t for t, _ in every)
    }
    rank = {member: index for index, member in enumerate(topics)}
    free = [partition for partition in every if partition not in kept]
    # What few can read goes first, and to the emptiest.
    for partition in sorted(free, key=lambda each: (len(readers[each[0]]), each)):
        given[min(readers[partition[0]], key=lambda member: (len(given[member]), rank[member]))].append(partition)
    _level(given, topics, kept, rank)
    return {member: sorted(mine) for member, mine in given.items()}


def _level(
    given: dict[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    kept: Mapping[TopicPartition, str],
    rank: Mapping[str, int],
) -> None:
    """Moves one partition at a time from the fullest to the emptiest that may read it, while they differ by two.

    Each move lowers the sum of squares of the loads, so it ends.
    """
    order = [(len(mine), rank[member], member) for member, mine in given.items()]
    order.sort()
    moved = True
    while moved:
        moved = False
        for full in reversed(order):
            step = _move_from(full[2], order, given, topics, kept)
            if step is None:
                continue
            partition, to = step
            given[full[2]].remove(partition)
            given[to].append(partition)
            for member in (full[2], to):
                order.remove(next(entry for entry in order if entry[2] == member))
                insort(order, (len(given[member]), rank[member], member))
            moved = True
            break


def _move_from(
    member: str,
    order: list[tuple[int, int, str]],
    given: Mapping[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    kept: Mapping[TopicPartition, str],
) -> tuple[TopicPartition, str] | None:
    for load, _, to in order:
        if load + 1 >= len(given[member]):
            return None
        movable = [partition for partition in given[member] if partition[0] in topics[to]]
        if movable:
            # Back to whom it belonged, else one that moves anyway, else the last.
            return max(movable, key=lambda each: (kept.get(each) == to, kept.get(each) != member, each)), to
    return None
