"""The balance that the sticky assignors compute: as even as subscriptions allow, with few partitions moving.

`balance_partitions` keeps what members own up to an even share, assigns what is left, and then moves single partitions
from members with more to members with fewer until no move helps. With equal subscriptions no member ends with more than
one partition more than another, and no partition moves that does not have to.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from headrace.assignors.assignor import TopicPartition

__all__ = ["balance_partitions", "resolve_owners"]

Claims = Mapping[str, tuple[Sequence[TopicPartition], int]]


def resolve_owners(claims: Claims) -> dict[TopicPartition, str]:
    """Return the owner of each claimed partition.

    If several members claim a partition, the one of the latest generation owns it. If two claim it in the same
    generation, neither does: one of them is wrong, and nothing tells which.

    Args:
        claims: Member → (claimed partitions, generation).
    """
    # Claims come from members that may have missed rebalances, so two of them can name the same partition. Kafka's
    # AbstractStickyAssignor has the same rules: the newest generation wins, and a tie invalidates both (KAFKA-12984).
    # Choosing one of the two by name instead would be stable but could hand a partition to a member that never had it.
    owner: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    disputed: set[TopicPartition] = set()
    for member, (partitions, generation) in claims.items():
        for partition in dict.fromkeys(partitions):
            # Strictly newer wins; the same generation is a dispute, which a still newer claim may settle.
            known = since.get(partition)
            if known is not None and generation <= known:
                if generation == known:
                    disputed.add(partition)
                continue
            disputed.discard(partition)
            owner[partition] = member
            since[partition] = generation
    return {partition: member for partition, member in owner.items() if partition not in disputed}


def balance_partitions(
    partitions: Mapping[str, int], topics: Mapping[str, frozenset[str]], owner: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """Return the balanced assignment.

    Args:
        partitions: Topic → number of partitions.
        topics: Member → topics it subscribes to. The order of members decides between equal choices.
        owner: Partition → member that owns it now.
    """
    wanted = sorted(frozenset().union(*topics.values()) & partitions.keys())
    every = [(topic, number) for topic in wanted for number in range(partitions[topic])]
    kept = {
        partition: owner[partition]
        for partition in every
        if partition in owner and partition[0] in topics.get(owner[partition], frozenset())
    }
    # With equal subscriptions the best balance is known by arithmetic; otherwise it is searched by single moves.
    if len(set(topics.values())) == 1:
        return _balance_equal_subscriptions(every, list(topics), kept)
    return _balance_different_subscriptions(every, topics, kept)


def _balance_equal_subscriptions(
    every: list[TopicPartition], members: list[str], kept: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    """Assign n partitions to m members with the same subscription: ⌊n/m⌋ each; n mod m members get one more."""
    # The counterpart of `constrainedAssign` in Kafka's AbstractStickyAssignor. The shares are known beforehand, so one
    # pass over the partitions is enough; no move is searched.
    share, rest = divmod(len(every), len(members))
    owned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for partition in every:
        if partition in kept:
            owned[kept[partition]].append(partition)
    # 1. Members keep what they own, up to their share. The extra partitions go to members that own that many already.
    given: dict[str, list[TopicPartition]] = {}
    for member in members:
        more = len(owned[member]) > share and rest > 0
        rest -= more
        given[member] = owned[member][: share + more]
    # 2. Fill up members below the share.
    taken = {partition for mine in given.values() for partition in mine}
    free = iter([partition for partition in every if partition not in taken])
    for member in members:
        while len(given[member]) < share:
            given[member].append(next(free))
    # 3. What is left are extra partitions: one more for members that have exactly the share.
    for member, partition in zip((m for m in members if len(given[m]) == share), free, strict=False):
        given[member].append(partition)
    return given


def _balance_different_subscriptions(
    every: list[TopicPartition], topics: Mapping[str, frozenset[str]], kept: Mapping[TopicPartition, str]
) -> dict[str, list[TopicPartition]]:
    # 1. Members keep everything they own and may read.
    given: dict[str, list[TopicPartition]] = {member: [] for member in topics}
    for partition, member in kept.items():
        given[member].append(partition)
    # The counterpart of `generalAssign` in Kafka's AbstractStickyAssignor. Members with different topics have no common
    # share: a partition that only one member may read stays there, however much that member has already.
    readers = {
        topic: [member for member in topics if topic in topics[member]] for topic in dict.fromkeys(t for t, _ in every)
    }
    rank = {member: index for index, member in enumerate(topics)}
    free = [partition for partition in every if partition not in kept]
    # 2. Partitions that few members can read are assigned first, each to the reader with the fewest.
    for partition in sorted(free, key=lambda each: (len(readers[each[0]]), each)):
        given[min(readers[partition[0]], key=lambda member: (len(given[member]), rank[member]))].append(partition)
    # 3. Move single partitions until no move improves the balance.
    _move_until_balanced(given, topics, kept, rank)
    return {member: sorted(mine) for member, mine in given.items()}


def _move_until_balanced(
    given: dict[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    kept: Mapping[TopicPartition, str],
    rank: Mapping[str, int],
) -> None:
    """Move partitions, one at a time, from the member with the most to the one with the fewest that may read it.

    Members must differ by two or more. Each move lowers the sum of squares of the loads, so this terminates.
    """
    # 1. Members sorted by load. The rank breaks ties, so that the result depends on the order of members only, never on
    #    the order of a set: the same input always gives the same assignment.
    order = [(len(mine), rank[member], member) for member, mine in given.items()]
    order.sort()
    # 2. Start with the fullest member. After each move start again, since both loads have changed.
    moved = True
    while moved:
        moved = False
        for full in reversed(order):
            move = _find_move(full[2], order, given, topics, kept)
            if move is None:
                continue
            # 3. Apply the move, and put both members back where their new loads belong.
            partition, to = move
            given[full[2]].remove(partition)
            given[to].append(partition)
            for member in (full[2], to):
                order.remove(next(entry for entry in order if entry[2] == member))
                insort(order, (len(given[member]), rank[member], member))
            moved = True
            break


def _find_move(
    member: str,
    order: list[tuple[int, int, str]],
    given: Mapping[str, list[TopicPartition]],
    topics: Mapping[str, frozenset[str]],
    kept: Mapping[TopicPartition, str],
) -> tuple[TopicPartition, str] | None:
    """Return a partition of `member` and the member to move it to; None if no move improves the balance."""
    for load, _, to in order:
        # Targets come in order of load. If this one would end as full as the source is now, so would all that follow.
        if load + 1 >= len(given[member]):
            return None
        movable = [partition for partition in given[member] if partition[0] in topics[to]]
        if movable:
            # Preferred: one that returns to its owner; then one that has left its owner anyway; then the last one.
            return max(movable, key=lambda each: (kept.get(each) == to, kept.get(each) != member, each)), to
    return None
