"""When a log begins a new segment: by size, by record time, by a full index."""

from __future__ import annotations

from pathlib import Path

from tests.storage.log_samples import NOW_MS, append, batch, contents, opened


def test_rolls_by_size(tmp_path: Path) -> None:
    one = len(batch("0" * 50))
    log = opened(tmp_path, segment_bytes=3 * one)
    for n in range(7):
        append(log, f"{n}" * 50)
    assert log.segment_base_offsets == (0, 3, 6)
    assert sorted(p.name for p in tmp_path.glob("*.log")) == [f"{base:020d}.log" for base in (0, 3, 6)]
    assert len(contents(log)) == 7


def test_rolls_by_record_time(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_ms=1000)
    for ms in (0, 1000, 1001, 1500, 2002):
        append(log, "x", timestamp_ms=NOW_MS + ms)
    assert log.segment_base_offsets == (0, 2, 4)


def test_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    same_time = opened(tmp_path / "offsets", index_interval_bytes=0, segment_index_bytes=72)
    rising = opened(tmp_path / "times", index_interval_bytes=0, segment_index_bytes=72)
    for n in range(12):
        append(same_time, "x")
        append(rising, "x", timestamp_ms=NOW_MS + n)
    assert same_time.segment_base_offsets == (0, 10), "9 entries of 8 bytes, none for the first batch"
    assert rising.segment_base_offsets == (0, 6), "6 entries of 12 bytes, one kept free"
    assert len(contents(same_time)) == len(contents(rising)) == 12
