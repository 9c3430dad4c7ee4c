"""The rebalance of a classic group: delays, timeouts, and restarts in the middle."""

from __future__ import annotations

from tests.coordinator.classic_context import ClassicContext


def test_an_empty_group_waits_for_more_members() -> None:
    """Anew with each one that comes, but no longer than the rebalance timeout."""
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    first = c.join(c.admitted())
    c.sleep(2_999)
    assert c.code(first) == "waits"
    second = c.join(c.admitted())
    c.sleep(3_000)
    assert c.code(first) == "waits", "the delay that had begun ends first, then another one"
    c.sleep(1)
    assert (c.code(first), c.code(second)) == ("none", "none")
    assert c.answers[first].leader == c.answers[first].member_id
    assert len(c.answers[first].members) == 2
    assert c.answers[second].members == ()


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    tokens = []
    for _ in range(3):
        tokens.append(c.join(c.admitted(rebalance_ms=7_000), rebalance_ms=7_000))
        c.sleep(2_300)
    assert c.code(tokens[0]) == "waits", "3 s, 3 s, and the second that is left"
    c.sleep(100)
    assert {c.answers[token].generation_id for token in tokens} == {1}


def test_without_anybody_new_the_delay_is_not_longer() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    token = c.join(c.admitted())
    c.sleep(3_000)
    assert c.code(token) == "none"


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    token = c.join(c.admitted(rebalance_ms=5_000), rebalance_ms=5_000)
    again = c.join(one, rebalance_ms=5_000)
    assert c.heartbeat(two, 2) == "illegal_generation" or c.heartbeat(two, 1) == "rebalance_in_progress"
    c.sleep(4_999)
    assert c.code(again) == "waits"
    c.sleep(1)
    assert c.code(again) == c.code(token) == "none"
    assert two not in c.membership.members
    assert c.heartbeat(two, 1) == "unknown_member_id"


def test_a_new_leader_when_the_old_one_stays_away() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    leader, other = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    c.join(c.admitted(rebalance_ms=5_000), rebalance_ms=5_000)
    token = c.join(other, rebalance_ms=5_000)
    c.sleep(5_000)
    assert c.answers[token].leader == other
    assert leader not in c.membership.members


def test_member_waiting_for_join_needs_no_heartbeat() -> None:
    """But for a new member, which cannot be found again: after five minutes it is gone."""
    c = ClassicContext(initial_rebalance_delay_ms=0)
    c.stable(1, session_ms=400_000, rebalance_ms=400_000)
    one = next(iter(c.membership.members))
    token = c.join(c.admitted(session_ms=6_000, rebalance_ms=400_000), session_ms=6_000, rebalance_ms=400_000)
    c.sleep(299_999)
    assert c.code(token) == "waits"
    c.sleep(1)
    assert c.code(token) == "unknown_member_id"
    assert list(c.membership.members) == [one]


def test_member_that_does_not_sync_in_time_is_removed() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    first, second = c.join(one, rebalance_ms=5_000), c.join(two, rebalance_ms=5_000)
    assert c.code(first) == c.code(second) == "none"
    generation = c.answers[first].generation_id
    assert c.code(c.sync(one, generation, {one: b"x"})) == "none"
    c.sleep(5_000)
    assert c.heartbeat(one, generation) == "rebalance_in_progress"
    assert c.heartbeat(two, generation) == "unknown_member_id"


def test_a_restart_in_a_rebalance_falls_back_to_the_last_generation() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1, session_ms=10_000)
    parked = c.join(c.admitted())
    c.restart()
    assert c.code(parked) == "waits", "its connection is gone with the broker"
    assert c.heartbeat(one, 1) == "none"
    assert c.state == "Stable"
