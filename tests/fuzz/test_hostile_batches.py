"""Bent record batches, read by all that reads them: an error of ours with a place, or records; never anything else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzz.record_samples import hostile_batches

from headrace.protocol.arrow_batches import decode_to_arrow
from headrace.protocol.record_batches import CorruptBatch, decode_records, iter_batch_headers, raw_records
from headrace.storage.errors import StorageError
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

SEEDS = range(400)
MOST_BYTES = 1 << 20


def now_ms() -> int:
    return int(time.time() * 1000)


READERS: dict[str, Callable[[bytes], object]] = {
    "raw": lambda batches: [raw_records(batches, header) for header in iter_batch_headers(batches)],
    "one by one": lambda batches: list(decode_records(batches, max_batch_bytes=MOST_BYTES)),
    "arrow": decode_to_arrow,
}


@pytest.mark.parametrize("reader", READERS)
def test_decoding_ends_in_records_or_corrupt_batch(reader: str) -> None:
    read, refused = READERS[reader], 0
    for seed in SEEDS:
        try:
            read(hostile_batches(random.Random(seed)))
        except CorruptBatch:
            refused += 1
    assert 0 < refused < len(SEEDS)


def test_accepted_batches_can_be_read_back_and_searched(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "t-0", topic="t", partition=0, config=LogConfig(), clock_ms=now_ms)
    taken = 0
    for seed in SEEDS:
        end_before = log.log_end_offset
        try:
            result = log.append(hostile_batches(random.Random(seed)), leader_epoch=0)
            taken += not result.duplicate
        except StorageError:
            assert log.log_end_offset == end_before, seed
            continue
        assert result.duplicate or log.read(end_before, MOST_BYTES), seed
        log.offset_for_timestamp(now_ms() - 500)
        log.max_timestamp_offset()
    assert taken > 20
    end, start = log.log_end_offset, log.log_start_offset
    log.abandon()
    again = PartitionLog.open(tmp_path / "t-0", topic="t", partition=0, config=LogConfig(), clock_ms=now_ms)
    assert (again.log_start_offset, again.log_end_offset) == (start, end)
    again.close()
