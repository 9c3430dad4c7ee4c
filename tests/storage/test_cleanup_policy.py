"""The decision which segments may go, against a naive restatement of Kafka's rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cleanup_policy import SegmentFacts, count_deletable_segments
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
