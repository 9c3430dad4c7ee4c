"""Classic groups in virtual time: the delays, the timeouts, restarts and disks that refuse. What requests are answered
is compared with Apache Kafka in `tests/interop/test_classic_groups_like_kafka.py`."""

from __future__ import annotations

from tests.coordinator.classic_context import ClassicContext


def test_a_session_that_ends_begins_a_rebalance() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=10_000)
    generation = c.membership.generation
    c.sleep(9_000)
    assert c.heartbeat(one, generation) == "none"
    c.sleep(1_000)
    assert c.heartbeat(one, generation) == "rebalance_in_progress"
    assert two not in c.membership.members
    assert c.code(c.join(one)) == "none"


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1, session_ms=60_000)
    member_id = c.admitted(session_ms=6_000)
    again = c.join(one, session_ms=60_000)
    assert c.code(again) == "waits", "a rebalance waits for ids that were given out"
    c.sleep(6_000)
    assert c.code(again) == "none"
    assert c.code(c.join(member_id)) == "unknown_member_id"


def test_a_restart_keeps_the_generation_and_begins_sessions_anew() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=10_000)
    generation = c.membership.generation
    c.sleep(9_000)
    c.restart()
    assert c.state == "Stable"
    c.sleep(9_000)
    assert c.heartbeat(one, generation) == "none"
    token = c.sync(two, generation)
    assert c.answers[token].assignment == two.encode()
    c.sleep(10_000)
    assert c.state == "Empty"


def test_a_group_that_became_too_large_rebalances() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    ids = c.stable(3, session_ms=60_000)
    c.restart(initial_rebalance_delay_ms=0, max_size=2)
    tokens = [c.join(each) for each in ids]
    assert [c.code(token) for token in tokens] == ["waits", "waits", "group_max_size_reached"]
    c.sleep(20_000)
    assert len(c.membership.members) == 2
