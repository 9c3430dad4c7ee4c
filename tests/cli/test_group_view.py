"""Rates of a group's commits, from looks at it."""

from __future__ import annotations

from headrace.cli.group_view import RATE_WINDOW_MS, CommitRates

FIRST, SECOND = ("t", 0), ("t", 1)


def test_the_first_commit_of_a_partition_is_no_rate() -> None:
    rates = CommitRates()
    rates.add({FIRST: 10}, 1000)
    assert rates.by_partition == {}
    rates.add({FIRST: 30, SECOND: 5_000_000}, 2000)
    assert rates.by_partition == {FIRST: 20.0}
    rates.add({FIRST: 50, SECOND: 5_000_100}, 4000)
    assert rates.by_partition == {FIRST: 40 / 3, SECOND: 50.0}


def test_a_rate_spans_the_window_and_forgets_what_was_before() -> None:
    rates = CommitRates()
    rates.add({FIRST: 0}, 0)
    for second in range(1, 21):
        rates.add({FIRST: 1000 if second > 10 else 0}, second * 1000)
    assert rates.by_partition == {FIRST: 0.0}
    rates.add({FIRST: 2000}, 21_000)
    assert rates.by_partition == {FIRST: 1000 / (RATE_WINDOW_MS / 1000)}


def test_an_offset_that_was_set_back_is_no_negative_rate() -> None:
    rates = CommitRates()
    rates.add({FIRST: 100}, 0)
    rates.add({FIRST: 10}, 1000)
    assert rates.by_partition == {FIRST: 0.0}


def test_two_looks_at_the_same_time_have_no_rate() -> None:
    rates = CommitRates()
    rates.add({FIRST: 100}, 1000)
    rates.add({FIRST: 110}, 1000)
    assert rates.by_partition == {}
