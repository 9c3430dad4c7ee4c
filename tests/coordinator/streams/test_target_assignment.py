"""Timers of a group where they meet: delays and failover, one demand to revoke after another, a lone member."""

from __future__ import annotations

from tests.coordinator.coordinator_context import CoordinatorContext

DELAY = {"group.streams.initial.rebalance.delay.ms": 3_000}


def members(ctx: CoordinatorContext) -> list[str]:
    return [member.member_id for member in ctx.describe().members]


def test_lone_member_gets_its_target_when_the_initial_delay_ends() -> None:
    ctx = CoordinatorContext(settings=DELAY)
    joined = ctx.join("m1")
    assert (joined.epoch, joined.active, joined.statuses) == (1, {}, [5])
    ctx.sleep(2_999)
    assert ctx.describe().members[0].target_assignment.active_tasks == ()
    ctx.sleep(1)
    assert ctx.describe().members[0].target_assignment.active_tasks[0].partitions == (0, 1, 2, 3)
    outcome = ctx.heartbeat("m1", 1)
    assert (outcome.epoch, outcome.active, outcome.statuses) == (2, {"0": (0, 1, 2, 3)}, [])


def test_a_failover_inside_the_initial_delay_ends_it() -> None:
    """Nobody knows any longer when it began; and whoever waited longest should not wait again."""
    ctx = CoordinatorContext(settings=DELAY)
    ctx.join("m1")
    ctx.join("m2")
    ctx.sleep(1_000)
    ctx.restart()
    ctx.sleep(0)
    told = [ctx.heartbeat(member, 1).active for member in ("m1", "m2")]
    assert sorted(partition for tasks in told if tasks for partition in tasks["0"]) == [0, 1, 2, 3]


def test_a_failover_inside_the_assignment_interval_keeps_it() -> None:
    ctx = CoordinatorContext(settings={"group.streams.assignment.interval.ms": 1_000})
    ctx.join("m1")
    ctx.join("m2")
    ctx.sleep(400)
    ctx.restart()
    ctx.sleep(599)
    assert ctx.heartbeat("m1", 2).statuses == [5]
    ctx.sleep(1)
    assert len((ctx.heartbeat("m1", 2).active or {})["0"]) == 2


def test_each_demand_to_revoke_has_its_own_time() -> None:
    """m1 answers the first in time, and a second demand follows: its timeout counts from there."""
    ctx = CoordinatorContext()
    ctx.join("m1", rebalance_timeout_ms=1_000)
    ctx.join("m2")
    kept = ctx.heartbeat("m1", 2).active
    assert kept is not None
    ctx.sleep(900)
    ctx.join("m3")
    ctx.join("m4")
    outcome = ctx.heartbeat("m1", 2, active=kept)
    assert outcome.active is not None
    assert (len(kept["0"]), len(outcome.active["0"])) == (2, 1)
    ctx.sleep(999)
    assert members(ctx) == ["m1", "m2", "m3", "m4"]
    ctx.sleep(1)
    assert members(ctx) == ["m2", "m3", "m4"]


def test_repeated_beats_do_not_put_the_end_of_a_revocation_off() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", rebalance_timeout_ms=1_000)
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    for _ in range(3):
        ctx.sleep(333)
        ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)})
    ctx.sleep(1)
    assert members(ctx) == ["m2"]


def test_topics_created_in_the_initial_delay_are_assigned_at_its_end() -> None:
    ctx = CoordinatorContext(topics={}, settings=DELAY)
    joined = ctx.join("m1")
    assert joined.statuses == [5, 1]
    ctx.sleep(1_000)
    ctx.set_topics({"in": 2})
    assert ctx.heartbeat("m1", 1).statuses == [5]
    ctx.sleep(2_000)
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1)}


def test_no_timer_fires_after_all_members_left() -> None:
    ctx = CoordinatorContext(settings={"group.streams.assignment.interval.ms": 1_000})
    ctx.join("m1")
    ctx.join("m2")
    ctx.leave("m1")
    ctx.leave("m2")
    assert ctx.sleep(60_000) == []
    assert ctx.state() == "Empty"
