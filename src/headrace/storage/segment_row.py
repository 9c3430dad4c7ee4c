"""The segments of one log, oldest first, always at least one; the last is the active one.

Lists are replaced as a whole and never changed in place, so another thread may keep looking at those it took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from headrace.storage.batch_scan import Span
from headrace.storage.log_segment import LogSegment

__all__ = ["SegmentRow"]


class SegmentRow:
    """Mutable, owned by its PartitionLog."""

    def __init__(self) -> None:
        self.segments: list[LogSegment] = []
        self.base_offsets: list[int] = []

    def set(self, segments: list[LogSegment]) -> None:
        self.base_offsets = [segment.base_offset for segment in segments]
        self.segments = segments

    @property
    def active(self) -> LogSegment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def index_of(self, offset: int) -> int:
        """Which segment holds `offset`, or would."""
        return max(bisect_right(self.base_offsets, offset) - 1, 0)

    def since(self, offset: int) -> list[LogSegment]:
        """The segment that holds `offset`, and all behind it."""
        return self.segments[self.index_of(offset) :]

    def end_offsets(self, log_end_offset: int) -> list[int]:
        """The offset behind each segment's last."""
        return [*self.base_offsets[1:], log_end_offset]

    def find(self, offset: int) -> tuple[LogSegment, Span] | None:
        """The batch that holds `offset`, or the next one where compaction left a gap; None behind the end."""
        for segment in self.since(offset):
            if (span := segment.find(offset)) is not None:
                return segment, span
        return None

    def drop_oldest(self, count: int) -> list[LogSegment]:
        """Take the oldest out of the row; what to remove from the disk, oldest first."""
        gone = self.segments[:count]
        self.set(self.segments[count:])
        return gone

    def exchange(self, base_offsets: Sequence[int], put: list[LogSegment]) -> None:
        """Put other segments where a run of segments, by their base offsets, was."""
        at = self.base_offsets.index(base_offsets[0])
        self.set([*self.segments[:at], *put, *self.segments[at + len(base_offsets) :]])

    def has_run(self, base_offsets: Sequence[int]) -> bool:
        """Whether these segments are still there, one behind the other, none of them active."""
        at = self.index_of(base_offsets[0])
        end = at + len(base_offsets)
        return end < len(self.base_offsets) and self.base_offsets[at:end] == list(base_offsets)
