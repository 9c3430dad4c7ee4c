"""Record batches in plain Python: fields, checks, control batches, aborted transactions, hostile bytes."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.batch_samples import NOW_MS, numbered, some_records

from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import (
    AbortedTransaction,
    BatchHeader,
    CorruptBatch,
    PlainRecord,
    assign_offsets,
    build_batch,
    check_crc,
    control_batch,
    control_type,
    decode_records,
    encode_batch,
    iter_batch_headers,
    raw_records,
    rows_of_batch,
)


def at_offsets(records: list[PlainRecord], base_offset: int) -> list[PlainRecord]:
    return [dataclasses.replace(record, offset=base_offset + delta) for delta, record in enumerate(records)]


@settings(max_examples=150, deadline=None)
@given(some_records, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_there_and_back(records: list[PlainRecord], codec: str, base_offset: int) -> None:
    batch = encode_batch(records, compression=codec, base_offset=base_offset)
    assert list(decode_records(batch)) == at_offsets(records, base_offset)
    (header,) = iter_batch_headers(batch)
    assert (header.compression, header.records_count) == (codec, len(records))
    assert (header.base_offset, header.last_offset) == (base_offset, base_offset + len(records) - 1)
    assert (header.size_bytes, header.end) == (len(batch), len(batch))
    assert header.max_timestamp == max(record.timestamp_ms for record in records)


def test_the_bytes_are_the_documented_ones() -> None:
    batch = encode_batch([PlainRecord(key=b"k", value=None, timestamp_ms=5, headers=(("h", b""),))], base_offset=9)
    assert batch[:17].hex() == "00000000000000090000003cffffffff02"
    assert batch[21:61].hex() == ("00000000000000000000000000050000000000000005ffffffffffffffffffffffffffff00000001")
    assert batch[61:].hex() == "14000000026b0102026800"


def test_control_batches_are_skipped_and_readable() -> None:
    marker = control_batch("commit", producer_id=5, producer_epoch=1, timestamp_ms=NOW_MS, coordinator_epoch=3)
    (header,) = iter_batch_headers(marker)
    check_crc(marker, header)
    assert header.is_control
    assert control_type(marker, header) == "commit"
    abort = control_batch("abort", producer_id=5, producer_epoch=1, timestamp_ms=NOW_MS)
    assert control_type(abort, next(iter_batch_headers(abort))) == "abort"
    log = numbered([encode_batch([PlainRecord(value=b"a", timestamp_ms=NOW_MS)]), marker, abort])
    assert [record.value for record in decode_records(log)] == [b"a"]


def transactional(value: bytes, producer_id: int) -> bytes:
    return encode_batch(
        [PlainRecord(value=value, timestamp_ms=NOW_MS)],
        transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )


def test_aborted_batches_are_dropped_until_the_marker() -> None:
    abort = control_batch("abort", producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS)
    plain = encode_batch([PlainRecord(value=b"plain", timestamp_ms=NOW_MS)])
    log = numbered(
        [
            transactional(b"before", 1),  # 0: another, committed transaction of the same producer
            control_batch("commit", producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS),  # 1
            transactional(b"aborted", 1),  # 2
            plain,  # 3
            transactional(b"other", 2),  # 4
            transactional(b"aborted", 1),  # 5
            abort,  # 6
            transactional(b"after", 1),  # 7
        ]
    )
    aborted = [AbortedTransaction(producer_id=1, first_offset=2)]
    survivors = [record.value for record in decode_records(log, aborted_transactions=aborted)]
    assert survivors == [b"before", b"plain", b"other", b"after"]
    assert len(list(decode_records(log))) == 6


def test_a_flipped_bit_fails_the_crc() -> None:
    batch = encode_batch([PlainRecord(value=b"value", timestamp_ms=NOW_MS)], base_offset=12)
    for position in range(21, len(batch)):
        broken = bytearray(batch)
        broken[position] ^= 0x10
        with pytest.raises(CorruptBatch, match="at offset 12"):
            list(decode_records(broken))


@pytest.mark.parametrize(
    ("position", "replacement", "why"),
    [(8, b"\x00\x00\x00\x30", "length is 48"), (8, b"\xff\xff\xff\xff", "length is -1"), (16, b"\x01", "version 1")],
)
def test_invalid_batches_are_refused(position: int, replacement: bytes, why: str) -> None:
    batch = bytearray(encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW_MS)]))
    batch[position : position + len(replacement)] = replacement
    with pytest.raises(CorruptBatch, match=why):
        list(iter_batch_headers(batch))


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 4, 5, 7]))
def test_hostile_records_under_a_right_crc(section: bytes, count: int, codec: int) -> None:
    """Who can compute a CRC can send any section: at worst it is a corrupt batch."""
    batch = bytearray(build_batch(section, records_count=count, last_offset_delta=9, base_timestamp=0, max_timestamp=0))
    batch[22] |= codec
    assign_offsets(batch, 3, 0, append_time_ms=5)  # makes the CRC right
    try:
        found = len(list(decode_records(batch)))
    except CorruptBatch:
        found = count
    assert found == count


def test_many_random_cuts_never_raise_anything_else() -> None:
    chance = random.Random(7)
    log = numbered([encode_batch([PlainRecord(value=b"v" * i, timestamp_ms=NOW_MS)] * 3) for i in range(1, 9)])
    for _ in range(500):
        broken = bytearray(log[chance.randrange(20) : chance.randrange(30, len(log))])
        broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            list(decode_records(broken))
        except CorruptBatch:
            continue


def batch_of(section: bytes, *, records_count: int = 1, last_offset_delta: int = 0) -> tuple[bytes, BatchHeader]:
    """A batch with a right CRC around any bytes in the place of its records."""
    batch = build_batch(
        section, records_count=records_count, base_timestamp=0, max_timestamp=0, last_offset_delta=last_offset_delta
    )
    (header,) = iter_batch_headers(batch)
    return batch, header


# Length, attributes, two deltas, key length -1, value length -1, no headers: all zigzag, so -1 is the byte 1.
WHOLE = bytes((12, 0, 0, 0, 1, 1, 0))


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (bytes((40, 0, 0, 0, 1, 1, 0)), "a record ends behind it"),
        (bytes((1, 0, 0, 0, 1, 1, 0)), "a record ends behind it"),
        (bytes((12, 0, 0, 2, 1, 1, 0)), "a record has offset delta 1"),
        (bytes((12, 0, 0, 1, 1, 1, 0)), "a record has offset delta -1"),
        (WHOLE + b"\x00", "it holds more bytes than records"),
        (bytes((12, 0, 0, 0, 80, 1, 0)), "a record"),
        (bytes([0x80] * 11), "a record"),
        (b"", "a record"),
    ],
)
def test_records_that_contradict_their_batch_are_corrupt_for_every_reader(section: bytes, why: str) -> None:
    batch, header = batch_of(section)
    with pytest.raises(CorruptBatch, match=why):
        rows_of_batch(batch, header)
    with pytest.raises(CorruptBatch):
        raw_records(batch, header)


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (bytes((2,)), "malformed|header"),
        (bytes((40,)), "a record has 20 headers"),
        (bytes((2, 1, 1)), "a record header has no key"),
    ],
)
def test_malformed_record_headers_are_corrupt(headers: bytes, why: str) -> None:
    body = bytes((0, 0, 0, 1, 1)) + headers
    batch, header = batch_of(bytes((len(body) << 1,)) + body)
    with pytest.raises(CorruptBatch, match=why):
        rows_of_batch(batch, header)


def test_varints_of_three_and_more_bytes_are_read() -> None:
    record = PlainRecord(key=b"k" * 20_000, value=b"v" * 3_000_000, timestamp_ms=2**40, headers=(("h" * 300, None),))
    first = PlainRecord(value=b"", timestamp_ms=0)
    batch = encode_batch([first, *[first] * 20_000, record])
    (header,) = iter_batch_headers(batch)
    *_, (offset, timestamp_ms, key, value, headers) = rows_of_batch(batch, header)
    assert (offset, timestamp_ms, key, value, headers) == (
        20_001,
        2**40,
        record.key,
        record.value,
        record.headers,
    )
    section, raw = raw_records(batch, header)
    assert raw[-1][2:] == (2**40, 20_001, record.key, record.value)
    assert raw[-1][1] == len(section)


def test_an_empty_batch_has_no_rows_and_no_raw_records() -> None:
    batch = build_batch(b"", records_count=0, base_timestamp=0, max_timestamp=0, last_offset_delta=3)
    (header,) = iter_batch_headers(batch)
    assert rows_of_batch(batch, header) == []
    assert raw_records(batch, header) == (b"", [])
