"""The member's rules, one exchange at a time, against answers written by hand."""

from __future__ import annotations

import pytest
from tests.client.membership.scripted_coordinator import ScriptedCoordinator, owned_in
from tests.client.membership.streams_scripts import ALL_OF_IT, HALF, kinds
from tests.harness.values import not_none

from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.request_manager import NEVER_MS
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def test_it_looks_for_the_coordinator_before_it_joins_with_everything() -> None:
    script = ScriptedCoordinator()
    script.member.join(script.now_ms)
    assert not_none(script.sent()).coordinator_keys == ("app",)
    assert script.sent() is None, "one request at a time"
    script.find_coordinator(node=7)
    result = script.member.poll(script.now_ms)
    (outgoing,) = result.requests
    assert outgoing.node == 7
    join = outgoing.request
    assert isinstance(join, m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest)
    assert join.member_epoch == 0
    assert not_none(join.topology).subtopologies[0].source_topics == ("flights",)
    assert (join.active_tasks, join.standby_tasks, join.warmup_tasks) == ((), (), ())
    assert join.process_id == "p-1"


def test_a_coordinator_that_is_not_known_yet_is_asked_for_again() -> None:
    script = ScriptedCoordinator()
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator(code=ErrorCode.coordinator_not_available)
    asked_ms = script.now_ms
    assert script.sent() is None
    assert script.next_sent().coordinator_keys == ("app",)
    assert script.now_ms > asked_ms


def test_the_first_tasks_are_told_and_the_acknowledgement_goes_out_at_once() -> None:
    script = ScriptedCoordinator()
    script.joined(active=ALL_OF_IT, epoch=3)
    (told,) = script.events()
    assert isinstance(told, e.Assigned)
    assert told.assignment.member_epoch == 3
    assert told.assignment.active == ALL_OF_IT
    assert script.state is MemberState.RECONCILING
    script.member.acknowledge(ALL_OF_IT, script.now_ms)
    beat = script.sent()
    assert beat is not None
    assert beat.member_epoch == 3
    assert beat.topology is None
    assert owned_in(beat) == ALL_OF_IT
    script.answer(epoch=3)
    assert script.state is MemberState.STABLE


def test_a_steady_heartbeat_names_nothing_that_did_not_change() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    beat = script.next_sent()
    assert (beat.active_tasks, beat.standby_tasks, beat.warmup_tasks) == (None, None, None)
    assert beat.member_epoch == 1


def test_revocation_is_acknowledged_after_the_tasks_are_released() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.answer(epoch=1, active=HALF)
    (told,) = script.events()
    assert isinstance(told, e.AssignmentChanged)
    assert told.revoked == {"flights": (2, 3)}
    beat = script.next_sent()
    assert owned_in(beat) is None, "not before the application has acknowledged"
    script.answer(epoch=1)
    script.member.acknowledge(HALF, script.now_ms)
    assert owned_in(script.sent()) == HALF
    script.answer(epoch=2)
    assert script.state is MemberState.STABLE
    (moved_on,) = script.events()
    assert isinstance(moved_on, e.AssignmentChanged)
    assert (moved_on.assignment.member_epoch, moved_on.added, moved_on.revoked) == (2, {}, {})


def test_an_application_that_still_works_on_a_revoked_task_says_so() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.answer(epoch=1, active=HALF)
    script.member.acknowledge({"flights": (0, 1, 3)}, script.now_ms)
    assert script.state is MemberState.RECONCILING
    assert owned_in(script.sent()) == {"flights": (0, 1, 3)}


def test_acknowledgement_during_a_heartbeat_triggers_the_next_one() -> None:
    script = ScriptedCoordinator()
    script.joined(active=HALF)
    script.events()
    assert owned_in(script.next_sent()) is None
    script.member.acknowledge(HALF, script.now_ms)
    assert script.sent() is None, "one request at a time"
    script.answer(epoch=1)
    assert script.state is MemberState.ACKNOWLEDGING
    assert owned_in(script.sent()) == HALF


def test_acknowledgement_of_an_older_assignment_does_not_count() -> None:
    script = ScriptedCoordinator()
    script.joined(active=HALF)
    (assigned,) = script.events()
    assert isinstance(assigned, e.Assigned)
    script.next_sent()
    script.answer(epoch=2, active={"flights": (0,)})
    script.member.acknowledge({"flights": ()}, script.now_ms, version=assigned.assignment.version)
    assert script.state is MemberState.RECONCILING
    assert owned_in(script.next_sent()) is None


def test_after_a_lost_reply_the_owned_lists_go_out_in_full() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.member.on_failure(script.now_ms)
    assert type(script.next_sent()).__name__ == "FindCoordinatorRequest"
    script.find_coordinator(node=2)
    assert owned_in(script.next_sent()) == ALL_OF_IT


def test_tasks_that_were_told_of_count_as_owned_after_a_lost_reply() -> None:
    """The application may have opened them; without them the coordinator would take them as given back."""
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    script.next_sent()
    script.answer(epoch=2, active=ALL_OF_IT)
    script.next_sent()
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert owned_in(script.next_sent()) == ALL_OF_IT


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id])
def test_a_fenced_member_loses_everything_and_joins_again_with_its_id(code: ErrorCode) -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT, epoch=4)
    script.next_sent()
    script.answer(code=code)
    assert kinds(script.events()) == ["Fenced", "Lost"]
    assert script.member.assignment.active == {}
    again = script.sent()
    assert again is not None
    assert (again.member_epoch, again.member_id, again.active_tasks) == (0, "m-1", ())
    script.answer(epoch=6, active=HALF)
    assert kinds(script.events()) == ["Assigned"]


def test_a_member_that_is_fenced_at_each_join_asks_less_and_less_often() -> None:
    script = ScriptedCoordinator()
    script.joined()
    script.next_sent()
    script.answer(code=ErrorCode.unknown_member_id)
    waits = []
    for _ in range(4):
        before_ms = script.now_ms
        assert script.next_sent().member_epoch == 0
        waits.append(script.now_ms - before_ms)
        script.answer(code=ErrorCode.fenced_member_epoch)
    assert waits == [0, 100, 200, 400]


def test_a_moved_coordinator_is_looked_for_and_nothing_is_lost() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.answer(code=ErrorCode.not_coordinator)
    assert type(script.next_sent()).__name__ == "FindCoordinatorRequest"
    script.find_coordinator(node=3)
    assert owned_in(script.next_sent()) == ALL_OF_IT
    assert script.events() == ()


def test_a_loading_coordinator_is_asked_again_without_looking_for_another() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.answer(code=ErrorCode.coordinator_load_in_progress)
    assert type(script.next_sent()).__name__ == "StreamsGroupHeartbeatRequest"
    assert script.events() == ()


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (ErrorCode.unsupported_version, None, "streams-protocol-off"),
        (ErrorCode.invalid_request, "Topology updates are not supported yet.", "topology-differs"),
        (ErrorCode.invalid_request, "MemberId can't be empty.", "heartbeat-refused"),
        (ErrorCode.streams_invalid_topology, "no partitions", "topology-invalid"),
        (ErrorCode.group_max_size_reached, None, "group-full"),
        (ErrorCode.group_id_not_found, None, "group-kind"),
        (ErrorCode.group_authorization_failed, None, "not-authorized"),
        (ErrorCode.topic_authorization_failed, None, "not-authorized"),
        (ErrorCode.unknown_server_error, "boom", "heartbeat-refused"),
    ],
)
def test_fatal_coordinator_errors_end_the_membership(code: ErrorCode, message: str | None, kind: str) -> None:
    script = ScriptedCoordinator()
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    script.next_sent()
    script.answer(code=code, message=message)
    (fatal,) = script.events()
    assert isinstance(fatal, e.Fatal)
    assert isinstance(fatal.error, BrokerError)
    assert fatal.error.code == kind
    assert fatal.error.fix
    assert script.member.poll(script.now_ms + 10**9).next_poll_ms == NEVER_MS


def test_a_group_that_vanished_under_a_member_ends_the_membership() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.next_sent()
    script.answer(code=ErrorCode.group_id_not_found)
    lost, fatal = script.events()
    assert lost == e.Lost(reason="fatal")
    assert isinstance(fatal, e.Fatal)
    assert fatal.error.code == "group-missing"


def test_missing_topics_are_told_and_so_is_their_end() -> None:
    script = ScriptedCoordinator()
    script.joined()
    script.events()
    script.next_sent()
    script.answer(status=[(1, "flights")])
    assert script.events() == (e.NotReady(status=((1, "flights"),)),)
    script.next_sent()
    script.answer(status=[(1, "flights")])
    assert script.events() == (), "told once"
    script.next_sent()
    script.answer()
    assert script.events() == (e.Ready(),)


def test_a_request_to_shut_down_is_told_once() -> None:
    script = ScriptedCoordinator()
    script.joined()
    script.events()
    for _ in range(2):
        script.next_sent()
        script.answer(status=[(4, "")])
    assert script.events() == (e.ShutdownRequested(),)


def test_standby_tasks_are_acknowledged_as_assigned() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    script.next_sent()
    script.answer(epoch=2, active=HALF, standby={"flights": [2]})
    (told,) = script.events()
    assert isinstance(told, e.AssignmentChanged)
    assert told.assignment.standby == {"flights": (2,)}
    script.member.acknowledge(HALF, script.now_ms)
    beat = script.sent()
    assert beat is not None
    assert [(ids.subtopology_id, ids.partitions) for ids in beat.standby_tasks] == [("flights", (2,))]
