"""Statuses of heartbeat replies as events: each once, and again only after a change."""

from __future__ import annotations

import pytest

from headrace.client.membership.assignment import StatusCode
from headrace.client.membership.events import NotReady, Ready, ShutdownRequested, Status, StatusTracker, is_ready

MISSING: Status = ((StatusCode.MISSING_SOURCE_TOPICS, "in is missing"),)
INTERNAL: Status = ((StatusCode.MISSING_INTERNAL_TOPICS, "cl is missing"),)
SHUTDOWN: Status = ((StatusCode.SHUTDOWN_APPLICATION, "m1 asked for it"),)
DELAYED: Status = ((StatusCode.ASSIGNMENT_DELAYED, "initial delay"),)


@pytest.mark.parametrize(
    ("code", "ready"),
    [
        (StatusCode.STALE_TOPOLOGY, False),
        (StatusCode.MISSING_SOURCE_TOPICS, False),
        (StatusCode.INCORRECTLY_PARTITIONED_TOPICS, False),
        (StatusCode.MISSING_INTERNAL_TOPICS, False),
        (StatusCode.SHUTDOWN_APPLICATION, True),
        (StatusCode.ASSIGNMENT_DELAYED, True),
    ],
)
def test_statuses_that_keep_tasks_from_being_assigned(code: StatusCode, ready: bool) -> None:
    assert is_ready(((code, ""),)) is ready
    assert is_ready(()) is True


def test_a_repeated_problem_is_one_event_and_its_end_another() -> None:
    tracker = StatusTracker()
    assert list(tracker.take(MISSING)) == [NotReady(status=MISSING)]
    assert list(tracker.take(MISSING)) == []
    assert list(tracker.take((*MISSING, *DELAYED))) == []
    assert list(tracker.take(())) == [Ready()]
    assert list(tracker.take(())) == []


def test_another_problem_is_another_event() -> None:
    tracker = StatusTracker()
    assert list(tracker.take(MISSING)) == [NotReady(status=MISSING)]
    assert list(tracker.take(INTERNAL)) == [NotReady(status=INTERNAL)]


def test_a_shutdown_is_reported_once_in_a_membership() -> None:
    tracker = StatusTracker()
    assert list(tracker.take((*MISSING, *SHUTDOWN))) == [NotReady(status=MISSING), ShutdownRequested()]
    assert list(tracker.take((*MISSING, *SHUTDOWN))) == []
    tracker.forget()
    assert list(tracker.take(SHUTDOWN)) == [ShutdownRequested()]


def test_a_new_membership_begins_ready() -> None:
    tracker = StatusTracker()
    list(tracker.take(MISSING))
    tracker.forget()
    assert list(tracker.take(())) == []
