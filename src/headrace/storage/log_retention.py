"""Which segments may go: a pure decision over sizes and timestamps, oldest first. Nothing is deleted here.

Kafka's rules: a segment goes when it lies wholly before the log start offset; under `cleanup.policy=delete` also when
its youngest record is older than `retention.ms`, or while what is left still holds `retention.bytes`. Nothing at or
behind the high watermark goes; a segment that compaction emptied goes with the next one. Record time counts, so a topic
of old events needs `retention.ms=-1`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.storage.log_config import LogConfig
from headrace.storage.segment_facts import SegmentFacts

__all__ = ["deletable_segments"]


def deletable_segments(
    segments: Sequence[SegmentFacts], *, log_start_offset: int, high_watermark: int, config: LogConfig, now_ms: int
) -> int:
    """How many segments, counted from the oldest, may be deleted."""
    surplus = -1
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        surplus = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        if segment.end_offset > high_watermark or (segment.size_bytes == 0 and segment is segments[-1]):
            break
        if segment.size_bytes == 0 and segment.end_offset > log_start_offset:
            continue  # counted when a later one goes
        surplus -= segment.size_bytes
        if not (segment.end_offset <= log_start_offset or surplus >= 0 or _too_old(segment, config, now_ms)):
            break
        count = index + 1
    return count


def _too_old(segment: SegmentFacts, config: LogConfig, now_ms: int) -> bool:
    if "delete" not in config.cleanup_policy or config.retention_ms < 0 or segment.max_timestamp_ms < 0:
        return False
    return now_ms - segment.max_timestamp_ms > config.retention_ms
