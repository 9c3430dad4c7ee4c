"""What was finished beyond a committed offset, as text for the commit's metadata: so a crash repeats little.

Pure. Runs of finished offsets, as a bitmap or as run lengths, whichever is shorter; a version, a kind and a checksum
over them, the committed offset and the topic id in front, so that anybody else's metadata, or ours beside another
offset or of a deleted topic of the same name, counts as none. Never longer than Kafka's default
`offset.metadata.max.bytes` (4096): `offset_tracker` sees to that by its window.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

__all__ = [
    "LONGEST_TEXT",
    "MOST_OFFSETS",
    "MOST_SPARSE_RECORDS",
    "OffsetTracker",
    "Run",
    "Snapshot",
    "decode_finished",
    "encode_finished",
]

Run = tuple[int, int]
"""Finished offsets: the first, and the one behind the last."""

LONGEST_TEXT: Final = 4096
_MARK: Final = "headrace-finished:"
_VERSION: Final = 2  # 1: the checksum did not cover the topic id
_BITMAP, _RUNS = 0, 1
_HEAD: Final = struct.Struct(">BBI")  # version, kind, checksum
_MOST_BYTES: Final = (LONGEST_TEXT - len(_MARK)) * 3 // 4 - _HEAD.size
MOST_OFFSETS: Final = 24_000
"""A bitmap of so many offsets always fits."""
MOST_SPARSE_RECORDS: Final = 320
"""Run lengths of so many records always fit, however far apart their offsets: every second one may begin a run."""
_LARGEST_OFFSET: Final = (1 << 63) - 1

assert MOST_OFFSETS // 8 <= _MOST_BYTES
assert (MOST_SPARSE_RECORDS // 2 + 1) * 18 <= _MOST_BYTES


def encode_finished(committed: int, runs: Sequence[Run], topic_id: UUID | None) -> str:
    """`runs` in order, apart from one another, all behind `committed`; none: the empty string."""
    if not runs:
        return ""
    lengths = _as_lengths(committed, runs)
    span = runs[-1][1] - committed
    if (span + 7) // 8 < len(lengths):
        kind, body = _BITMAP, _as_bitmap(committed, runs)
    else:
        kind, body = _RUNS, lengths
    head = _HEAD.pack(_VERSION, kind, _checksum(committed, topic_id, kind, body))
    return _MARK + base64.b64encode(head + body).decode()


def decode_finished(committed: int, metadata: str, topic_id: UUID | None) -> tuple[Run, ...] | None:
    """The runs beside this committed offset; None when the metadata is not ours, damaged, or of another offset or topic
    id."""
    if not metadata:
        return ()
    if not metadata.startswith(_MARK) or len(metadata) > LONGEST_TEXT:
        return None
    try:
        data = base64.b64decode(metadata[len(_MARK) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) < _HEAD.size:
        return None
    version, kind, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if version != _VERSION or checksum != _checksum(committed, topic_id, kind, body):
        return None
    runs = tuple(_from_bitmap(committed, body) if kind == _BITMAP else _from_lengths(committed, body))
    return runs if _in_order(committed, runs) else None


def _checksum(committed: int, topic_id: UUID | None, kind: int, body: bytes) -> int:
    incarnation = bytes(16) if topic_id is None else topic_id.bytes  # zeros: a broker without topic ids (before 2.8)
    return zlib.crc32(body, zlib.crc32(struct.pack(">qB", committed, kind) + incarnation))


def _in_order(committed: int, runs: Iterable[Run]) -> bool:
    behind = committed
    for start, end in runs:
        if start <= behind or end <= start or end > _LARGEST_OFFSET:
            return False
        behind = end
    return True


def _as_bitmap(committed: int, runs: Iterable[Run]) -> bytes:
    bits = 0
    for start, end in runs:
        bits |= ((1 << end - start) - 1) << start - committed
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _from_bitmap(committed: int, body: bytes) -> Iterator[Run]:
    bits = int.from_bytes(body, "little")
    at = committed
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        at += gap
        length = (~bits & bits + 1).bit_length() - 1
        yield at, at + length
        bits >>= length
        at += length


def _as_lengths(committed: int, runs: Iterable[Run]) -> bytes:
    found = bytearray()
    behind = committed
    for start, end in runs:
        _write_varint(found, start - behind)
        _write_varint(found, end - start)
        behind = end
    return bytes(found)


def _from_lengths(committed: int, body: bytes) -> Iterator[Run]:
    numbers = list(_varints(body))
    at = committed
    for gap, length in zip(numbers[::2], numbers[1::2], strict=False):
        start = at + gap
        at = start + length
        yield start, at


def _write_varint(found: bytearray, number: int) -> None:
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)


def _varints(body: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0


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
