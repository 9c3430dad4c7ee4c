"""One cleaning of one log, as Kafka's LogCleaner does it: read the dirty part, then rewrite everything before its end.

The heavy work happens while `exchanges` is iterated, which may be in a thread of its own; each item is a finished new
segment that the log's owner puts in place (`PartitionLog.exchange`) before it asks for the next one. Files of closed
segments never change, so nothing is locked; a log that is shortened or deleted meanwhile refuses the exchange.

What stays: the last record of each key (in the cleaned part), a tombstone until its delete horizon, whatever lies
behind the end, keyless records (which a compacted topic refuses, but an altered one may hold). Of a producer that is
still known the last batch stays, empty if need be, so that its sequence is not forgotten. Records of aborted
transactions go; a marker goes when nothing of its transaction is left and its own horizon has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.protocol.batch_headers import BatchHeader, CorruptBatch
from headrace.protocol.raw_records import raw_records
from headrace.storage.batch_rewriting import delete_horizon_ms, emptied, rewritten
from headrace.storage.batch_scan import crc_fits, parse_header, walk
from headrace.storage.file_system import File, FileSystem
from headrace.storage.key_offsets import KeyOffsets
from headrace.storage.log_compaction import portions
from headrace.storage.log_config import LogConfig
from headrace.storage.log_segment import LogSegment, segment_name
from headrace.storage.segment_facts import SegmentFacts
from headrace.storage.segment_files import CLEANED, remove_deleted, remove_suffixed
from headrace.storage.transaction_outcomes import TransactionOutcomes

__all__ = ["CleaningPlan", "LogCleaning", "SegmentExchange"]

_WRITE_BYTES = 256 * 1024
_MAX_SEGMENT_BYTES = 2**31 - 1
KEY_MEMORY_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """What a cleaning needs of its log, taken when it begins; all of it stays true while the log goes on.

    `closed`: the segments before `end_offset`. `scanned`: (base offset, bytes) of all segments, where markers may lie;
    those before `flushed_offset` count. `last_batches`: producer id → last offset of its last data batch (-1: only
    markers are known), and epoch.
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
class SegmentExchange:
    """A new segment, written and synced under a `.cleaned` name, and the base offsets of those it stands for."""

    old: tuple[int, ...]
    new: int
    bytes_before: int
    bytes_after: int


class LogCleaning:
    """Mutable: one pass. What lies before `end_offset`, known once the dirty part was read, is clean when all is done.

    `pace` is called between batches, with the bytes read: it may sleep, or raise to end the pass.
    """

    def __init__(
        self,
        plan: CleaningPlan,
        *,
        key_memory_bytes: int = KEY_MEMORY_BYTES,
        pace: Callable[[int], None] = lambda _bytes_read: None,
    ) -> None:
        self.end_offset = plan.first_dirty_offset
        self._plan = plan
        self._pace = pace
        self._keys = KeyOffsets(key_memory_bytes)
        self._outcomes = TransactionOutcomes()
        self._with_data: set[int] = set()

    def exchanges(self) -> Generator[SegmentExchange]:
        """Each is to be put in place before the next is asked for. Raises OSError, CorruptBatch."""
        plan = self._plan
        self._learn_outcomes()
        self._learn_keys()
        for portion in portions(plan.closed, end_offset=self.end_offset, max_bytes=plan.config.segment_bytes):
            old = tuple(segment.base_offset for segment in portion)
            try:
                exchange = self._rewrite(portion)
            except BaseException:
                remove_suffixed(plan.directory, old[0], CLEANED, plan.file_system)
                raise
            if exchange is None:
                remove_suffixed(plan.directory, old[0], CLEANED, plan.file_system)
                continue
            try:
                yield exchange
            except GeneratorExit:  # it was not wanted
                remove_suffixed(plan.directory, old[0], CLEANED, plan.file_system)
                raise
            # What is dropped later may rest on what was dropped here, so this comes to the disk first.
            plan.file_system.sync_directory(plan.directory)
            remove_deleted(plan.directory, old, plan.file_system)

    def _learn_outcomes(self) -> None:
        plan = self._plan
        for base_offset, size_bytes in plan.scanned:
            for batch, header in self._batches(base_offset, size_bytes, whole=False):
                if header.base_offset >= plan.flushed_offset:
                    return
                self._outcomes.note(batch, header)

    def _learn_keys(self) -> None:
        plan = self._plan
        first_undecided = self._outcomes.first_undecided_offset
        for segment in plan.closed:
            if segment.end_offset <= plan.first_dirty_offset or segment.base_offset >= plan.end_offset:
                continue
            for batch, header in self._batches(segment.base_offset, segment.size_bytes):
                if header.last_offset < plan.first_dirty_offset:
                    continue
                if self._keys.is_full or header.last_offset >= first_undecided:
                    return
                if not header.is_control and not self._outcomes.is_aborted(header):
                    _, records = raw_records(batch, header._replace(position=0))
                    for _, _, _, delta, key, _ in records:
                        if key is not None:
                            self._keys.note(key, header.base_offset + delta)
                self.end_offset = header.next_offset
            self.end_offset = segment.end_offset

    def _rewrite(self, portion: tuple[SegmentFacts, ...]) -> SegmentExchange | None:
        """None when nothing would change."""
        plan = self._plan
        base_offset = portion[0].base_offset
        before = sum(segment.size_bytes for segment in portion)
        new = LogSegment.create(plan.directory, base_offset, plan.config, plan.file_system, suffix=CLEANED)
        changed = len(portion) > 1
        try:
            pending = _PendingBatches(new)
            for segment in portion:
                for batch, header in self._batches(segment.base_offset, segment.size_bytes):
                    kept = self._kept(batch, header._replace(position=0))
                    changed = changed or kept != batch
                    if kept is not None:
                        pending.add(kept)
            pending.write()
            if not changed:
                return None
            new.close_time_index()
            new.sync()
        finally:
            new.close()
        return SegmentExchange(
            old=tuple(segment.base_offset for segment in portion),
            new=base_offset,
            bytes_before=before,
            bytes_after=new.size_bytes,
        )

    def _kept(self, batch: bytes, header: BatchHeader) -> bytes | None:
        if header.is_control:
            return self._kept_marker(batch, header)
        keep_empty = self._keeps_header(header)
        if header.records_count == 0:
            return batch if keep_empty else None
        if self._outcomes.is_aborted(header):
            self._with_data.add(header.producer_id)
            return emptied(header) if keep_empty else None
        if header.is_transactional:
            self._with_data.add(header.producer_id)
        horizon_ms = delete_horizon_ms(header)
        tombstones_go = horizon_ms is not None and self._plan.now_ms >= horizon_ms
        last_offset, end_offset = self._keys.last_offset, self.end_offset

        def stays(key: bytes | None, has_value: bool, offset: int) -> bool:
            if offset >= end_offset or key is None:
                return True
            return offset >= last_offset(key) and (has_value or not tombstones_go)

        section, records = raw_records(batch, header)
        return rewritten(
            batch, header, section, records, stays, new_horizon_ms=self._new_horizon_ms, keep_empty=keep_empty
        )

    def _kept_marker(self, batch: bytes, header: BatchHeader) -> bytes | None:
        decides_records = header.producer_id in self._with_data
        self._with_data.discard(header.producer_id)
        is_behind = header.base_offset >= self.end_offset
        if decides_records or is_behind or header.producer_id < 0 or header.records_count == 0:
            return batch if header.records_count or self._keeps_header(header) else None
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is not None and self._plan.now_ms >= horizon_ms:
            return emptied(header) if self._keeps_header(header) else None
        section, records = raw_records(batch, header)
        return rewritten(
            batch,
            header,
            section,
            records,
            lambda _key, _has_value, _offset: True,
            new_horizon_ms=self._new_horizon_ms,
            keep_empty=True,
            wants_horizon=True,
        )

    @property
    def _new_horizon_ms(self) -> int:
        return self._plan.now_ms + self._plan.config.delete_retention_ms

    def _keeps_header(self, header: BatchHeader) -> bool:
        """The last batch before the end stays as well, so that what is clean ends where it did (Kafka 4)."""
        return header.next_offset == self.end_offset or self._is_last_of_producer(header)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._plan.last_batches.get(header.producer_id)
        if last is None:
            return False
        last_offset, epoch = last
        if last_offset < 0:
            return header.is_control and header.producer_epoch == epoch
        return header.last_offset == last_offset

    def _batches(self, base_offset: int, size_bytes: int, *, whole: bool = True) -> Iterator[tuple[bytes, BatchHeader]]:
        """The batches of one segment; not `whole`: empty bytes for those that are no control batch."""
        path = self._plan.directory / f"{segment_name(base_offset)}.log"
        file = self._plan.file_system.open(path)
        try:
            yield from self._read(file, size_bytes, whole=whole)
        finally:
            file.close()

    def _read(self, file: File, size_bytes: int, *, whole: bool) -> Iterator[tuple[bytes, BatchHeader]]:
        block, block_at = b"", 0
        for span in walk(file, 0, size_bytes):
            if span.end > block_at + len(block):
                size = max(_WRITE_BYTES, span.end - span.position)
                block, block_at = file.read_at(min(size, size_bytes - span.position), span.position), span.position
            at = span.position - block_at
            header = parse_header(block, at, span.position)
            self._pace(header.size_bytes)
            if not whole and not header.is_control:
                yield b"", header
                continue
            batch = block[at : at + header.size_bytes]
            if not crc_fits(batch, header.crc):
                raise CorruptBatch(f"its CRC is not {header.crc:#010x}", base_offset=header.base_offset)
            yield batch, header


class _PendingBatches:
    """Batches on their way into a new segment, written in large pieces."""

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
        if not self._data:
            return
        if self._segment.size_bytes + len(self._data) > _MAX_SEGMENT_BYTES:
            raise OSError(27, "a compacted segment would be larger than 2 GiB", str(self._segment.path))
        self._segment.append(self._data, self._headers)
        self._data, self._headers = bytearray(), []
