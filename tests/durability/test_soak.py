"""The soak in its shortest form: 24 s of mixed load, nothing lost, nothing grows (by hand: `make soak`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from tests.durability.soak import soak, verdict


@pytest.mark.foreign
@pytest.mark.slow
def test_mixed_load_keeps_memory_files_and_latency_bounded(tmp_path: Path) -> None:
    samples, failures = soak(0.4, interval_seconds=1, directory=tmp_path / "data")
    assert failures == []
    assert samples[-1]["read_up_to"] > 0


def test_growing_measures_are_reported() -> None:
    flat = {"rss_mb": 40.0, "files": 60.0, "threads": 3.0, "tasks": 9.0}
    assert verdict([flat] * 20) == []
    assert verdict([{**flat, "rss_mb": 40.0 + n} for n in range(20)]) == []  # 10 MiB between the two: below the rule
    assert verdict([{**flat, "rss_mb": 40.0 + 2 * n} for n in range(20)]) == ["rss_mb grew from 54.0 to 74.0"]
    assert verdict([{**flat, "files": 60.0 + 3 * n} for n in range(20)]) == ["files grew from 81.0 to 111.0"]
    warm = [{**flat, "rss_mb": 10.0}] * 5
    assert verdict([*warm, *[flat] * 15]) == []
