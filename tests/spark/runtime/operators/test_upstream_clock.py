"""Clock of an operator behind a repartition topic: which upstream tasks hold back windows because they are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.spark.runtime.operators.test_window_operator import COUNTED, SECOND, mark

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.operators.upstream_clock import least_watermark, silent_tasks
from headrace.spark.runtime.operators.watermark_records import UpstreamWatermark
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


def test_a_source_without_a_watermark_holds_back_the_others_of_its_union() -> None:
    upstream = [mark(0, 70, LATER).after(mark(0, 6, 0)), mark(1, 80, LATER)]
    assert least_watermark(("clicks",), upstream, 0) == 70 * SECOND
    assert least_watermark(("clicks", "views"), upstream, 0) == NO_TIME
    assert least_watermark(("clicks", "views"), upstream, LATER) == NO_TIME, "not silent for longer than that"
    assert least_watermark(("clicks", "views"), upstream, LATER - 1) == 70 * SECOND
    assert least_watermark(("clicks", "views"), [*upstream, replace(mark(0, 9, 0), source="views", tasks=1)], 0) == (
        9 * SECOND
    )
    union = replace(COUNTED, watermark_sources=("clicks", "views"))
    assert silent_tasks(union, upstream) == (("views", 0, LATER),)
    assert silent_tasks(replace(union, idle_timeout_ms=1000), upstream) == ()
