"""Which part of a log may be compacted, whether that is worth it, and in what portions. Pure decisions, as retention's.

Kafka's rules: never the active segment, nothing at or behind the last stable offset, no segment with a record younger
than `min.compaction.lag.ms`. It is worth it when the dirty part is more than `min.cleanable.dirty.ratio` of what may
be compacted, or when its oldest segment is older than `max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.storage.log_config import LogConfig
from headrace.storage.segment_facts import SegmentFacts

__all__ = ["Compactable", "compactable", "portions"]

_MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactable:
    """`end_offset`: what lies before may be compacted. `is_overdue`: `max.compaction.lag.ms` has passed."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def compactable(
    closed: Sequence[SegmentFacts], *, first_dirty_offset: int, last_stable_offset: int, config: LogConfig, now_ms: int
) -> Compactable:
    """`closed` are all segments but the active one, oldest first."""
    end_offset, clean_bytes, dirty_bytes, is_overdue = first_dirty_offset, 0, 0, False
    for segment in closed:
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        is_young = config.min_compaction_lag_ms > 0 and (
            segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms
        )
        if segment.end_offset > last_stable_offset or is_young:
            break
        dirty_bytes += segment.size_bytes
        end_offset = segment.end_offset
        if 0 < segment.first_timestamp_ms < now_ms - config.max_compaction_lag_ms:
            is_overdue = True
    return Compactable(
        first_dirty_offset=first_dirty_offset,
        end_offset=end_offset,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=is_overdue,
    )


def portions(closed: Sequence[SegmentFacts], *, end_offset: int, max_bytes: int) -> Iterator[tuple[SegmentFacts, ...]]:
    """Runs of segments that become one each: no larger than a segment may be, offsets within its reach."""
    run: list[SegmentFacts] = []
    for segment in closed:
        if segment.base_offset >= end_offset:
            break
        size_bytes = sum(each.size_bytes for each in run) + segment.size_bytes
        if run and (size_bytes > max_bytes or segment.end_offset - 1 - run[0].base_offset > _MAX_RELATIVE_OFFSET):
            yield tuple(run)
            run = []
        run.append(segment)
    if run:
        yield tuple(run)
