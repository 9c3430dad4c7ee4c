"""Replies, timers, events and refusals of a streams heartbeat, as the shard returns them to the broker."""

from __future__ import annotations

import re

import pytest
from tests.coordinator.coordinator_context import CoordinatorContext, Outcome, subtopology, topology

from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorResult, SetTimer, TimerKey
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.heartbeat import initialize_topology

INTERVAL = {"group.streams.assignment.interval.ms": 1_000}
INTERVAL_TIMER = TimerKey(kind="assignment-interval", group_id="g")


class _Recorded(CoordinatorContext):
    """Keeps the result of the last request."""

    result: CoordinatorResult

    def apply(self, result: CoordinatorResult) -> Outcome:
        self.result = result
        return super().apply(result)

    @property
    def events(self) -> list[tuple[str, dict[str, str]]]:
        assert all(isinstance(each, CoordinatorEvent) and each.group_id == "g" for each in self.result.events)
        return [(each.name, dict(each.details)) for each in self.result.events]

    def timers(self, kind: str) -> list[SetTimer | CancelTimer]:
        return [each for each in self.result.timers if each.key.kind == kind]


def with_a_static_member() -> _Recorded:
    """Instance a was member a1, which reported task offsets, and left for a while."""
    ctx = _Recorded()
    ctx.join("a1", instance_id="a")
    ctx.heartbeat("a1", 2, instance_id="a", active={"0": (0, 1, 2, 3)}, offsets={("0", 1): 7})
    ctx.heartbeat("a1", -2, instance_id="a")
    return ctx


def test_the_reply_answers_the_request_and_names_the_member() -> None:
    ctx = _Recorded()
    outcome = ctx.join("m1")
    (reply,) = ctx.result.replies
    assert reply.token == ctx.context().token
    assert outcome.response.member_id == "m1"


def test_a_join_is_an_event_and_so_is_each_epoch_it_begins() -> None:
    ctx = _Recorded()
    ctx.join("m1")
    joined, bumped, computed, *_ = ctx.events
    assert joined == ("MemberJoined", {"member_id": "m1"})
    assert (bumped[0], bumped[1]["epoch"]) == ("GroupEpochBumped", "2")
    assert computed == ("TargetAssignmentComputed", {"epoch": "2"})
    ctx.heartbeat("m1", 2)
    assert ctx.events == []
    ctx.heartbeat("m1", 2, client_tags=(("zone", "a"),))
    assert [name for name, _ in ctx.events] == ["GroupEpochBumped", "TargetAssignmentComputed"]


def test_during_the_assignment_interval_no_target_is_computed() -> None:
    ctx = _Recorded(settings=INTERVAL)
    ctx.join("m1")
    ctx.join("m2")
    assert [name for name, _ in ctx.events] == ["MemberJoined", "GroupEpochBumped"]


def test_a_static_member_that_returns_takes_the_place_of_its_former_id() -> None:
    ctx = with_a_static_member()
    ctx.join("a2", instance_id="a", process_id="p-a1")
    assert ("StaticMemberReplaced", {"member_id": "a2", "replaced_id": "a1"}) in ctx.events
    assert CancelTimer(key=TimerKey(kind="session", group_id="g", member_id="a1")) in ctx.result.timers
    assert CancelTimer(key=TimerKey(kind="rebalance", group_id="g", member_id="a2")) in ctx.result.timers
    assert "a1" not in ctx.shard.streams.soft_state("g").task_offsets


def test_the_end_of_the_assignment_interval_is_set_once() -> None:
    ctx = _Recorded(settings=INTERVAL)
    ctx.join("m1")
    assert ctx.timers("assignment-interval") == [], "the first target is computed at once"
    end = SetTimer(key=INTERVAL_TIMER, deadline_ms=ctx.now_ms + 1_000)
    ctx.sleep(300)
    ctx.join("m2")
    assert ctx.timers("assignment-interval") == [end]
    ctx.sleep(300)
    ctx.join("m3")
    assert ctx.timers("assignment-interval") == []


def test_a_heartbeat_that_computes_the_target_cancels_the_timer_that_would() -> None:
    ctx = _Recorded(settings=INTERVAL)
    ctx.join("m1")
    ctx.sleep(300)
    ctx.join("m2")
    ctx.now_ms += 700  # the interval is over, and its timer has not fired yet
    assert ctx.heartbeat("m2", 2).epoch == 3
    assert ctx.timers("assignment-interval") == [CancelTimer(key=INTERVAL_TIMER)]


def test_an_initial_delay_of_a_millisecond_is_a_delay() -> None:
    ctx = _Recorded(settings={"group.streams.initial.rebalance.delay.ms": 1})
    assert ctx.join("m1").statuses == [5]
    (timer,) = ctx.timers("initial-delay")
    assert isinstance(timer, SetTimer)
    assert timer.deadline_ms == ctx.now_ms + 1


def test_member_with_the_previous_epoch_is_sent_its_tasks_again() -> None:
    ctx = _Recorded()
    ctx.join("m1")
    ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)})
    assert ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)}, client_tags=(("zone", "a"),)).epoch == 3
    again = ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)})
    assert (again.epoch, again.active) == (3, {"0": (0, 1, 2, 3)})
    assert ctx.heartbeat("m1", 3, active={"0": (0, 1, 2, 3)}).active is None


def test_a_group_without_a_topology_needs_one() -> None:
    request = CoordinatorContext().request("m1", 1)
    with pytest.raises(CoordinatorError, match=r"^Group g has no topology; .*\.$") as caught:
        initialize_topology(StreamsGroup.new("g"), request)
    assert caught.value.code.name == "invalid_request"


def test_another_topology_is_refused_in_the_words_of_kafka() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    with pytest.raises(CoordinatorError, match=f"^{re.escape('Topology updates are not supported yet.')}$"):
        ctx.join("m2", topology=topology(subtopology(), subtopology("1")))


def test_a_topology_that_no_topics_satisfy_is_refused_with_the_reason() -> None:
    loop = topology(
        subtopology("0", sources=(), repartitions=("a",), sinks=("b",)),
        subtopology("1", sources=(), repartitions=("b",), sinks=("a",)),
    )
    ctx = CoordinatorContext()
    with pytest.raises(CoordinatorError, match="loops") as caught:
        ctx.join("m1", topology=loop)
    assert caught.value.code.name == "streams_invalid_topology"
    assert ctx.log == []
