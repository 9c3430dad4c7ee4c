"""Members and coordinator together in virtual time: they share, they survive lost messages, crashes and restarts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.membership.virtual_group import VirtualGroup, settled

from headrace.client.membership.topology import Subtopology, Topology

PARTITIONS = 8
TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),))


def new_group(seed: int = 1) -> VirtualGroup:
    return VirtualGroup(TOPOLOGY, {"flights": PARTITIONS}, seed=seed)


def run_until_settled(group: VirtualGroup, limit_ms: int, tasks: int = PARTITIONS) -> int:
    """How long it took."""
    began_ms = group.now_ms
    while not settled(group, tasks):
        assert group.now_ms - began_ms < limit_ms, f"not settled: {group.owned()} {group.described()}"
        group.run(100)
    return group.now_ms - began_ms


def test_one_member_gets_everything_and_two_share_it() -> None:
    group = new_group()
    group.add("a")
    run_until_settled(group, 10_000)
    group.add("b")
    group.run(3_000)
    run_until_settled(group, 5_000)
    assert group.owned() == {"a": 4, "b": 4}


def test_a_leave_gives_the_others_everything() -> None:
    group = new_group()
    for name in "ab":
        group.add(name)
    run_until_settled(group, 15_000)
    group.members["a"].membership.leave(group.now_ms)
    group.run(500)
    group.members["a"].alive = False
    run_until_settled(group, 3_000)
    assert group.owned() == {"b": PARTITIONS}
    assert group.members["a"].told[-2:] == ["Lost", "Left"]


def test_a_crash_is_noticed_by_the_session_timeout() -> None:
    group = new_group()
    for name in "ab":
        group.add(name)
    run_until_settled(group, 15_000)
    group.members["a"].alive = False
    took_ms = run_until_settled(group, 60_000)
    assert took_ms > 40_000
    assert group.owned() == {"b": PARTITIONS}


def test_long_suspended_member_loses_its_tasks_before_it_continues() -> None:
    group = new_group()
    for name in "ab":
        group.add(name)
    run_until_settled(group, 15_000)
    group.members["a"].blocked_until_ms = group.now_ms + 120_000
    group.run(125_000)
    assert "Lost" in group.members["a"].told
    run_until_settled(group, 5_000)
    assert group.owned() == {"a": 4, "b": 4}


def test_a_restarted_coordinator_costs_nobody_a_task() -> None:
    group = new_group()
    for name in "ab":
        group.add(name)
    run_until_settled(group, 15_000)
    before = {name: member.working_on for name, member in group.members.items()}
    group.restart_coordinator()
    group.run(5_000)
    assert {name: member.working_on for name, member in group.members.items()} == before
    assert all("Lost" not in member.told for member in group.members.values())


@pytest.mark.parametrize("seed", range(5))
def test_lost_messages_fence_nobody(seed: int) -> None:
    """A third of all messages is lost, each way: full owned lists are what keeps the members in."""
    group = new_group(seed)
    for name in "abcdef":
        group.add(name)
        group.run(3_000, lose=0.3)
    run_until_settled(group, 20_000)
    assert sorted(group.owned().values()) == [1, 1, 1, 1, 2, 2]
    assert all("Fenced" not in member.told for member in group.members.values())


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32), st.lists(st.sampled_from(["join", "crash", "leave", "sleep", "restart", "run"]), max_size=12)
)
def test_random_histories_never_give_a_task_to_two_and_always_settle(seed: int, history: list[str]) -> None:
    group = new_group(seed)
    chance = random.Random(seed)
    group.add("m0")
    for number, happening in enumerate(history, start=1):
        living = sorted(name for name, member in group.members.items() if member.alive)
        match happening:
            case "join":
                group.add(f"m{number}")
            case "restart":
                group.restart_coordinator()
            case "crash" if len(living) > 1:
                group.members[chance.choice(living)].alive = False
            case "leave" if len(living) > 1:
                leaver = group.members[chance.choice(living)]
                leaver.membership.leave(group.now_ms)
                group.run(300)
                leaver.alive = False
            case "sleep":
                group.members[chance.choice(living)].blocked_until_ms = group.now_ms + chance.choice([2_000, 60_000])
            case _:
                pass
        group.run(chance.choice([50, 500, 2_000]), lose=chance.choice([0.0, 0.2]))
    group.run(65_000)
    run_until_settled(group, 60_000)
    shares = group.owned().values()
    assert max(shares) - min(shares) <= 1
