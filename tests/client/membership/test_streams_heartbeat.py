"""What heartbeats carry beside active tasks: standby and warm-up tasks, offsets, endpoints, a wish to shut down."""

from __future__ import annotations

from typing import Any

from tests.client.membership.scripted_coordinator import ScriptedCoordinator, owned_in
from tests.client.membership.streams_scripts import HALF, MINE

from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.request_manager import BURST, BURST_WINDOW_MS
from headrace.protocol.error_codes import ErrorCode


def listed(task_ids: Any) -> dict[str, tuple[int, ...]]:
    return {ids.subtopology_id: tuple(ids.partitions) for ids in task_ids}


# Standby and warm-up tasks.


def test_the_application_hears_of_every_role_and_what_changed_in_it() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    script.next_sent()
    script.answer(epoch=2, active=HALF, standby={"flights": [2]}, warmup={"flights": [3]})
    (told,) = script.events()
    assert isinstance(told, e.AssignmentChanged)
    assert (told.added, told.revoked) == ({}, {})
    assert (told.standby_added, told.warmup_added) == ({"flights": (2,)}, {"flights": (3,)})
    script.member.acknowledge(HALF, script.now_ms)
    script.next_sent()
    script.answer(epoch=3, active={"flights": [0, 1, 2]}, warmup={"flights": [3]})
    (promoted,) = script.events()
    assert isinstance(promoted, e.AssignmentChanged)
    assert (promoted.added, promoted.standby_removed) == ({"flights": (2,)}, {"flights": (2,)})
    assert (promoted.warmup_added, promoted.warmup_removed) == ({}, {})


def test_acknowledged_standby_and_warmup_tasks_reach_the_coordinator() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    script.next_sent()
    script.answer(epoch=2, active=HALF, standby={"flights": [2, 3]}, warmup={"flights": [4]})
    script.member.acknowledge(HALF, script.now_ms, standby={"flights": [2]}, warmup={})
    beat = script.next_sent()
    assert (listed(beat.standby_tasks), listed(beat.warmup_tasks)) == ({"flights": (2,)}, {})


# Task offsets.


def with_offsets(version: int) -> ScriptedCoordinator:
    script = ScriptedCoordinator()
    script.member.report_offsets({("flights", 1): 20, ("flights", 0): 10}, {("flights", 0): 15})
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert type(script.next_sent()).__name__ == "ApiVersionsRequest"
    script.speaks(version)
    return script


def test_offsets_go_out_with_the_join() -> None:
    script = with_offsets(1)
    join = script.next_sent()
    assert [(o.subtopology_id, o.partition, o.offset) for o in join.task_offsets] == [
        ("flights", 0, 10),
        ("flights", 1, 20),
    ]
    assert [(o.partition, o.offset) for o in join.task_end_offsets] == [(0, 15)]


def test_task_offsets_are_omitted_for_older_coordinators() -> None:
    script = with_offsets(0)
    join = script.next_sent()
    assert (join.task_offsets, join.task_end_offsets) == (None, None)
    assert script.events() == ()


def test_changed_task_offsets_are_sent_once_per_interval() -> None:
    script = with_offsets(1)
    script.next_sent()
    script.answer(active={}, task_offset_interval_ms=3_000)
    sent: list[int] = []
    for step in range(40):
        if step == 5:
            script.member.report_offsets({("flights", 0): 11})
        beat = script.next_sent()
        if beat.task_offsets is not None:
            assert [(o.partition, o.offset) for o in beat.task_offsets] == [(0, 11)]
            sent.append(script.now_ms)
        script.answer(task_offset_interval_ms=3_000)
    assert len(sent) == 1
    assert sent[0] >= 1_000 + 3_000


def test_task_offsets_are_resent_after_coordinator_failover() -> None:
    script = with_offsets(1)
    script.next_sent()
    script.answer(active={}, task_offset_interval_ms=60_000)
    script.next_sent()
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator(node=2)
    script.next_sent()
    script.speaks(1)
    assert len(script.next_sent().task_offsets) == 2


# Interactive query endpoints.

MISSING = [(1, "flights")]


def joined_without_endpoint(**settings: Any) -> ScriptedCoordinator:
    """A member whose join with its endpoint was refused and that joined without it, while a source topic is missing."""
    script = ScriptedCoordinator(endpoint=MINE, **settings)
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    if settings:
        script.next_sent()
        script.speaks(1)
    assert script.next_sent().user_endpoint is not None
    script.answer(code=ErrorCode.unknown_server_error)
    again = script.next_sent()
    assert (again.member_epoch, again.user_endpoint) == (0, None)
    script.answer(active={}, status=MISSING)
    assert kinds(script) == ["Assigned", "NotReady"]
    assert script.next_sent().user_endpoint is None
    return script


def kinds(script: ScriptedCoordinator) -> list[str]:
    return [type(event).__name__ for event in script.events()]


def test_omitted_endpoint_is_sent_by_rejoin_when_no_topic_is_missing() -> None:
    """Kafka before 4.4 sends the map only after a join, or a change of tasks, of a member whose endpoint it knows."""
    script = joined_without_endpoint()
    script.answer(epoch=2, active=HALF)
    assert kinds(script) == ["Ready"], "tasks of this reply are not shown: a join reports that none is owned"
    script.member.acknowledge({}, script.now_ms, version=1)  # by an application that is slow to acknowledge
    rejoin = script.next_sent()
    assert (rejoin.member_epoch, rejoin.user_endpoint.host, owned_in(rejoin)) == (0, "here", {})
    assert rejoin.topology is not None
    script.answer(epoch=3, active=HALF, endpoint_epoch=1, endpoints=[("here", 8080, {"flights": [0, 1]}, {})])
    endpoints, changed = script.events()
    assert isinstance(endpoints, e.EndpointsChanged)
    assert isinstance(changed, e.AssignmentChanged)
    assert (changed.added, changed.revoked, changed.assignment.member_epoch) == (HALF, {}, 3)
    beat = script.next_sent()
    assert (beat.member_epoch, beat.user_endpoint, beat.endpoint_information_epoch) == (3, None, 1)


def test_member_loses_its_tasks_before_it_rejoins_with_its_endpoint() -> None:
    script = joined_without_endpoint()
    script.answer(active=HALF, status=MISSING)  # a coordinator may leave tasks with a member for a while
    assert kinds(script) == ["AssignmentChanged"]
    script.next_sent()
    script.answer()
    assert script.events() == (e.Ready(), e.Lost(reason="rejoined"))
    rejoin = script.next_sent()
    assert (rejoin.member_epoch, rejoin.user_endpoint.host, owned_in(rejoin)) == (0, "here", {})
    script.answer(epoch=2, active=HALF)
    assert kinds(script) == ["Assigned"]


def test_omitted_endpoint_is_sent_by_heartbeat_with_static_members() -> None:
    script = joined_without_endpoint(instance_id="i-1")
    script.answer(epoch=2, active=HALF)
    assert kinds(script) == ["AssignmentChanged", "Ready"]
    beat = script.next_sent()
    assert (beat.member_epoch, beat.user_endpoint.host) == (2, "here"), "now that nothing is missing"
    script.answer(epoch=2)
    assert script.next_sent().user_endpoint is None, "once"


def test_a_server_error_that_the_endpoint_causes_ends_nothing() -> None:
    """Kafka cannot say who serves what while source topics are missing: it answers UNKNOWN_SERVER_ERROR."""
    script = joined_without_endpoint()
    script.answer()
    assert script.next_sent().user_endpoint is not None
    script.answer(epoch=2, active=HALF)
    script.next_sent()
    script.answer(code=ErrorCode.unknown_server_error)
    assert script.state is not MemberState.FATAL, "the topics may be gone again"
    assert script.next_sent().member_epoch == 2
    script.answer(epoch=2)
    assert script.next_sent().member_epoch == 2, "the coordinator knows the endpoint already"


def test_endpoint_refused_repeatedly_with_all_topics_present_is_fatal() -> None:
    """Otherwise the member would join with and without its endpoint by turns, and never have tasks."""
    script = joined_without_endpoint()
    script.answer()
    for _ in range(5):
        assert script.state is not MemberState.FATAL
        assert script.next_sent().user_endpoint is not None
        script.answer(code=ErrorCode.unknown_server_error, message="no such element")
        if script.state is not MemberState.FATAL:
            assert script.next_sent().user_endpoint is None
            script.answer(active={})
    assert script.state is MemberState.FATAL
    error = script.events()[-1].error  # type: ignore[union-attr]
    assert error.code == "heartbeat-refused"
    assert "no such element" in str(error)


def test_a_server_error_without_an_endpoint_is_final() -> None:
    script = ScriptedCoordinator()
    script.joined(active=HALF)
    script.next_sent()
    script.answer(code=ErrorCode.unknown_server_error)
    assert script.state is MemberState.FATAL


# Shutting down the application.


def test_a_wish_to_shut_down_goes_out_at_once_until_it_is_answered() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    script.member.request_shutdown(script.now_ms)
    beat = script.sent()
    assert beat is not None
    assert beat.shutdown_application
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert script.next_sent().shutdown_application
    script.answer(status=[(4, "")])
    assert script.events() == (e.ShutdownRequested(),)
    assert not script.next_sent().shutdown_application


def test_a_wish_before_the_join_comes_right_after_it() -> None:
    """Kafka forgets what the very first join says."""
    script = ScriptedCoordinator()
    script.member.request_shutdown(script.now_ms)
    script.joined(active=HALF)
    beat = script.sent()
    assert beat is not None
    assert beat.shutdown_application


# The floor.


def test_endless_acknowledgements_do_not_flood_the_coordinator() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    began_ms = script.now_ms
    beats = 0
    while script.now_ms < began_ms + 10_000:
        script.member.acknowledge(HALF, script.now_ms)
        script.next_sent()
        beats += 1
        script.answer()
        script.now_ms += 1
    assert beats <= BURST * (10_000 // BURST_WINDOW_MS) + BURST


def test_a_settled_member_says_nothing_but_that_it_lives() -> None:
    script = ScriptedCoordinator()
    script.settled(active=HALF)
    for _ in range(10):
        script.next_sent()
        script.answer()
    began_ms = script.now_ms
    beats = []
    while script.now_ms < began_ms + 60_000:
        beats.append(script.next_sent())
        script.answer()
    assert len(beats) == 120
    assert all(beat.active_tasks is None and beat.topology is None and beat.client_tags is None for beat in beats)
    assert script.events() == ()
