"""Which segments may go: a pure decision over sizes and timestamps, oldest first. Nothing is deleted here.

Kafka's rules: a segment goes when it lies wholly before the log start offset; under `cleanup.policy=delete` also when
its youngest record is older than `retention.ms`, or while what is left still holds `retention.bytes`. Nothing at or
behind the high watermark goes. Record time counts, so a topic of old events needs `retention.ms=-1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.storage.log_config import LogConfig

__all__ = ["SegmentFacts", "deletable_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """`end_offset` is the offset behind the segment's last; `max_timestamp_ms` -1 when no record has a timestamp."""

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int


def deletable_segments(
    segments: Sequence[SegmentFacts], *, log_start_offset: int, high_watermark: int, config: LogConfig, now_ms: int
) -> int:
    """How many segments, counted from the oldest, may be deleted."""
    surplus = -1
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        surplus = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.end_offset > high_watermark or segment.size_bytes == 0:
            break
        surplus -= segment.size_bytes
        if not (segment.end_offset <= log_start_offset or surplus >= 0 or _too_old(segment, config, now_ms)):
            break
        count += 1
    return count


def _too_old(segment: SegmentFacts, config: LogConfig, now_ms: int) -> bool:
    if "delete" not in config.cleanup_policy or config.retention_ms < 0 or segment.max_timestamp_ms < 0:
        return False
    return now_ms - segment.max_timestamp_ms > config.retention_ms
