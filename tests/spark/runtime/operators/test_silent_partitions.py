"""Silent partitions that hold back windows: how often they are logged, and in which words."""

from __future__ import annotations

import logging

import pytest

from headrace.spark.runtime.batches.plan import TaskReport
from headrace.spark.runtime.operators.silent_partitions import SilenceLog


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
