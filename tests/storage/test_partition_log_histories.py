"""Random histories of a log against a naive twin: a list of batches in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import NOW_MS, ManualClock

from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers
from headrace.storage.errors import OffsetOutOfRange, StorageFull
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

DIRECTORY = Path("/logs/flights-0")


@dataclass
class TwinBatch:
    base_offset: int
    records: list[tuple[int, str, int]]
    epoch: int | None  # unknown where it may be torn unseen: it lies before what the CRC covers

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)


class LogHistory(RuleBasedStateMachine):
    """The log and the list take the same steps and must always hold the same."""

    @initialize(
        segment_bytes=st.integers(300, 3000),
        index_interval_bytes=st.sampled_from([0, 80, 400, 4096]),
        fsync=st.sampled_from(["never", "always"]),
        index_bytes=st.sampled_from([64, 10_000]),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, fsync: str, index_bytes: int) -> None:
        self.disk = FaultyFileSystem()
        self.clock = ManualClock()
        self.config = LogConfig(
            segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, segment_index_bytes=index_bytes
        ).with_fsync(fsync)  # type: ignore[arg-type]
        self.twin: list[TwinBatch] = []
        self.start = 0
        self.counter = 0
        self.epoch = 0
        self.log = self.open()

    def open(self, **how: object) -> PartitionLog:
        return PartitionLog.open(
            DIRECTORY,
            topic="flights",
            partition=0,
            config=self.config,
            clock_ms=self.clock,
            file_system=self.disk,
            **how,  # type: ignore[arg-type]
        )

    @property
    def end(self) -> int:
        return self.twin[-1].next_offset if self.twin else self.floor

    floor = 0

    def records(self) -> list[tuple[int, str, int]]:
        return [r for b in self.twin for r in b.records if r[0] >= self.start]

    def new_batches(self, sizes: list[int], lengths: int, age_ms: int) -> tuple[bytes, list[TwinBatch]]:
        data, twins, offset = b"", [], self.end
        for size in sizes:
            records = []
            for i in range(size):
                self.counter += 1
                records.append((offset + i, f"{self.counter}".ljust(lengths, "."), NOW_MS - age_ms + self.counter % 7))
            plain = [PlainRecord(value=v.encode(), timestamp_ms=t) for _, v, t in records]
            codec = "gzip" if self.counter % 3 == 0 else "none"
            data += encode_batch(plain, base_offset=offset - self.end, compression=codec)
            twins.append(TwinBatch(offset, records, self.epoch))
            offset += size
        return data, twins

    # -- steps -----------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), length=st.integers(0, 60), age=st.integers(0, 90))
    def append(self, sizes: list[int], length: int, age: int) -> None:
        data, twins = self.new_batches(sizes, length, age * 1000)
        if len(data) > self.config.segment_bytes:
            return
        result = self.log.append(data, leader_epoch=self.epoch)
        assert (result.base_offset, result.last_offset) == (self.end, twins[-1].next_offset - 1)
        self.twin += twins

    @rule(room=st.integers(0, 200))
    def append_to_a_full_disk(self, room: int) -> None:
        data, twins = self.new_batches([2], 40, 0)
        if len(data) > self.config.segment_bytes:
            return
        self.disk.capacity_bytes = self.disk.used() + room
        try:
            self.log.append(data, leader_epoch=self.epoch)
        except StorageFull:
            pass
        else:
            self.twin += twins
        self.disk.capacity_bytes = None

    @rule()
    def another_leader_epoch(self) -> None:
        self.epoch += 1

    @rule(where=st.floats(0, 1), max_bytes=st.integers(1, 2000), one=st.booleans())
    def read(self, where: float, max_bytes: int, one: bool) -> None:
        offset = self.start + int(where * (self.end - self.start))
        data = self.log.read(offset, max_bytes, min_one_batch=one)
        headers = list(iter_batch_headers(data))
        assert sum(h.size_bytes for h in headers) == len(data), "whole batches"
        if not headers:
            assert offset == self.end or not one
            return
        assert len(data) <= max_bytes or (one and len(headers) == 1)
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        expected = [b for b in self.twin if b.next_offset > offset][: len(headers)]
        assert [h.base_offset for h in headers] == [b.base_offset for b in expected]
        assert all(b.epoch in (None, h.leader_epoch) for h, b in zip(headers, expected, strict=True))
        found = [(r.offset, (r.value or b"").decode(), r.timestamp_ms) for r in decode_records(data)]
        assert found == [r for b in expected for r in b.records]

    @rule(age=st.integers(-10, 100))
    def by_time(self, age: int) -> None:
        wanted = NOW_MS - age * 1000
        expected = next(((r[0], r[2]) for r in self.records() if r[2] >= wanted), None)
        assert self.log.offset_for_timestamp(wanted) == expected

    @rule()
    def by_largest_time(self) -> None:
        records = self.records()
        largest = max((r[2] for r in records), default=None)
        expected = next(((r[0], r[2]) for r in records if r[2] == largest), None)
        assert self.log.max_timestamp_offset() == expected

    @rule(where=st.floats(0, 1))
    def delete_records(self, where: float) -> None:
        self.start += int(where * (self.end - self.start))
        assert self.log.delete_records_before(self.start) == self.start

    @rule()
    def delete_records_out_of_range(self) -> None:
        with pytest.raises(OffsetOutOfRange):
            self.log.delete_records_before(self.end + 1)

    @rule(where=st.floats(0.5, 1))
    def truncate(self, where: float) -> None:
        target = self.start + int(where * (self.end - self.start))
        self.log.truncate_to(target)
        if target >= self.end:
            return
        cut = next(b.base_offset for b in self.twin if b.next_offset > target)
        self.twin = [b for b in self.twin if b.base_offset < cut]
        self.floor = cut
        self.start = min(self.start, cut)
        assert self.log.log_end_offset == cut

    @rule()
    def retention(self) -> None:
        self.log.apply_retention(NOW_MS)
        assert self.log.log_start_offset >= self.start
        self.start = self.log.log_start_offset

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end

    @rule()
    def close_and_open(self) -> None:
        clean = self.log.close()
        assert clean is not None
        self.log = self.open(clean=clean, log_start_offset=self.start, recovery_point=self.end)
        assert not self.log.recovered

    @rule(known=st.booleans())
    def killed_and_opened(self, known: bool) -> None:
        point = self.log.recovery_point if known else 0
        self.log.abandon()
        self.log = self.open(log_start_offset=self.start, recovery_point=point)
        assert self.log.bytes_cut == 0

    @rule(seed=st.integers(0, 2**32))
    def power_fails(self, seed: int) -> None:
        flushed = self.log.recovery_point
        self.log.abandon()
        self.disk.crash(Random(seed))
        self.log = self.open(log_start_offset=min(self.start, flushed), recovery_point=flushed)
        assert self.log.log_end_offset >= flushed, "what was flushed is there"
        if self.config.fsync == "always":
            assert self.log.log_end_offset == self.end
        self.twin = [b for b in self.twin if b.next_offset <= self.log.log_end_offset]
        for b in self.twin:
            if b.next_offset > flushed:
                b.epoch = None
        self.floor = self.log.log_end_offset
        self.start = self.log.log_start_offset

    @rule(which=st.integers(0, 100), index=st.sampled_from([".index", ".timeindex"]))
    def an_index_is_lost(self, which: int, index: str) -> None:
        clean = self.log.close()
        names = sorted(p for p in self.disk.files if p.suffix == index)
        if names:
            del self.disk.files[names[which % len(names)]]
        self.log = self.open(clean=clean, log_start_offset=self.start, recovery_point=self.end)

    # -- always ----------------------------------------------------------------------------------------------

    @invariant()
    def the_ends_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
            assert self.log.high_watermark == self.end

    @invariant()
    def the_contents_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        found, offset = [], self.start
        while data := self.log.read(offset, 700):
            records = list(decode_records(data, start_offset=offset))
            found += [(r.offset, (r.value or b"").decode(), r.timestamp_ms) for r in records]
            offset = found[-1][0] + 1
        assert found == self.records()

    @invariant()
    def the_epochs_agree(self) -> None:
        if hasattr(self, "log"):
            for b in self.twin:
                if b.next_offset > self.start and b.epoch is not None:
                    assert self.log.leader_epoch_for(max(b.base_offset, self.start)) == b.epoch


LogHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLogHistory = LogHistory.TestCase
