"""Which subtopology gives up a slot when cores are short: random clusters, and the waits in between."""

from __future__ import annotations

import random

import pytest

from headrace.spark.machine.slot_shares import NONE_PATIENCE_S, UNEVEN_PATIENCE_S, SlotShare, SlotShares


def share(held: int, waiting: int = 0) -> SlotShare:
    return SlotShare(held=held, waiting=waiting)


def give_up_after(seconds: float, **shares: SlotShare) -> str | None:
    rule = SlotShares()
    assert rule.next_to_give_up(shares, 0.0) is None, "never at first sight"
    return rule.next_to_give_up(shares, seconds)


def test_a_slot_is_given_to_a_subtopology_without_one() -> None:
    assert give_up_after(NONE_PATIENCE_S, a=share(3), b=share(0, waiting=2), c=share(1)) == "a"
    assert give_up_after(NONE_PATIENCE_S - 0.1, a=share(3), b=share(0, waiting=2)) is None


def test_uneven_shares_wait_longer_than_missing_ones() -> None:
    uneven = {"a": share(1, waiting=3), "b": share(3)}
    assert give_up_after(NONE_PATIENCE_S, **uneven) is None
    assert give_up_after(UNEVEN_PATIENCE_S, **uneven) == "b"


@pytest.mark.parametrize(
    "shares",
    [
        {"a": share(1), "b": share(0, waiting=1)},  # one core for two subtopologies
        {"a": share(4), "b": share(0)},  # no subtopology waits: a start is still to come
        {"a": share(2), "b": share(1, waiting=5)},
        {"a": share(0, waiting=2), "b": share(0, waiting=2)},
        {"a": share(2, waiting=2)},
        {},
    ],
)
def test_no_slot_is_given_up_where_it_helps_no_one(shares: dict[str, SlotShare]) -> None:
    assert give_up_after(10 * UNEVEN_PATIENCE_S, **shares) is None


def test_a_wait_begins_anew_when_cores_came_in_between() -> None:
    rule, uneven, even = SlotShares(), {"a": share(2), "b": share(0, waiting=1)}, {"a": share(2), "b": share(1)}
    rule.next_to_give_up(uneven, 0.0)
    rule.next_to_give_up(even, NONE_PATIENCE_S - 1)
    assert rule.next_to_give_up(uneven, NONE_PATIENCE_S) is None
    assert rule.next_to_give_up(uneven, 2 * NONE_PATIENCE_S) == "a"
    assert rule.next_to_give_up(uneven, 2 * NONE_PATIENCE_S + 1) is None, "the core is on its way"


@pytest.mark.parametrize("seed", range(60))
def test_random_clusters_end_even_and_stay_there(seed: int) -> None:
    rng = random.Random(seed)
    wanted = {f"s{number}": rng.randint(1, 6) for number in range(rng.randint(1, 5))}
    held = {name: rng.randint(0, slots) for name, slots in wanted.items()}
    cores = sum(held.values())
    rule, given, now_s = SlotShares(), 0, 0.0
    for _ in range(600):
        now_s += 5.0
        shares = {name: share(held[name], wanted[name] - held[name]) for name in wanted}
        giver = rule.next_to_give_up(shares, now_s)
        if giver is not None:
            given += 1
            held[giver] -= 1
            # As Spark chooses: the pool with the fewest running tasks.
            taker = min((name for name in wanted if held[name] < wanted[name]), key=lambda name: (held[name], name))
            held[taker] += 1
            assert taker != giver
    assert sum(held.values()) == cores
    for poor, rich in ((poor, rich) for poor in wanted for rich in wanted):
        assert held[poor] == wanted[poor] or held[rich] <= held[poor] + 1
    assert all(held.values()) or cores < len(wanted)
    assert given <= sum(wanted.values()), "each core moves once at most"
