"""Batches that compaction rewrites, and those that stay without records."""

from __future__ import annotations

import pytest
from tests.storage.cleaned_logs import ended, log_of
from tests.storage.compaction_samples import cleaned, keyed, put, records
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import NOW_MS

from headrace.protocol.record_batches import PlainRecord, iter_batch_headers


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd", "snappy"])
def test_a_batch_keeps_its_codec_its_times_and_its_sequences(disk: FaultyFileSystem, codec: str) -> None:
    log = log_of(disk)
    put(log, ("a", "1"), ("b", "2"), ("c", "3"), timestamp_ms=NOW_MS - 5, compression=codec, producer_id=7,
        producer_epoch=1, base_sequence=40)  # fmt: skip
    put(log, ("a", "4"), ("c", "x" * 300), timestamp_ms=NOW_MS)
    put(log, ("d", "5"), ("d", "x" * 300), timestamp_ms=NOW_MS)
    put(log, ("d", "6"))
    cleaned(log)
    header = next(iter_batch_headers(log.read(0, 1)))
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 42)
    assert (header.compression, header.max_timestamp) == (codec, NOW_MS - 5)
    assert records(log)[0] == PlainRecord(key=b"b", value=b"2", timestamp_ms=NOW_MS - 5, offset=1)


def test_the_last_batch_of_a_producer_stays_without_records(disk: FaultyFileSystem) -> None:
    """So that a retry across a restart is still known, although nothing else of the batch is left."""
    log = log_of(disk)
    last = keyed(("key", "1"), producer_id=7, producer_epoch=0, base_sequence=5)
    log.append(last, leader_epoch=0)
    put(log, ("key", "2"))
    for _ in range(3):
        put(log, ("filler", "x" * 300))
    cleaned(log)
    header = next(iter_batch_headers(log.read(0, 1)))
    assert (header.base_offset, header.last_offset, header.records_count, header.base_sequence) == (0, 0, 0, 5)
    assert header.max_timestamp == NOW_MS
    log.abandon()
    for path in [path for path in disk.files if path.suffix == ".snapshot"]:
        del disk.files[path]
    log = log_of(disk)
    assert log.append(last, leader_epoch=0).duplicate
    log.append(keyed(("key", "3"), producer_id=7, producer_epoch=0, base_sequence=6), leader_epoch=0)
    put(log, ("filler", "x" * 300))
    put(log, ("filler", "x" * 300))
    cleaned(log)
    assert next(iter_batch_headers(log.read(0, 1))).base_offset > 0, "an empty batch goes with its reason"


def test_the_last_batch_before_the_end_stays_without_records(disk: FaultyFileSystem) -> None:
    """So that what is clean ends where it did, for whoever counts offsets by batches."""
    log = log_of(disk, segment_bytes=200)
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    put(log, ("key", "also"), transactional=True, producer_id=9, producer_epoch=0, base_sequence=1)
    ended(log, "abort")
    assert log.segment_base_offsets == (0, 2)
    assert cleaned(log) == 2
    found = [(each.base_offset, each.records_count) for each in iter_batch_headers(log.read(0, 1 << 20))]
    assert found == [(0, 1), (1, 0)], "the aborted batch before the end, without its record"
    put(log, ("other", "x" * 100))
    assert cleaned(log, first_dirty=2) == 4
    found = [(each.base_offset, each.records_count) for each in iter_batch_headers(log.read(1, 1 << 20))]
    assert found == [(2, 0), (3, 1)], "the end has moved; what is kept now is the last batch of the producer"
