"""Headers of record batches: what a broker writes into them, and batches that are cut."""

from __future__ import annotations

from tests.protocol.batch_samples import NOW_MS, numbered

from headrace.protocol.record_batches import (
    PlainRecord,
    assign_offsets,
    assign_producer,
    build_batch,
    check_crc,
    decode_records,
    encode_batch,
    iter_batch_headers,
)


def test_a_broker_numbers_a_batch_without_touching_its_crc() -> None:
    batch = bytearray(encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)] * 3))
    crc = bytes(batch[17:21])
    assign_offsets(batch, 1000, 7)
    (header,) = iter_batch_headers(batch)
    check_crc(batch, header)
    assert bytes(batch[17:21]) == crc
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (1000, 7, 1003)


def test_log_append_time_counts_for_all_records() -> None:
    batch = bytearray(encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS + i) for i in range(3)]))
    assign_offsets(batch, 0, 0, append_time_ms=NOW_MS + 99)
    assert [record.timestamp_ms for record in decode_records(bytes(batch))] == [NOW_MS + 99] * 3
    written = encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)], append_time_ms=42)
    assert [record.timestamp_ms for record in decode_records(written)] == [42]


def test_a_producer_is_written_into_a_batch() -> None:
    batch = bytearray(encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)] * 2))
    assign_producer(batch, 77, 3, 2**31 - 1, transactional=True)
    (header,) = iter_batch_headers(batch)
    check_crc(batch, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 2**31 - 1)
    assert header.last_sequence == 0
    assert header.is_transactional


def test_a_truncated_last_batch_is_ignored() -> None:
    whole = numbered([encode_batch([PlainRecord(value=b"%d" % i, timestamp_ms=NOW_MS)]) for i in range(3)])
    size = len(whole) // 3
    for cut in range(2 * size, len(whole)):
        assert [record.value for record in decode_records(whole[:cut])] == [b"0", b"1"]


def test_an_offset_inside_a_batch() -> None:
    log = numbered([encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)] * 4)] * 3)
    assert [record.offset for record in decode_records(log, start_offset=6)] == list(range(6, 12))


def test_an_empty_batch_has_an_end() -> None:
    """Compaction leaves the header of a batch whose records are all gone."""
    empty = build_batch(b"", records_count=0, last_offset_delta=4, base_timestamp=0, max_timestamp=0, base_offset=10)
    log = empty + encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)], base_offset=15)
    headers = list(iter_batch_headers(log))
    assert [header.next_offset for header in headers] == [15, 16]
    assert [record.offset for record in decode_records(log)] == [15]
