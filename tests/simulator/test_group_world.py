"""The course of simulated worlds: settling, and broken rules as outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from headrace.simulator.checkers import RuleBroken
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.group_world import STEP_MS, run_world, settle
from headrace.simulator.transcript import Outcome, Transcript


def outcome_of(course: Callable[[], int], *findings: type[Exception]) -> Outcome:
    transcript = Transcript(EventQueue())
    given = {"findings": findings} if findings else {}
    return run_world(course, seed=1, groups="streams", transcript=transcript, did=Counter(), checks=lambda: 5, **given)


def test_a_world_settles_at_the_first_look_without_a_reason() -> None:
    events, reasons = EventQueue(), ["not yet", "nor now", None]
    began_ms = events.now_ms
    settle(events, lambda: reasons.pop(0), patience_ms=1_000, cause="a test")
    assert events.now_ms == began_ms + 3 * STEP_MS


def test_a_world_that_does_not_settle_breaks_a_rule_with_its_last_reason() -> None:
    events = EventQueue()
    began_ms = events.now_ms
    with pytest.raises(RuleBroken, match="a test: not settled after 1000 ms: no task runs"):
        settle(events, lambda: "no task runs", patience_ms=1_000, cause="a test")
    assert events.now_ms == began_ms + 1_000


def test_a_broken_rule_is_part_of_the_outcome() -> None:
    def break_rule() -> int:
        raise RuleBroken("two owners")

    assert outcome_of(lambda: 3).broken is None
    assert outcome_of(lambda: 3).moved == 3
    broken = outcome_of(break_rule)
    assert (broken.broken, broken.moved, broken.checks) == ("two owners", 0, 5)
    assert "BROKEN: two owners" in broken.transcript[-1]


def test_a_crash_of_the_simulated_code_is_raised_unless_it_is_a_finding() -> None:
    def crash() -> int:
        raise KeyError("m1")

    with pytest.raises(KeyError):
        outcome_of(crash)
    assert outcome_of(crash, KeyError).broken == "KeyError('m1')"
