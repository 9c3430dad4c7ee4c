"""The server-side assignors uniform and range: valid, balanced, sticky, co-partitioned; on random groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.assignors.partition_assignors import (
    ConsumerGroupSpec,
    MemberSubscription,
    PartitionAssignor,
    RangeAssignor,
    TargetPartitions,
    UniformAssignor,
)

Target = Mapping[str, TargetPartitions]
ASSIGNORS: tuple[PartitionAssignor, ...] = (UniformAssignor(), RangeAssignor())


def topic(number: int) -> UUID:
    return UUID(int=number + 1)


def spec(
    reads: Mapping[str, set[int]],
    counts: Mapping[int, int],
    previous: Target | None = None,
    instances: Mapping[str, str] | None = None,
) -> ConsumerGroupSpec:
    """`reads`: member → numbers of topics."""
    members = {
        name: MemberSubscription(
            topic_ids=tuple(topic(number) for number in sorted(reads[name])),
            instance_id=(instances or {}).get(name),
            previous=(previous or {}).get(name, {}),
        )
        for name in sorted(reads)
    }
    return ConsumerGroupSpec(
        members=members,
        partition_counts={topic(number): count for number, count in counts.items()},
        is_homogeneous=len({frozenset(each) for each in reads.values()}) <= 1,
    )


def owners(target: Target) -> dict[tuple[UUID, int], str]:
    found: dict[tuple[UUID, int], str] = {}
    for name, partitions in target.items():
        for topic_id, numbers in partitions.items():
            for number in numbers:
                assert (topic_id, number) not in found, "a partition with two owners"
                found[topic_id, number] = name
    return found


def check_valid(given: ConsumerGroupSpec, target: Target) -> None:
    """Every partition that somebody reads has one owner, who reads it; all is sorted."""
    found = owners(target)
    read = {topic_id for member in given.members.values() for topic_id in member.topic_ids}
    assert found.keys() == {(topic_id, n) for topic_id in read for n in range(given.partition_counts[topic_id])}
    for (topic_id, _), name in found.items():
        assert topic_id in given.members[name].topic_ids
    for partitions in target.values():
        assert list(partitions) == sorted(partitions)
        assert all(numbers == tuple(sorted(numbers)) and numbers for numbers in partitions.values())


def loads(target: Target) -> list[int]:
    return [sum(map(len, partitions.values())) for partitions in target.values()]


groups = st.tuples(
    st.dictionaries(st.sampled_from("abcdefg"), st.sets(st.integers(0, 4)), min_size=1),
    st.fixed_dictionaries({number: st.integers(1, 9) for number in range(5)}),
)


@settings(max_examples=150, deadline=None)
@given(groups, st.sampled_from(ASSIGNORS))
def test_every_partition_has_one_owner_who_reads_it(
    group: tuple[dict[str, set[int]], dict[int, int]], assignor: PartitionAssignor
) -> None:
    given = spec(*group)
    check_valid(given, assignor.assign(given))


@pytest.mark.parametrize("seed", range(40))
def test_uniform_histories(seed: int) -> None:
    """Members come and go, topics grow, subscriptions differ or not: always valid; balanced when all read the same;
    sticky: who was within its quota and reads the same keeps what it has."""
    random = Random(seed)
    uniform = UniformAssignor()
    same = random.random() < 0.5
    counts = {number: random.randint(1, 12) for number in range(4)}
    reads: dict[str, set[int]] = {}
    target: Target = {}
    for serial in range(25):
        if len(reads) > 1 and random.random() < 0.4:
            del reads[random.choice(sorted(reads))]
        else:
            some = set(random.sample(range(4), random.randint(1, 4)))
            reads[f"m{serial:02}"] = set(range(4)) if same else some
        if random.random() < 0.2:
            counts[random.randrange(4)] += random.randint(1, 3)
        before = {name: partitions for name, partitions in target.items() if name in reads}
        given = spec(reads, counts, before)
        target = uniform.assign(given)
        check_valid(given, target)
        if same:
            assert max(loads(target)) - min(loads(target)) <= 1
            check_sticky(before, target)
        for number in range(4):
            readers = [name for name in reads if number in reads[name]]
            of_readers = {name: sum(map(len, target[name].values())) for name in readers}
            for giver in readers:  # nobody could give one of this topic to somebody who has two less
                if topic(number) in target[giver]:
                    assert of_readers[giver] - min(of_readers.values()) <= 1
        assert uniform.assign(spec(reads, counts, target)) == target, "nothing moves without a reason"


def check_sticky(before: Target, after: Target) -> None:
    most = max(loads(after))
    for name, partitions in before.items():
        had, has = count(partitions), count(after[name])
        kept = sum(len(set(numbers) & set(after[name].get(topic_id, ()))) for topic_id, numbers in partitions.items())
        assert kept == min(had, has) or (had <= most and kept == had), "it lost one and got another"


def count(partitions: TargetPartitions) -> int:
    return sum(map(len, partitions.values()))


def test_range_cuts_topics_of_one_width_at_the_same_places() -> None:
    target = RangeAssignor().assign(spec({name: {0, 1, 2} for name in "abc"}, {0: 7, 1: 7, 2: 2}))
    assert target["a"] == {topic(0): (0, 1, 2), topic(1): (0, 1, 2), topic(2): (0,)}
    assert target["b"] == {topic(0): (3, 4), topic(1): (3, 4), topic(2): (1,)}
    assert target["c"] == {topic(0): (5, 6), topic(1): (5, 6)}


def test_range_knows_static_members_by_their_instance() -> None:
    reads, counts = {"x": {0}, "y": {0}, "d": {0}}, {0: 3}
    before = RangeAssignor().assign(spec(reads, counts, instances={"x": "two", "y": "one"}))
    assert (before["y"], before["x"], before["d"]) == ({topic(0): (0,)}, {topic(0): (1,)}, {topic(0): (2,)})
    renamed = {"p": {0}, "q": {0}, "d": {0}}
    after = RangeAssignor().assign(spec(renamed, counts, instances={"p": "two", "q": "one"}))
    assert (after["q"], after["p"], after["d"]) == (before["y"], before["x"], before["d"])


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda each: each.name)
def test_empty_group_and_no_topics(assignor: PartitionAssignor) -> None:
    assert assignor.assign(spec({}, {})) == {}
    assert assignor.assign(spec({"a": set(), "b": set()}, {})) == {"a": {}, "b": {}}


def test_a_hundred_members_of_a_thousand_partitions() -> None:
    reads = {f"m{number:03}": {0, 1} for number in range(100)}
    target = UniformAssignor().assign(spec(reads, {0: 500, 1: 500}))
    assert Counter(loads(target)) == {10: 100}
