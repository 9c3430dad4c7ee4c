"""Decisions of `cleanup.policy`: which segments retention may delete, and what compaction may rewrite.

Pure functions over `SegmentFacts` and a `LogConfig`; nothing is read or deleted here. `PartitionLog` applies retention,
`log_cleaning` does the compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.storage.file_system import FileSystem
from headrace.storage.log_config import LogConfig

__all__ = [
    "CleaningPlan",
    "Compactable",
    "SegmentFacts",
    "SegmentSwap",
    "count_deletable_segments",
    "find_compactable",
    "group_segments",
]

_MAX_RELATIVE_OFFSET = 2**31 - 1
"""Index entries hold offsets relative to the segment's base offset as int32, so a segment cannot span more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """The properties of one segment that retention and compaction decide by.

    Attributes:
        base_offset: First offset of the segment, which names its files.
        end_offset: Exclusive end: the base offset of the next segment, or the log end offset.
        size_bytes: Size of the `.log` file.
        max_timestamp_ms: Largest record timestamp; -1 if no record has one.
        first_timestamp_ms: Largest timestamp of the first batch, by which Kafka counts a segment's age; -1 if unknown.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    first_timestamp_ms: int = -1


# -- retention ---------------------------------------------------------------------------------------------------------


def count_deletable_segments(
    segments: Sequence[SegmentFacts], *, log_start_offset: int, high_watermark: int, config: LogConfig, now_ms: int
) -> int:
    """Return how many segments, counted from the oldest, may be deleted.

    Args:
        segments: All segments of the log, oldest first; the last one is the active segment.
        log_start_offset: Segments that end at or before it are deletable under every cleanup policy.
        high_watermark: Segments that end after it are never deletable.
        config: `cleanup.policy`, `retention.bytes` and `retention.ms` of the topic.
        now_ms: Wall-clock time. Record timestamps are compared with it, so a topic of historical events needs
            `retention.ms=-1`.
    """
    surplus_bytes = -1
    # -1 is "no surplus": only segments before the log start are deleted then.
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        surplus_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        is_empty = segment.size_bytes == 0
        if segment.end_offset > high_watermark or (is_empty and segment is segments[-1]):
            break
        if is_empty and segment.end_offset > log_start_offset:
            # Compaction emptied it. It has no timestamp of its own to expire by, so it goes together with the next
            # segment that does.
            continue
        # Kafka deletes by size only while what remains still holds `retention.bytes`: the surplus must cover the
        # whole segment.
        surplus_bytes -= segment.size_bytes
        is_deletable = segment.end_offset <= log_start_offset or surplus_bytes >= 0
        if not (is_deletable or _is_expired(segment, config, now_ms)):
            break
        count = index + 1
    return count


def _is_expired(segment: SegmentFacts, config: LogConfig, now_ms: int) -> bool:
    # A segment without any timestamp (-1) never expires by time; Kafka would fall back to the file's modification time,
    # which a copy of the directory changes.
    if "delete" not in config.cleanup_policy or config.retention_ms < 0 or segment.max_timestamp_ms < 0:
        return False
    return now_ms - segment.max_timestamp_ms > config.retention_ms


# -- compaction --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactable:
    """The part of a log that may be compacted: a clean head that was compacted before, then the dirty part.

    Attributes:
        first_dirty_offset: End of the clean head.
        end_offset: End of the dirty part; later segments are active, undecided or too young.
        clean_bytes: Size of the clean head.
        dirty_bytes: Size of the dirty part.
        is_overdue: Whether `max.compaction.lag.ms` has passed for a dirty segment.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes, from 0.0 to 1.0."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether compaction is worth its cost: above `min.cleanable.dirty.ratio`, or overdue."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """The input of one cleaning, captured by the log's owner; it stays valid while the log is appended to.

    Attributes:
        directory: Directory of the partition.
        config: Settings of the topic at the time of the plan.
        file_system: File system that the segments are read from and written to.
        closed: Segments that start before `end_offset`.
        scanned: (base offset, size in bytes) of all segments, the active one included: transaction markers for
            records in `closed` may lie in any of them.
        flushed_offset: Markers at or after this offset are ignored, since a power loss could still take them away.
        first_dirty_offset: End of the part that was cleaned before.
        end_offset: End of the part that may be cleaned.
        last_batches: Producer id → (last offset of its last data batch, epoch); the offset is -1 if only markers of
            the producer are known.
        now_ms: Wall-clock time of the plan.
    """

    directory: Path
    config: LogConfig
    file_system: FileSystem
    closed: tuple[SegmentFacts, ...]
    scanned: tuple[tuple[int, int], ...]
    flushed_offset: int
    first_dirty_offset: int
    end_offset: int
    last_batches: Mapping[int, tuple[int, int]]
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSwap:
    """A cleaned segment, written and synced under a `.cleaned` name, and the segments that it replaces.

    Attributes:
        old: Base offsets of the replaced segments, ascending.
        new: Base offset of the cleaned segment.
        bytes_before: Total size of the replaced segments.
        bytes_after: Size of the cleaned segment.
    """

    old: tuple[int, ...]
    new: int
    bytes_before: int
    bytes_after: int


def find_compactable(
    closed: Sequence[SegmentFacts], *, first_dirty_offset: int, last_stable_offset: int, config: LogConfig, now_ms: int
) -> Compactable:
    """Return the part of a log that may be compacted, by the rules of Kafka's LogCleanerManager.

    Never compacted: the active segment, anything at or after the last stable offset, a segment with a record younger
    than `min.compaction.lag.ms`.

    Args:
        closed: All segments except the active one, oldest first.
        first_dirty_offset: Everything before it was compacted by an earlier pass.
        last_stable_offset: Start of the oldest open transaction, or the high watermark.
        config: Settings of the topic.
        now_ms: Wall-clock time.
    """
    end_offset, clean_bytes, dirty_bytes, is_overdue = first_dirty_offset, 0, 0, False
    for segment in closed:
        # 1. Clean already: it counts for the ratio, as what would have to be rewritten once more.
        if segment.end_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        # 2. The pass ends before the first segment that is undecided or young: the clean part must be one run from the
        #    start of the log, because a single offset records its end.
        is_young = config.min_compaction_lag_ms > 0 and (
            segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms
        )
        if segment.end_offset > last_stable_offset or is_young:
            break
        # 3. Dirty. `max.compaction.lag.ms` counts from the first record of a segment, since that one has waited
        #    longest.
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


def group_segments(
    closed: Sequence[SegmentFacts], *, end_offset: int, max_bytes: int
) -> Iterator[tuple[SegmentFacts, ...]]:
    """Yield runs of segments that are cleaned into one segment each (Kafka's `groupSegmentsBySize`).

    A run is no larger than `max_bytes` before cleaning, and its offsets fit the int32 of an index entry.
    """
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
