"""One compaction pass over one log, by the rules of Kafka's `LogCleaner`.

A pass reads the dirty part into a map of key → last offset, then rewrites every segment before its end. The work
happens while `LogCleaning.clean_segments` is iterated, which may be in a thread of its own: closed segments never
change, so nothing is locked. Each item is a finished segment that the log's owner puts in place
(`PartitionLog.swap_segments`) before it asks for the next one; a log that was truncated or deleted meanwhile refuses.

What survives a pass:

- the last record of each key within the cleaned part, and everything after its end;
- a tombstone, until its delete horizon (`batch_rewriting`) has passed;
- records without a key. A compacted topic refuses them, but a topic whose policy was altered may hold some;
- the last batch of each producer that is still known, as a bare header if no record remains, so that its sequence
  number survives the loss of a snapshot;
- a transaction marker, until no record of its transaction remains and its own delete horizon has passed. Records of
  aborted transactions are dropped.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from hashlib import blake2b

from headrace.protocol.batch_headers import BatchHeader, CorruptBatch, control_type
from headrace.protocol.record_batches import raw_records
from headrace.storage.batch_rewriting import delete_horizon_ms, empty_batch, filter_batch
from headrace.storage.batch_scan import crc_matches, parse_header, walk
from headrace.storage.cleanup_policy import CleaningPlan, SegmentFacts, SegmentSwap, group_segments
from headrace.storage.file_system import File
from headrace.storage.log_segment import LogSegment, segment_name
from headrace.storage.segment_swap import CLEANED, discard_new_segment, remove_old_segments

__all__ = ["DEDUPE_BUFFER_BYTES", "CleanedTransactions", "LogCleaning", "OffsetMap"]

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
