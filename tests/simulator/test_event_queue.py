"""Virtual time: the order of events, and the guard against time that stands still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.simulator.event_queue import MOST_AT_ONCE, ClockStalled, EventQueue


def appending(seen: list[tuple[str, int]], events: EventQueue, name: str) -> Callable[[], None]:
    return lambda: seen.append((name, events.now_ms))


def test_events_run_by_time_then_in_the_order_they_were_added() -> None:
    events, seen = EventQueue(now_ms=0), list[tuple[str, int]]()
    events.at(20, appending(seen, events, "late"))
    events.at(10, appending(seen, events, "first"))
    events.after(10, appending(seen, events, "second"))
    events.run_until(20)
    assert seen == [("first", 10), ("second", 10), ("late", 20)]


def test_the_clock_stops_at_the_end_and_later_events_wait() -> None:
    events, seen = EventQueue(now_ms=0), list[tuple[str, int]]()
    events.at(11, appending(seen, events, "later"))
    events.run_until(10)
    assert (events.now_ms, seen) == (10, [])
    events.run_until(11)
    assert seen == [("later", 11)]


def test_an_event_in_the_past_is_next() -> None:
    events, seen = EventQueue(now_ms=100), list[tuple[str, int]]()
    events.at(50, appending(seen, events, "overdue"))
    events.run_until(100)
    assert seen == [("overdue", 100)]


def test_the_clock_never_goes_back() -> None:
    events = EventQueue(now_ms=100)
    events.run_until(50)
    assert events.now_ms == 100


def test_a_loop_without_delay_is_an_error_not_a_hang() -> None:
    events = EventQueue(now_ms=0)
    count = [0]

    def again() -> None:
        count[0] += 1
        events.after(0, again)

    events.after(0, again)
    with pytest.raises(ClockStalled, match=str(MOST_AT_ONCE)):
        events.run_until(1)
    assert count[0] == MOST_AT_ONCE


def test_a_loop_with_delay_goes_on() -> None:
    events = EventQueue(now_ms=0)
    count = [0]

    def again() -> None:
        count[0] += 1
        events.after(1, again)

    events.after(1, again)
    events.run_until(MOST_AT_ONCE + 10)
    assert count[0] == MOST_AT_ONCE + 10
