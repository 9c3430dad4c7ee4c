"""Leaving, crashes, suspensions and replaced processes of members of a classic group with tasks."""

from __future__ import annotations

from tests.client.membership.classic_task_group import ClassicTaskGroup, settled_group
from tests.client.membership.streams_scripts import kinds

from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState


def test_leave_gives_the_tasks_to_the_others_at_once() -> None:
    group = settled_group("a", "b")
    group.applications["b"].membership.leave(group.now_ms)
    group.run(2_000)
    assert kinds(tuple(group.applications["b"].told))[-2:] == ["Lost", "Left"]
    assert len(group.applications["a"].positions) == 6


def test_crashed_member_loses_its_tasks_after_its_session() -> None:
    group = settled_group("a", "b")
    group.applications["b"].alive = False
    group.run(5_000)
    assert len(group.applications["a"].positions) == 3
    group.settle()
    assert len(group.applications["a"].positions) == 6


def test_member_that_was_suspended_for_longer_than_its_session_loses_everything_and_joins_again() -> None:
    group = settled_group("a", "b")
    second = group.applications["b"]
    second.paused_until_ms = group.now_ms + 40_000
    told = len(second.told)
    group.run(41_000)
    assert "Lost" in kinds(tuple(second.told[told:]))
    group.settle()


def test_static_member_that_returns_within_its_session_finds_its_tasks_without_a_move() -> None:
    group = ClassicTaskGroup()
    group.add("a")
    static = group.add("b", instance_id="b")
    group.settle()
    mine, told = set(static.positions), len(group.applications["a"].told)
    static.membership.leave(group.now_ms, for_a_while=True)
    group.run(500)
    assert isinstance(static.told[-1], e.Left)
    assert static.told[-1].will_return
    group.add("b", instance_id="b")
    group.settle()
    assert set(group.applications["b"].positions) == mine
    revoked = [each for each in group.applications["a"].told[told:] if getattr(each, "revoked", None)]
    assert not revoked


def test_process_with_the_same_instance_id_ends_the_older_membership() -> None:
    group = ClassicTaskGroup()
    older = group.add("older", instance_id="x")
    group.settle()
    newer = group.add("newer", instance_id="x")
    group.run(3_000)
    assert kinds(tuple(older.told))[-3:] == ["Fenced", "Lost", "Fatal"]
    assert older.membership.state is MemberState.FATAL
    assert len(newer.positions) == 6
