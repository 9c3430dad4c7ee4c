"""The recomputation by which chaos in event time is judged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
from tests.chaos.event_time_judgement import busiest, joined, sessions, visits, watermark_ms, windows, wrong_rows

FLIGHTS = range(2100)  # three blocks, with a minute between them


@pytest.mark.parametrize("expected", [windows, busiest, sessions, joined, visits])
def test_rows_that_are_lost_wrong_or_repeated_are_found(expected: Any) -> None:
    rows, final = expected(FLIGHTS), watermark_ms(FLIGHTS)
    first, *others = rows
    right = Counter(list(rows))
    assert wrong_rows("t", right, rows, final) == []
    assert wrong_rows("t", Counter(others), rows, final) == [f"t: 1 rows lost: {[first]}"]
    assert wrong_rows("t", right + Counter([first]), rows, final) == [f"t: 1 rows written more than once: {[first]}"]
    assert wrong_rows("t", right + Counter(["?"]), rows, final) == ["t: 1 rows wrong: ['?']"]


def test_rows_that_are_not_final_may_be_missing() -> None:
    rows = windows(FLIGHTS)
    closed = Counter(row for row, end in rows.items() if end <= watermark_ms(FLIGHTS))
    assert 0 < len(closed) < len(rows)
    assert wrong_rows("t", closed, rows, watermark_ms(FLIGHTS)) == []


def test_each_window_session_and_even_flight_has_its_rows() -> None:
    counted = sum(flights for _, _, flights, _ in windows(FLIGHTS))
    assert counted == len(FLIGHTS)
    assert sum(flights for *_, flights in sessions(FLIGHTS)) == len(FLIGHTS)
    assert sum(flights for _, _, flights, _, _ in visits(FLIGHTS)) == len(FLIGHTS)
    assert sum(number == 0 for *_, number in visits(FLIGHTS)) == 40
    assert len(sessions(FLIGHTS)) == 3 * 40
    assert sorted(number for number, _ in joined(FLIGHTS)) == list(range(0, len(FLIGHTS), 2))
    assert sum(carrier is None for _, carrier in joined(FLIGHTS)) == len(FLIGHTS) // 10
