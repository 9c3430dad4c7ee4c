"""Silent partitions: which upstream tasks hold back windows, and how often that is logged."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tests.spark.runtime.test_window_operator import COUNTED, SECOND, mark

from headrace.spark.runtime.plan import TaskReport
from headrace.spark.runtime.silent_partitions import SilenceLog
from headrace.spark.runtime.upstream_clock import silent_tasks
from headrace.spark.runtime.watermark_records import UpstreamWatermark
from headrace.spark.topology.nodes import TimeWindow

LATER = 61_000


@pytest.mark.parametrize(
    ("upstream", "idle_timeout_ms", "expected"),
    [
        pytest.param([], 0, (), id="none"),
        pytest.param([mark(0, 70, LATER), mark(1, 70, LATER)], 0, (), id="both-send"),
        pytest.param([mark(0, 70, LATER), mark(1, 30, 0)], 0, (("clicks", 1, LATER),), id="silent"),
        pytest.param([mark(0, 70, LATER), mark(1, 60, 0)], 0, (), id="one-window-end-behind"),
        pytest.param([mark(0, 70, LATER), mark(1, 30, LATER - 1)], 0, (), id="lags-but-sends"),
        pytest.param([mark(0, 70, 59_999), mark(1, 30, 0)], 0, (), id="for-less-than-a-minute"),
        pytest.param([mark(0, 70, LATER), mark(1, 30, 0)], 1000, (), id="passed-over"),
        pytest.param([mark(0, 70, LATER), mark(1, 30, 0)], 90_000, (("clicks", 1, LATER),), id="not-yet-passed-over"),
        pytest.param([mark(0, 70, LATER)], 0, (), id="never-seen-and-no-time-passed"),
        pytest.param([mark(0, 70, LATER).after(mark(0, 6, 0))], 0, (("clicks", 1, LATER),), id="never-seen"),
    ],
)
def test_tasks_are_silent_if_others_are_windows_ahead(
    upstream: list[UpstreamWatermark], idle_timeout_ms: int, expected: tuple[tuple[str, int, int], ...]
) -> None:
    assert silent_tasks(replace(COUNTED, idle_timeout_ms=idle_timeout_ms), upstream) == expected
    assert isinstance(COUNTED.window, TimeWindow)
    assert COUNTED.window.slide_us == 10 * SECOND


def test_silent_partitions_are_logged_once_a_minute_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [100.0]
    silence = SilenceLog("by-window", clock=lambda: now_s[0])

    def lines_after(seconds: float, *silent: tuple[str, int, int]) -> list[str]:
        now_s[0] += seconds
        caplog.clear()
        with caplog.at_level(logging.WARNING, "headrace.spark"):
            silence.add({0: TaskReport(partition=0, silent=[list(one) for one in silent]), 1: TaskReport(partition=1)})
        return [record.getMessage() for record in caplog.records]

    assert lines_after(0, ("clicks", 3, 61_000)) == []
    assert lines_after(5) == []
    [line] = lines_after(6, ("clicks", 3, 72_000), ("clicks", 7, 71_000))
    assert line.startswith("by-window: clicks-3 has sent no watermark for up to 72 s and holds back the windows")
    assert "headrace.watermark.idle.timeout.ms" in line
    assert lines_after(50, ("clicks", 3, 122_000)) == []
    [line] = lines_after(11, ("clicks", 3, 133_000))
    assert "clicks-3" in line
    assert lines_after(70) == []
    assert lines_after(1, ("clicks", 5, 60_000)) == []
