"""Decisions of retention, against a naive restatement of Kafka's rules, and of compaction."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.storage.log_samples import NOW_MS

from headrace.storage.cleanup_policy import (
    SegmentFacts,
    count_deletable_segments,
    find_compactable,
    group_segments,
)
from headrace.storage.log_config import LogConfig


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 100), st.integers(-1, 100)), max_size=8),
    log_start=st.integers(0, 60),
    high_watermark=st.integers(0, 60),
    retention_ms=st.integers(-1, 50),
    retention_bytes=st.integers(-1, 300),
    delete=st.booleans(),
)
def test_retention_decision(
    sizes: list[tuple[int, int, int]],
    log_start: int,
    high_watermark: int,
    retention_ms: int,
    retention_bytes: int,
    delete: bool,
) -> None:
    segments, offset = [], 0
    for records, size, timestamp in sizes:
        segments.append(
            SegmentFacts(base_offset=offset, end_offset=offset + records, size_bytes=size, max_timestamp_ms=timestamp)
        )
        offset += records
    config = LogConfig(
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        cleanup_policy=frozenset({"delete" if delete else "compact"}),
    )
    count = count_deletable_segments(
        segments, log_start_offset=log_start, high_watermark=high_watermark, config=config, now_ms=100
    )

    def may_go(i: int) -> bool:
        left = sum(s.size_bytes for s in segments[i + 1 :])
        reasons = [segments[i].end_offset <= log_start]
        if delete:
            reasons.append(retention_ms >= 0 <= segments[i].max_timestamp_ms < 100 - retention_ms)
            reasons.append(left >= retention_bytes >= 0)
        return any(reasons) and segments[i].end_offset <= high_watermark

    assert all(may_go(i) for i in range(count))
    assert count == len(segments) or not may_go(count)


COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=400, index_interval_bytes=50)


def facts(*sizes: int, ages_s: tuple[int, ...] = ()) -> list[SegmentFacts]:
    ages = ages_s or tuple(0 for _ in sizes)
    return [
        SegmentFacts(
            base_offset=n * 10,
            end_offset=n * 10 + 10,
            size_bytes=size,
            first_timestamp_ms=NOW_MS - age * 1000,
            max_timestamp_ms=NOW_MS - age * 1000,
        )
        for n, (size, age) in enumerate(zip(sizes, ages, strict=True))
    ]


def test_compaction_is_due_above_the_dirty_ratio() -> None:
    for first_dirty, due in ((0, True), (10, True), (20, False), (30, False), (40, False)):
        part = find_compactable(
            facts(100, 100, 100, 100), first_dirty_offset=first_dirty, last_stable_offset=100, config=COMPACTED,
            now_ms=NOW_MS,
        )  # fmt: skip
        assert part.is_due(COMPACTED) is due, first_dirty


def test_compaction_ends_at_the_last_stable_offset_and_the_minimum_lag() -> None:
    def end(last_stable_offset: int, **how: int) -> int:
        config = replace(COMPACTED, **how)  # type: ignore[arg-type]
        segments = facts(100, 100, 100, ages_s=(30, 20, 10))
        return find_compactable(
            segments, first_dirty_offset=0, last_stable_offset=last_stable_offset, config=config, now_ms=NOW_MS
        ).end_offset

    assert end(100) == 30
    assert end(25) == 20
    assert end(100, min_compaction_lag_ms=15_000) == 20
    assert end(100, min_compaction_lag_ms=40_000) == 0


def test_compaction_is_due_after_the_maximum_lag() -> None:
    config = replace(COMPACTED, max_compaction_lag_ms=15_000)
    segments = facts(1000, 10, ages_s=(30, 10))
    young = find_compactable(segments, first_dirty_offset=10, last_stable_offset=100, config=config, now_ms=NOW_MS)
    assert not young.is_due(config)
    late = find_compactable(
        segments, first_dirty_offset=10, last_stable_offset=100, config=config, now_ms=NOW_MS + 5001
    )
    assert late.is_due(config)
    assert config.roll_ms == 15_000
    assert replace(config, cleanup_policy=frozenset({"delete"})).roll_ms == config.segment_ms


def test_groups_are_no_larger_than_a_segment() -> None:
    found = group_segments(facts(100, 100, 0, 100, 500, 50), end_offset=51, max_bytes=200)
    assert [tuple(each.base_offset for each in run) for run in found] == [(0, 10, 20), (30,), (40,), (50,)]
    assert [len(run) for run in group_segments(facts(1, 1, 1), end_offset=10, max_bytes=100)] == [1]
