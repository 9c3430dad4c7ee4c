"""Transitions of a streams member: the end of its lease, and leaving."""

from __future__ import annotations

import pytest
from tests.client.membership.scripted_coordinator import SESSION_TIMEOUT_MS, ScriptedCoordinator
from tests.client.membership.streams_scripts import ALL_OF_IT, HALF, kinds

from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState
from headrace.protocol.error_codes import ErrorCode


def test_without_answers_for_the_session_it_fences_itself() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    beat_ms = script.now_ms
    script.nobody_answers_while(lambda: script.state is not MemberState.JOINING)
    (lost,) = script.events()
    assert lost == e.Lost(reason="session-expired")
    assert script.now_ms == beat_ms + SESSION_TIMEOUT_MS


def test_an_answer_that_comes_after_the_lease_ended_is_not_believed() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.now_ms += 10 * 3_600_000  # the machine slept
    assert script.sent() is None
    assert kinds(script.events()) == ["Lost"]
    script.answer(epoch=1, active=ALL_OF_IT)
    assert script.events() == ()
    again = script.sent()
    assert again is not None
    assert again.member_epoch == 0


def test_the_lease_counts_from_when_the_answered_heartbeat_was_sent() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    sent_ms = script.now_ms
    script.now_ms += 30_000
    script.answer(epoch=1)
    assert script.member.last_answered_ms == sent_ms


def test_leaving_gives_up_the_tasks_at_once_and_says_goodbye() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.member.leave(script.now_ms)
    assert script.events() == (e.Lost(reason="left"),)
    leave = script.sent()
    assert leave is not None
    assert leave.member_epoch == -1
    script.answer(epoch=-1)
    assert script.events() == (e.Left(confirmed=True),)
    assert script.state is MemberState.UNSUBSCRIBED
    assert script.sent() is None


def test_leaving_waits_for_the_heartbeat_that_is_out() -> None:
    """A join that is processed after the leave would bring the member back to life."""
    script = ScriptedCoordinator()
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert script.next_sent().member_epoch == 0
    script.member.leave(script.now_ms)
    assert script.sent() is None
    script.answer(epoch=2, active=ALL_OF_IT)
    assert script.events() == (), "tasks that come too late are none of the application's"
    leave = script.sent()
    assert leave is not None
    assert leave.member_epoch == -1


def test_a_leave_that_nobody_answers_ends_after_its_time() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.member.leave(script.now_ms)
    script.events()
    began_ms = script.now_ms
    script.nobody_answers_while(lambda: script.state is MemberState.LEAVING)
    assert script.now_ms == began_ms + 5_000
    assert script.events() == (e.Left(confirmed=False),)


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.group_id_not_found])
def test_a_leave_of_somebody_unknown_has_reached_its_goal(code: ErrorCode) -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.member.leave(script.now_ms)
    script.next_sent()
    script.answer(code=code)
    assert script.events()[-1] == e.Left(confirmed=True)


def test_a_member_that_left_may_join_again() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.member.leave(script.now_ms)
    script.next_sent()
    script.answer(epoch=-1)
    script.events()
    script.member.join(script.now_ms)
    assert script.next_sent().member_epoch == 0
    script.answer(epoch=9, active=HALF)
    assert kinds(script.events()) == ["Assigned"]


def test_an_answer_to_nothing_is_a_mistake_of_the_runner() -> None:
    script = ScriptedCoordinator()
    with pytest.raises(TypeError):
        script.answer()
