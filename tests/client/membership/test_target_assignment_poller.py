"""The early look: only while a rebalance goes on, bounded, off for good when refused; and what it makes faster."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.client.membership.scripted_coordinator import ScriptedCoordinator, owned_in

from headrace.client.membership import events as e
from headrace.client.membership.assignment import Tasks
from headrace.client.membership.target_assignment_poller import LOOKS
from headrace.protocol.error_codes import ErrorCode

HALF = {"flights": (2, 3)}


def is_look(request: Any) -> bool:
    return type(request).__name__ == "StreamsGroupDescribeRequest"


def begun(**settings: Any) -> ScriptedCoordinator:
    """A joiner that was given nothing yet."""
    script = ScriptedCoordinator(early_look=True, **settings)
    script.joined(active={})
    script.events()
    return script


def drain(script: ScriptedCoordinator, until_ms: int, target: Tasks, *, assignment_epoch: int = 2) -> list[int]:
    """Answers everything until then; the times of the looks."""
    request_sent = []
    while script.now_ms < until_ms:
        request = script.next_sent()
        if is_look(request):
            request_sent.append(script.now_ms)
            script.describe(("m-1", None, target), assignment_epoch=assignment_epoch)
        else:
            script.answer()
    return request_sent


def test_disabled_poller_sends_no_describe() -> None:
    script = ScriptedCoordinator()
    script.joined(active={})
    for _ in range(20):
        assert not is_look(script.next_sent())
        script.answer()


def test_a_joiner_sees_its_target_before_it_has_it() -> None:
    script = begun()
    assert is_look(script.next_sent())
    script.describe(("m-1", None, HALF), ("m-0", None, {"flights": (0, 1)}), group_epoch=7, assignment_epoch=7)
    (seen,) = script.events()
    assert isinstance(seen, e.TargetSeen)
    assert (seen.to_come, seen.target.active, seen.target.is_final) == (HALF, HALF, True)
    assert script.member.assignment.active == {}, "seen is not had"
    while is_look(beat := script.next_sent()):
        script.describe(("m-1", None, HALF), group_epoch=7, assignment_epoch=7)
    assert owned_in(beat) is None


def test_a_target_is_told_when_it_changes() -> None:
    script = begun()
    for target, told in ((HALF, 1), (HALF, 0), ({"flights": (3,)}, 1)):
        while not is_look(script.next_sent()):
            script.answer()
        script.describe(("m-1", None, target))
        assert len(script.events()) == told


def test_looks_are_few_and_end_with_the_rebalance() -> None:
    script = begun()
    request_sent = drain(script, script.now_ms + 120_000, HALF)
    assert len(request_sent) == LOOKS
    pauses = [later - earlier for earlier, later in itertools.pairwise(request_sent)]
    assert pauses == sorted(pauses)
    script.next_sent()
    script.answer(epoch=2, active=HALF)
    script.member.acknowledge(HALF, script.now_ms)
    script.next_sent()
    script.answer(epoch=2)
    request_sent = drain(script, script.now_ms + 60_000, HALF)
    assert request_sent == [], "it has what it is to have"


def test_a_large_group_is_looked_at_less_often() -> None:
    script = begun()
    assert is_look(script.next_sent())
    looked_ms = script.now_ms
    script.describe(("m-1", None, HALF), *((f"x-{number}", None, {}) for number in range(1_000)))
    while not is_look(script.next_sent()):
        script.answer()
    assert script.now_ms - looked_ms >= 2_000


@pytest.mark.parametrize("code", [ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed])
def test_unauthorized_poller_stops_describing(code: ErrorCode) -> None:
    script = begun()
    assert is_look(script.next_sent())
    script.describe(code=code)
    for number in range(20):
        request = script.next_sent()
        assert not is_look(request)
        script.answer(epoch=number + 2)  # each epoch is a new rebalance


@pytest.mark.parametrize("code", [ErrorCode.coordinator_load_in_progress, ErrorCode.group_id_not_found])
def test_a_look_that_comes_too_early_is_repeated(code: ErrorCode) -> None:
    script = begun()
    assert is_look(script.next_sent())
    script.describe(code=code)
    while not is_look(script.next_sent()):
        script.answer()


def test_a_look_that_nobody_answers_costs_no_tasks() -> None:
    script = ScriptedCoordinator(early_look=True)
    script.joined(active=HALF)
    script.events()
    assert is_look(script.next_sent())
    script.member.on_failure(script.now_ms)
    assert type(script.next_sent()).__name__ == "FindCoordinatorRequest"
    script.find_coordinator()
    assert owned_in(script.next_sent()) == HALF
    script.answer()
    assert script.events() == ()


def test_while_tasks_are_to_come_the_beats_are_a_tenth_of_a_second_apart() -> None:
    script = begun()
    assert is_look(script.next_sent())
    script.describe(("m-1", None, HALF))
    beats: list[int] = []
    while len(beats) < 30:
        if is_look(script.next_sent()):
            script.describe(("m-1", None, HALF))
            continue
        beats.append(script.now_ms)
        script.answer()
    assert max(later - earlier for earlier, later in itertools.pairwise(beats)) == 100
    script.next_sent()
    script.answer(epoch=2, active=HALF)
    script.member.acknowledge(HALF, script.now_ms)
    waits: list[int] = []
    while len(waits) < 6:
        before_ms = script.now_ms
        if is_look(script.next_sent()):
            script.describe(("m-1", None, HALF))
            continue
        waits.append(script.now_ms - before_ms)
        script.answer(epoch=2)
    assert waits[-1] == 500, "quiet again"


def test_looks_and_beats_respect_each_others_throttling() -> None:
    script = ScriptedCoordinator(early_look=True)
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    script.next_sent()
    script.answer(active={}, throttle_ms=2_000)
    before_ms = script.now_ms
    script.next_sent()
    assert script.now_ms - before_ms == 2_000
    script = begun()
    assert is_look(script.next_sent())
    script.describe(("m-1", None, HALF), throttle_ms=3_000)
    before_ms = script.now_ms
    script.next_sent()
    assert script.now_ms - before_ms == 3_000


def test_a_leaver_does_not_look() -> None:
    script = begun()
    script.member.leave(script.now_ms)
    assert script.next_sent().member_epoch == -1
