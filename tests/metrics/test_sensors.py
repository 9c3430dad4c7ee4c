"""Meters and distributions."""

from __future__ import annotations

import pytest

from headrace.metrics.sensors import Distribution, Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_meter_forgets_what_is_older_than_two_windows() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.add(60)
    assert meter.rate() == pytest.approx(2.0)
    clock.now += 30
    meter.add(30)
    assert meter.rate() == pytest.approx(3.0)
    clock.now += 30
    assert meter.rate() == pytest.approx(1.0)
    clock.now += 90
    assert meter.rate() == 0.0
    assert meter.total == 90


def test_a_distribution_knows_mean_greatest_and_percentiles() -> None:
    clock = Clock()
    times = Distribution(clock)
    for ms in range(1, 101):
        times.add(float(ms))
    times.add(0.5, times=900)
    assert times.count == 1000
    assert times.max() == 100
    assert times.mean() == pytest.approx((5050 + 450) / 1000)
    assert times.percentile(0.5) == pytest.approx(0.5, rel=0.1)
    assert times.percentile(0.95) == pytest.approx(50, rel=0.1)
    assert times.percentile(0.999) == pytest.approx(99, rel=0.1)
    clock.now += 200
    assert (times.max(), times.mean(), times.percentile(0.99)) == (0.0, 0.0, 0.0)
    assert times.count == 1000
