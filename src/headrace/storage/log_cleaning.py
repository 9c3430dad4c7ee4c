"""One compaction pass over one log, by the rules of Kafka's `LogCleaner`.

A pass reads the dirty part into a map of key → last offset, then rewrites every segment before its end. The work
happens while `LogCleaning.clean_segments` is iterated, which may be in a thread of its own: closed segments never
change, so nothing is locked. Each item is a finished segment that the log's owner puts in place
(`PartitionLog.swap_segments`) before it asks for the next one; a log that was truncated or deleted meanwhile refuses.

What survives a pass:

- the last record of each key within the cleaned part, and everything after its end;
- a tombstone, until its delete horizon (`filter_batch`) has passed;
- records without a key. A compacted topic refuses them, but a topic whose policy was altered may hold some;
- the last batch of each producer that is still known, as a bare header if no record remains, so that its sequence
  number survives the loss of a snapshot;
- a transaction marker, until no record of its transaction remains and its own delete horizon has passed. Records of
  aborted transactions are dropped.

Offsets, sequence numbers, epochs and codec of a batch do not change; it keeps its first and last offset although
records in between are gone. A tombstone (or the marker of a transaction without records) first gets a *delete horizon*,
the time until which a reader may still need it. As in Kafka (KIP-534) it is stored in the batch itself: bit 6 of the
attributes is set, and the base timestamp field holds the horizon, so that timestamp deltas count from it.
"""

from __future__ import annotations

import errno
import struct
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from hashlib import blake2b

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.protocol import compression
from headrace.protocol.batch_headers import HEADER_BYTES, BatchHeader, CorruptBatch, control_type
from headrace.protocol.record_batches import RawRecord, raw_records, read_varint, write_varint
from headrace.storage.batch_scan import crc_matches, parse_header, walk
from headrace.storage.cleanup_policy import CleaningPlan, SegmentFacts, SegmentSwap, group_segments
from headrace.storage.file_system import File
from headrace.storage.log_segment import LogSegment, segment_name
from headrace.storage.segment_swap import CLEANED, discard_new_segment, remove_old_segments

__all__ = [
    "DEDUPE_BUFFER_BYTES",
    "CleanedTransactions",
    "LogCleaning",
    "OffsetMap",
    "RecordFilter",
    "delete_horizon_ms",
    "empty_batch",
    "filter_batch",
]

DEDUPE_BUFFER_BYTES = 64 * 1024**2
# Reads and writes of this size keep system calls rare while a pass competes with the broker for at most a few hundred
# KiB of memory.
_WRITE_BYTES = 256 * 1024
_MAX_SEGMENT_BYTES = 2**31 - 1


class LogCleaning:
    """One compaction pass. Mutable: `end_offset` is final once the dirty part has been read.

    Args:
        plan: The log as it was when the pass began.
        dedupe_buffer_bytes: Memory for the offset map (`log.cleaner.dedupe.buffer.size`). If it is full, the pass ends
            early and the next one continues from there.
        throttle: Called between batches with the number of bytes read. It may sleep, or raise to end the pass.

    Attributes:
        end_offset: Everything before it is clean when the pass is complete.
    """

    def __init__(
        self,
        plan: CleaningPlan,
        *,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
        throttle: Callable[[int], None] = lambda _bytes_read: None,
    ) -> None:
        self.end_offset = plan.first_dirty_offset
        self._plan = plan
        self._throttle = throttle
        self._offset_map = OffsetMap(dedupe_buffer_bytes)
        self._transactions = CleanedTransactions()
        self._producers_with_records: set[int] = set()

    def clean_segments(self) -> Generator[SegmentSwap]:
        """Yield cleaned segments one by one; each must be swapped in before the next is requested.

        Raises:
            OSError: A file could not be read or written. The cleaned segment at hand is removed.
            CorruptBatch: A closed segment holds a batch with a wrong CRC.
        """
        plan = self._plan
        # 1. Read all markers before any data: whether a record counts is decided by a marker that comes after it.
        self._read_markers()
        # 2. Read the dirty part. Its end may come early, if the map is full or a transaction is open.
        self._build_offset_map()
        # 3. Rewrite from the start of the log, in groups that fit one segment: small segments, left by earlier passes,
        #    are merged (`groupSegmentsBySize` in Kafka). The clean part is rewritten too, since dirty records may hide
        #    what is in it.
        for group in group_segments(plan.closed, end_offset=self.end_offset, max_bytes=plan.config.segment_bytes):
            old = tuple(segment.base_offset for segment in group)
            try:
                swap = self._clean_group(group)
            except BaseException:
                discard_new_segment(plan.directory, old[0], CLEANED, plan.file_system)
                raise
            # Nothing would change: keep the old files.
            if swap is None:
                discard_new_segment(plan.directory, old[0], CLEANED, plan.file_system)
                continue
            try:
                yield swap
            except GeneratorExit:  # the owner closed the generator instead of swapping the segment in
                discard_new_segment(plan.directory, old[0], CLEANED, plan.file_system)
                raise
            # The renames must be durable before the next group is written: a tombstone that is dropped there may be
            # the only reason why a value that was dropped here does not come back after a power loss.
            plan.file_system.sync_directory(plan.directory)
            remove_old_segments(plan.directory, old, plan.file_system)

    def _read_markers(self) -> None:
        """Learn from all flushed transaction markers which transactions were aborted."""
        plan = self._plan
        for base_offset, size_bytes in plan.scanned:
            for batch, header in self._read_segment(base_offset, size_bytes, control_only=True):
                # A marker that a power loss could still take away decides nothing: records that were dropped by it
                # could not come back.
                if header.base_offset >= plan.flushed_offset:
                    return
                self._transactions.add(batch, header)

    def _build_offset_map(self) -> None:
        """Read the dirty part into the offset map and fix `end_offset`.

        The pass ends before the first batch for which either holds:
        - the map is full (checked between batches, so a map may exceed its size by the keys of one batch);
        - the batch belongs, or may belong, to a transaction without a marker. Its records must neither be dropped nor
          hide older ones.
        """
        plan = self._plan
        first_undecided = self._transactions.first_undecided_offset
        for segment in plan.closed:
            if segment.end_offset <= plan.first_dirty_offset or segment.base_offset >= plan.end_offset:
                continue
            for batch, header in self._read_segment(segment.base_offset, segment.size_bytes):
                if header.last_offset < plan.first_dirty_offset:
                    continue
                # The batch is left to the next pass as a whole: `end_offset` is always the end of a batch.
                if self._offset_map.is_full or header.last_offset >= first_undecided:
                    return
                # Aborted records and markers hide nothing: an older committed value of the same key must survive them.
                if not header.is_control and not self._transactions.is_aborted(header):
                    _, records = raw_records(batch, header._replace(position=0))
                    for _, _, _, delta, key, _ in records:
                        if key is not None:
                            self._offset_map.put(key, header.base_offset + delta)
                self.end_offset = header.next_offset
            # The segment's end and not its last batch's: compaction may have left a gap behind it, and offsets in a gap
            # are clean.
            self.end_offset = segment.end_offset

    def _clean_group(self, group: tuple[SegmentFacts, ...]) -> SegmentSwap | None:
        """Write a group of segments into one cleaned segment; None if nothing would change."""
        plan = self._plan
        base_offset = group[0].base_offset
        new = LogSegment.create(plan.directory, base_offset, plan.config, plan.file_system, suffix=CLEANED)
        changed = len(group) > 1
        try:
            writer = _BatchWriter(new)
            for segment in group:
                for batch, header in self._read_segment(segment.base_offset, segment.size_bytes):
                    kept = self._clean_batch(batch, header._replace(position=0))
                    changed = changed or kept != batch
                    if kept is not None:
                        writer.add(kept)
            writer.write()
            if not changed:
                return None
            new.close_time_index()
            new.sync()
        finally:
            new.close()
        return SegmentSwap(
            old=tuple(segment.base_offset for segment in group),
            new=base_offset,
            bytes_before=sum(segment.size_bytes for segment in group),
            bytes_after=new.size_bytes,
        )

    def _clean_batch(self, batch: bytes, header: BatchHeader) -> bytes | None:
        """Return what remains of a batch: the same bytes, a rewritten batch, a bare header, or None for nothing."""
        # 1. Markers have no keys; they live as long as the records that they decide.
        if header.is_control:
            return self._clean_marker(batch, header)
        # 2. A bare header, left by an earlier pass, goes when no producer and no end of a clean part needs it.
        keep_header = self._needs_header(header)
        if header.records_count == 0:
            return batch if keep_header else None
        # 3. Records of an aborted transaction go in this pass; its marker goes in a later one, which meets no record of
        #    the transaction any more (`_clean_marker`).
        if self._transactions.is_aborted(header):
            self._producers_with_records.add(header.producer_id)
            return empty_batch(header) if keep_header else None
        if header.is_transactional:
            self._producers_with_records.add(header.producer_id)
        # 4. A tombstone goes once consumers had `delete.retention.ms` to see it. The time counts from the first pass
        #    that kept it as the last record of its key, not from its timestamp (KIP-534).
        horizon_ms = delete_horizon_ms(header)
        tombstones_expired = horizon_ms is not None and self._plan.now_ms >= horizon_ms
        last_offset, end_offset = self._offset_map.last_offset, self.end_offset

        def is_kept(key: bytes | None, has_value: bool, offset: int) -> bool:
            # 5. The map knows nothing of offsets from `end_offset` on: a group may hold some if the pass ended early.
            if offset >= end_offset or key is None:
                return True
            return offset >= last_offset(key) and (has_value or not tombstones_expired)

        section, records = raw_records(batch, header)
        return filter_batch(
            batch, header, section, records, is_kept, new_horizon_ms=self._new_horizon_ms, keep_empty=keep_header
        )

    def _clean_marker(self, batch: bytes, header: BatchHeader) -> bytes | None:
        """Return what remains of a control batch, as `_clean_batch`."""
        # 1. This pass met records of the transaction: a consumer that read them needs the marker. The set is per
        #    producer, since a producer's transactions follow one another.
        has_records = header.producer_id in self._producers_with_records
        self._producers_with_records.discard(header.producer_id)
        # 2. Later than the pass, or no transaction's marker at all: not ours to judge.
        is_after_end = header.base_offset >= self.end_offset
        if has_records or is_after_end or header.producer_id < 0 or header.records_count == 0:
            return batch if header.records_count or self._needs_header(header) else None
        # 3. No record is left. The marker gets a delete horizon now, and a later pass drops it.
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is not None and self._plan.now_ms >= horizon_ms:
            return empty_batch(header) if self._needs_header(header) else None
        section, records = raw_records(batch, header)
        return filter_batch(
            batch,
            header,
            section,
            records,
            lambda _key, _has_value, _offset: True,
            new_horizon_ms=self._new_horizon_ms,
            keep_empty=True,
            force_horizon=True,
        )

    @property
    def _new_horizon_ms(self) -> int:
        return self._plan.now_ms + self._plan.config.delete_retention_ms

    def _needs_header(self, header: BatchHeader) -> bool:
        """Whether the header stays although no record does.

        The last batch before the end of the pass stays too, so that the clean part ends where it did (as in Kafka 4).
        """
        return header.next_offset == self.end_offset or self._is_last_of_producer(header)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._plan.last_batches.get(header.producer_id)
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset < 0:
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == last_offset

    def _read_segment(
        self, base_offset: int, size_bytes: int, *, control_only: bool = False
    ) -> Iterator[tuple[bytes, BatchHeader]]:
        """Yield the batches of one segment; with `control_only` other batches come as a header with empty bytes."""
        path = self._plan.directory / f"{segment_name(base_offset)}.log"
        file = self._plan.file_system.open(path)
        try:
            yield from self._read_batches(file, size_bytes, control_only=control_only)
        finally:
            file.close()

    def _read_batches(self, file: File, size_bytes: int, *, control_only: bool) -> Iterator[tuple[bytes, BatchHeader]]:
        block, block_at = b"", 0
        for span in walk(file, 0, size_bytes):
            if span.end > block_at + len(block):
                size = max(_WRITE_BYTES, span.end - span.position)
                block, block_at = file.read_at(min(size, size_bytes - span.position), span.position), span.position
            at = span.position - block_at
            header = parse_header(block, at, span.position)
            self._throttle(header.size_bytes)
            if control_only and not header.is_control:
                yield b"", header
                continue
            batch = block[at : at + header.size_bytes]
            if not crc_matches(batch, header.crc):
                raise CorruptBatch(f"its CRC is not {header.crc:#010x}", base_offset=header.base_offset)
            yield batch, header


class _BatchWriter:
    """Buffered writer of batches into a new segment."""

    def __init__(self, segment: LogSegment) -> None:
        self._segment = segment
        self._data = bytearray()
        self._headers: list[BatchHeader] = []

    def add(self, batch: bytes) -> None:
        self._headers.append(parse_header(batch, 0, len(self._data)))
        self._data += batch
        if len(self._data) >= _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        """Write what is buffered. Raises OSError."""
        if not self._data:
            return
        if self._segment.size_bytes + len(self._data) > _MAX_SEGMENT_BYTES:
            raise OSError(errno.EFBIG, "a compacted segment would be larger than 2 GiB", str(self._segment.path))
        self._segment.append(self._data, self._headers)
        self._data, self._headers = bytearray(), []


class OffsetMap:
    """Key → last offset, in bounded memory (Kafka's `SkimpyOffsetMap`).

    Keys of up to 23 bytes are stored as they are, longer ones as a 24-byte BLAKE2b digest: short keys are compared
    whole, and a collision of 192-bit digests is out of reach even for a client that chooses the keys. Kafka stores 16
    bytes of MD5 for every key, for which collisions can be constructed.

    Args:
        max_bytes: Approximate memory bound. Nothing is refused when it is reached; see `is_full`.
    """

    DIGEST_BYTES = 24
    # Memory per key in a CPython dict: the bytes object, the int, and its share of a hash table that is half full.
    ENTRY_BYTES = 224

    def __init__(self, max_bytes: int) -> None:
        self._max_keys = max(max_bytes // self.ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether the bound is reached; the caller finishes the batch at hand and stops."""
        return len(self._offsets) >= self._max_keys

    def put(self, key: bytes, offset: int) -> None:
        """Set the last offset of a key. Offsets must be passed in ascending order."""
        self._offsets[self._stored(key)] = offset

    def last_offset(self, key: bytes) -> int:
        """Return the last offset of a key; -1 if the key was never put."""
        return self._offsets.get(self._stored(key), -1)

    def _stored(self, key: bytes) -> bytes:
        return key if len(key) < self.DIGEST_BYTES else blake2b(key, digest_size=self.DIGEST_BYTES).digest()


class CleanedTransactions:
    """Outcomes of the transactions in a log, from headers and markers alone (Kafka's `CleanedTransactionMetadata`).

    A marker decides all batches that its producer wrote since its previous marker. Mutable: `add` all batches in
    order, then query.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id → first offset of its transaction without a marker
        # Producer id → first offsets of its aborted transactions, and the offsets of their markers; both ascending.
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}

    def add(self, batch: bytes, header: BatchHeader) -> None:
        """Add the next batch. `batch` must be the whole batch if it is a control batch; otherwise it is not read."""
        if not header.is_transactional:
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        outcome = control_type(batch, header._replace(position=0))
        if outcome == "other":
            return
        first = self._open.pop(header.producer_id, None)
        # A marker without a first offset ends a transaction that wrote nothing here. Commits are not kept: what is not
        # aborted and not open is committed.
        if outcome == "abort" and first is not None:
            firsts, markers = self._aborted.setdefault(header.producer_id, ([], []))
            firsts.append(first)
            markers.append(header.base_offset)

    @property
    def first_undecided_offset(self) -> int:
        """First offset of the oldest transaction without a marker; beyond every offset if there is none."""
        return min(self._open.values(), default=2**63 - 1)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        # The first marker at or after the batch decides it, if the transaction had begun by then. A binary search,
        # because a log may hold many aborted transactions of one producer.
        firsts, markers = self._aborted.get(header.producer_id, ([], []))
        at = bisect_left(markers, header.base_offset)
        return at < len(markers) and firsts[at] <= header.base_offset


_BEFORE_CRC_RANGE = struct.Struct(">qiibI")
_CRC_RANGE = struct.Struct(">hiqqqhii")
_CODEC_BITS = 0x07
_DELETE_HORIZON_BIT = 0x40
_NO_TIMESTAMP = -1
_LENGTH_OVERHEAD = 12

RecordFilter = Callable[[bytes | None, bool, int], bool]
"""(key, has a value, offset) → whether the record is kept."""


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return the time until which the batch's tombstones are kept; None if it has not been set yet."""
    return header.base_timestamp if header.attributes & _DELETE_HORIZON_BIT else None


def filter_batch(
    batch: bytes,
    header: BatchHeader,
    section: bytes,
    records: list[RawRecord],
    is_kept: RecordFilter,
    *,
    new_horizon_ms: int,
    keep_empty: bool,
    force_horizon: bool = False,
) -> bytes | None:
    """Return the batch with the records that are kept: the same bytes if all are, None if nothing remains.

    Args:
        batch: The whole batch.
        header: Its header.
        section: Its records, uncompressed.
        records: Their positions and fields within `section`.
        is_kept: Decides for each record.
        new_horizon_ms: Delete horizon for tombstones that have none yet.
        keep_empty: Return a bare header where no record is kept; its last offset and sequence are still needed.
        force_horizon: Set the horizon even if no kept record is a tombstone (for transaction markers).
    """
    kept = [each for each in records if is_kept(each[4], each[5] is not None, header.base_offset + each[3])]
    if not kept:
        return empty_batch(header) if keep_empty else None
    # 1. A first tombstone: set the horizon. The base timestamp changes, so every delta is written anew.
    horizon_ms = delete_horizon_ms(header)
    if horizon_ms is None and (force_horizon or any(each[5] is None for each in kept)):
        rebased = (_rebase_timestamp(section, each, header, new_horizon_ms) for each in kept)
        return _build_batch(header, kept, rebased, new_horizon_ms)
    # 2. Nothing was dropped: the same bytes, so that a group in which nothing changes is not rewritten.
    if len(kept) == len(records):
        return batch
    # 3. Copy the records that are kept as bytes.
    return _build_batch(header, kept, (section[each[0] : each[1]] for each in kept), horizon_ms)


def empty_batch(header: BatchHeader) -> bytes:
    """Return the bare header, as Kafka leaves it for the last batch of a producer or of a segment."""
    # An empty payload has no codec, and without records there is nothing that a horizon could delete.
    attributes = header.attributes & ~(_CODEC_BITS | _DELETE_HORIZON_BIT)
    return _pack_batch(header, attributes, _NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _build_batch(header: BatchHeader, kept: list[RawRecord], parts: Iterable[bytes], horizon_ms: int | None) -> bytes:
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | _DELETE_HORIZON_BIT, horizon_ms
    max_timestamp = header.max_timestamp
    if not header.has_append_time:
        # The record with the largest timestamp may be gone; under LogAppendTime the header's timestamp is that of all
        # records.
        max_timestamp = max(header.base_timestamp + each[2] for each in kept)
    payload = b"".join(parts)
    if attributes & _CODEC_BITS:
        payload = bytes(compression.compress(header.compression, payload))
    return _pack_batch(header, attributes, base_timestamp, max_timestamp, len(kept), payload)


def _rebase_timestamp(section: bytes, record: RawRecord, header: BatchHeader, base_timestamp: int) -> bytes:
    """Return the record's bytes with its timestamp delta counted from another base."""
    start, end, timestamp_delta = record[:3]
    _, position = read_varint(section, start)
    _, behind = read_varint(section, position + 1)
    body = bytearray(section[position : position + 1])
    write_varint(body, header.base_timestamp + timestamp_delta - base_timestamp)
    body += section[behind:end]
    whole = bytearray()
    write_varint(whole, len(body))
    return bytes(whole + body)


def _pack_batch(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    in_crc_range = _CRC_RANGE.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    crc = crc32c_extend(crc32c(in_crc_range), payload)
    length = HEADER_BYTES - _LENGTH_OVERHEAD + len(payload)
    before = _BEFORE_CRC_RANGE.pack(header.base_offset, length, header.leader_epoch, header.magic, crc)
    return before + in_crc_range + payload
