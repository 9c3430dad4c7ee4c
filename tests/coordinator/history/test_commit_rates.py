"""Rates from commits: progress counts, positions that go back do not, and nothing is made up for unknown times."""

from __future__ import annotations

from headrace.coordinator.history.commit_rates import CommitRates

KEY, OTHER = ("in", 0), ("in", 1)


def test_progress_of_all_partitions_counts() -> None:
    rates = CommitRates()
    for second in range(0, 61, 5):
        rates.commit(KEY, second * 100, second * 1_000)
        rates.commit(OTHER, 1_000_000 + second * 20, second * 1_000)
    assert rates.rate(10_000, 60_000) == 120


def test_a_position_that_goes_back_counts_nothing() -> None:
    rates = CommitRates()
    for at_ms, offset in ((0, 1_000), (15_000, 2_000), (25_000, 0), (35_000, 10)):
        rates.commit(KEY, offset, at_ms)
    assert rates.rate(10_000, 40_000) == 1_010 / 30


def test_unknown_and_short_times_have_no_rate() -> None:
    rates = CommitRates()
    assert rates.rate(0, 60_000) is None
    rates.commit(KEY, 5, 30_000)
    assert rates.rate(0, 60_000) is None
    assert rates.rate(31_000, 32_000) is None
    assert rates.rate(30_000, 90_000) == 0
