"""Range, round robin and the sticky assignors: valid, balanced, sticky over random histories; hostile user data."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assignors.group_play import Group, Tally, our_divide, play

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.kafka_assignors import (
    CooperativeStickyAssignor,
    StickyAssignor,
    encode_sticky_user_data,
)
from headrace.assignors.registry import ASSIGNORS

STICKY = ("sticky", "cooperative-sticky")


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_every_partition_has_one_owner_that_reads_it(name: str, seed: int) -> None:
    play(name, seed, our_divide, rounds=5)


@pytest.mark.parametrize("name", STICKY)
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_sticky_assignments_are_balanced(name: str, seed: int) -> None:
    assert play(name, seed, our_divide, rounds=5).excess == 0


@pytest.mark.parametrize("name", STICKY)
def test_unchanged_group_keeps_its_assignment(name: str) -> None:
    group = Group(name, {"a": 7, "b": 4}, our_divide)
    for number in range(3):
        group.join(f"m{number}", ("a", "b"))
    first = group.rebalance()
    again = group.rebalance()
    assert {m: set(mine) for m, mine in first.items()} == {m: set(mine) for m, mine in again.items()}
    assert group.moved == 0


@pytest.mark.parametrize("name", STICKY)
def test_a_newcomer_takes_its_share_and_nothing_else_moves(name: str) -> None:
    group = Group(name, {"a": 12}, our_divide)
    group.join("m1", ("a",))
    group.join("m2", ("a",))
    group.rebalance()
    group.join("m3", ("a",))
    given_now = group.rebalance()
    assert sorted(len(mine) for mine in given_now.values()) == [4, 4, 4]
    assert group.moved == 4  # what the newcomer got, and no partition between the others


@pytest.mark.parametrize("name", STICKY)
def test_the_claim_of_the_newest_generation_wins(name: str) -> None:
    """m1 slept through generation 7 and still claims what m2 has since then."""
    every = tuple(("a", number) for number in range(4))
    members = {
        "m1": claim(name, every, 6),
        "m2": claim(name, every[:2], 7),
        "m3": claim(name, (), 7),
    }
    given_now = ASSIGNORS[name]().assign({"a": 4}, members)
    assert set(every[:1]) <= set(given_now["m2"].partitions) or set(every[1:2]) <= set(given_now["m2"].partitions)
    assert not set(given_now["m1"].partitions) & set(every[:2])


@pytest.mark.parametrize("name", STICKY)
def test_two_claims_of_one_generation_are_both_void(name: str) -> None:
    members = {"m1": claim(name, (("a", 0),), 3), "m2": claim(name, (("a", 0),), 3)}
    given_now = ASSIGNORS[name]().assign({"a": 2}, members)
    assert sum(len(a.partitions) for a in given_now.values()) <= 2
    assert not set(given_now["m1"].partitions) & set(given_now["m2"].partitions)


def claim(name: str, owned: tuple[tuple[str, int], ...], generation_id: int) -> Subscription:
    if name == "sticky":
        return Subscription(topics=("a",), user_data=encode_sticky_user_data(owned, generation_id))
    return Subscription(topics=("a",), owned_partitions=owned, generation_id=generation_id)


def test_old_cooperative_subscriptions_carry_the_generation_in_user_data() -> None:
    owned = (("a", 0), ("a", 1))
    members = {
        "m1": Subscription(topics=("a",), owned_partitions=owned, user_data=struct.pack(">i", 4)),
        "m2": Subscription(topics=("a",), owned_partitions=owned[:1], user_data=struct.pack(">i", 5)),
    }
    given_now = CooperativeStickyAssignor().assign({"a": 2}, members)
    assert given_now["m2"].partitions == (("a", 0),)
    assert given_now["m1"].partitions == (("a", 1),)


@given(data=st.binary(max_size=40))
def test_hostile_user_data_counts_as_none(data: bytes) -> None:
    for name in STICKY:
        members = {
            "m1": Subscription(topics=("a",), user_data=data),
            "m2": Subscription(topics=("a",), user_data=None),
        }
        given_now = ASSIGNORS[name]().assign({"a": 3}, members)
        assert sorted(len(a.partitions) for a in given_now.values()) == [1, 2]


def test_claims_of_partitions_that_are_gone_are_passed_over() -> None:
    claims = (("a", 0), ("a", 99), ("gone", 1), ("a", -5))
    members = {"m1": Subscription(topics=("a",), user_data=encode_sticky_user_data(claims, 1))}
    assert StickyAssignor().assign({"a": 2}, members)["m1"].partitions == (("a", 0), ("a", 1))


@pytest.mark.parametrize("name", ASSIGNORS)
def test_topics_that_do_not_exist_and_members_that_read_nothing(name: str) -> None:
    members = {"m1": Subscription(topics=("gone",)), "m2": Subscription(topics=())}
    assert ASSIGNORS[name]().assign({}, members) == {"m1": Assignment(), "m2": Assignment()}


def test_range_lines_topics_up_and_static_members_come_first() -> None:
    members = {
        "a-dynamic": Subscription(topics=("x", "y")),
        "z": Subscription(topics=("x", "y"), instance_id="one"),
    }
    given_now = ASSIGNORS["range"]().assign({"x": 3, "y": 3}, members)
    assert given_now["z"].partitions == (("x", 0), ("x", 1), ("y", 0), ("y", 1))
    assert given_now["a-dynamic"].partitions == (("x", 2), ("y", 2))


def test_the_tally_of_many_histories() -> None:
    tally = Tally()
    for seed in range(20):
        play("sticky", seed, our_divide, tally=tally)
    assert tally.rounds == 160
    assert tally.excess == 0
