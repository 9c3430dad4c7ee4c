"""What decisions about whole segments are made by: retention's and compaction's."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SegmentFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """`end_offset` is the offset behind the segment's last; timestamps are -1 when no record has one.

    `first_timestamp_ms` is the largest of the first batch, which is what Kafka counts a segment's age by.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    first_timestamp_ms: int = -1
