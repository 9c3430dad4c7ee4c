"""One partition of a parallel consumer: which records are finished, and what may be committed. Pure.

Rules it obeys:
- The committed offset is that of the first unfinished record; with none, the position behind everything polled.
- What is finished beyond it goes into the commit's metadata (`offset_map_codec`), and always fits: a record may be
  begun only within the window (`may_begin`), which is as wide as the metadata can tell.
- Offset and metadata of a commit are one snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

from headrace.client.parallel.offset_map_codec import (
    MOST_OFFSETS,
    MOST_SPARSE_RECORDS,
    Run,
    decode_finished,
    encode_finished,
)

__all__ = ["OffsetTracker", "Snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What to commit of one partition. `finished`: how many records ended since the last snapshot."""

    offset: int
    metadata: str
    finished: int


class OffsetTracker:
    """Mutable. Records are added in the order of their offsets; each is finished once."""

    __slots__ = ("_before", "_done", "_finished", "_order", "_ordinal", "_position", "_snapshot", "_topic_id")

    def __init__(self, committed: tuple[int, str] | None = None, topic_id: UUID | None = None) -> None:
        """Args: `committed`, offset and metadata of the commit that this assignment begins with; `topic_id`, the topic
        that the offsets of this assignment belong to."""
        self._topic_id = topic_id
        self._before = deque((decode_finished(*committed, topic_id) or ()) if committed is not None else ())
        self._order: deque[tuple[int, int]] = deque()  # (offset, ordinal) from the first unfinished on
        self._done: set[int] = set()
        self._ordinal = 0
        self._position: int | None = None
        self._finished = 0
        self._snapshot = committed

    @property
    def next_offset(self) -> int | None:
        """What a commit would say; None before anything was polled."""
        if self._order or self._position is None:
            return self._order[0][0] if self._order else None
        known = bool(self._before) and self._before[0][0] <= self._position < self._before[0][1]
        return self._before[0][1] if known else self._position

    @property
    def unfinished(self) -> int:
        """How many records were polled and are not finished."""
        return len(self._order) - len(self._done)

    @property
    def uncommitted(self) -> int:
        """How many records ended since the last snapshot."""
        return self._finished

    def add(self, offset: int) -> bool:
        """A polled record; False when it was finished before this assignment, and is not to be processed again."""
        while self._before and self._before[0][1] <= offset:
            self._before.popleft()
        known = bool(self._before) and self._before[0][0] <= offset
        self._ordinal += 1
        self._position = offset + 1
        if known and not self._order:
            return False
        self._order.append((offset, self._ordinal))
        if known:
            self._done.add(offset)
        return not known

    def passed(self, position: int) -> None:
        """Everything before was polled: behind the last record may lie markers, or what compaction left."""
        if self._position is None or position > self._position:
            self._position = position

    @property
    def begins(self) -> int:
        """The ordinal of the record that is added next."""
        return self._ordinal + 1

    def may_begin(self, offset: int, ordinal: int) -> bool:
        """Whether the metadata could tell that it ended before all others."""
        if not self._order:
            return True
        first_offset, first_ordinal = self._order[0]
        return offset - first_offset < MOST_OFFSETS or ordinal - first_ordinal < MOST_SPARSE_RECORDS

    def finish(self, offset: int) -> bool:
        """A record ended for good; whether the first unfinished one is another now."""
        self._finished += 1
        self._done.add(offset)
        moved = False
        while self._order and self._order[0][0] in self._done:
            self._done.discard(self._order.popleft()[0])
            moved = True
        return moved

    def snapshot(self) -> Snapshot | None:
        """What to commit now; None when that is committed, or under way, already."""
        offset = self.next_offset
        if offset is None:
            return None
        found = (offset, encode_finished(offset, self._runs(offset), self._topic_id))
        if found == self._snapshot:
            return None
        self._snapshot = found
        finished, self._finished = self._finished, 0
        return Snapshot(offset=found[0], metadata=found[1], finished=finished)

    def refused(self, snapshot: Snapshot) -> None:
        """It did not become durable: the next snapshot says it again."""
        self._snapshot = None
        self._finished += snapshot.finished

    def _runs(self, base: int) -> list[Run]:
        """Finished beyond `base`, apart from one another; what the commit before said of records to come as well."""
        found: list[Run] = []
        for start, end in chain(self._done_runs(), self._before):
            if end <= base:
                continue
            if found and start <= found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((start, end))
        return found

    def _done_runs(self) -> Iterator[Run]:
        """Of records next to each other, whatever lies between their offsets."""
        left = len(self._done)
        start: int | None = None
        end = 0
        for offset, _ in self._order if left else ():
            if offset in self._done:
                start = offset if start is None else start
                end = offset + 1
                left -= 1
            elif start is not None:
                yield start, end
                start = None
                if not left:
                    return
        if start is not None:
            yield start, end
