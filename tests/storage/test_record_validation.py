"""What is looked at in a produced batch's records, and what is set right (tests/interop has Kafka's own answers)."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import (
    PlainRecord,
    build_batch,
    check_crc,
    decode_records,
    encode_batch,
    iter_batch_headers,
)
from headrace.storage.batch_scan import parse_header
from headrace.storage.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from headrace.storage.log_config import LogConfig
from headrace.storage.record_checks import FULLY_CHECKED_RECORDS, read_record
from headrace.storage.record_validation import (
    MAX_REPORTED_ERRORS,
    MAX_UNCOMPRESSED_BYTES,
    validate_records,
)

NOW = 1_700_000_000_000
MANY = 20 * FULLY_CHECKED_RECORDS


def right(batch: bytes, **config: Any) -> bytes | None:
    return validate_records(batch, parse_header(batch, 0, 0), LogConfig(**config), NOW, "t", 3)


def records(count: int, *, key: bytes | None = b"k", step_ms: int = 0, first_ms: int = NOW) -> list[PlainRecord]:
    return [PlainRecord(key=key, value=b"v" * (i % 90), timestamp_ms=first_ms + i * step_ms) for i in range(count)]


def damaged(batch: bytes, at: int, value: int) -> bytes:
    """Another byte among the records of an uncompressed batch, under a CRC that fits."""
    header = parse_header(batch, 0, 0)
    section = bytearray(batch[61:])
    section[at] = value
    return build_batch(
        bytes(section), records_count=header.records_count, base_timestamp=NOW, max_timestamp=header.max_timestamp
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, FULLY_CHECKED_RECORDS, MANY])
def test_sound_batches_are_not_changed(codec: str, count: int) -> None:
    assert right(encode_batch(records(count, step_ms=1), compression=codec)) is None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("lie", [-1, 1])
def test_a_wrong_record_count_is_refused(codec: str, count: int, lie: int) -> None:
    batch = encode_batch(records(count))
    section = batch[61:]
    lied = build_batch(
        section, records_count=count + lie, base_timestamp=NOW, max_timestamp=NOW, compression_type=codec
    )
    with pytest.raises(InvalidRecord, match="partition t-3 are malformed"):
        right(lied)


def test_a_wrong_length_in_the_middle_is_refused() -> None:
    batch = encode_batch([PlainRecord(value=b"v", timestamp_ms=NOW)] * 50)
    assert right(damaged(batch, 8 * 25, 2 * 7)) is None, "the very byte that was there"
    for length in (2 * 8, 2 * 6, 2 * 200, 2 * 5, 1, 0):
        with pytest.raises(InvalidRecord):
            right(damaged(batch, 8 * 25, length & 0xFF))


def test_all_uniform_records_are_checked() -> None:
    batch = encode_batch([PlainRecord(key=b"k", value=b"v", timestamp_ms=NOW)] * 50)
    assert right(batch) is None
    with pytest.raises(InvalidRecord):
        right(damaged(batch, 9 * 25 + 6, 2 * 60))


def test_non_uniform_records_are_checked_fully_only_with_a_reason() -> None:
    values = (b"v", b"vv")
    batch = encode_batch([PlainRecord(key=b"k", value=values[i % 2], timestamp_ms=NOW) for i in range(50)])
    value_length = 19 * 12 + 6
    middle = damaged(batch, value_length, 2 * 60)
    assert right(middle) is None
    with pytest.raises(InvalidRecord):
        right(middle, cleanup_policy=frozenset({"compact"}))
    with pytest.raises(InvalidRecord):
        right(middle, message_timestamp_before_max_ms=10_000)
    with pytest.raises(InvalidRecord):
        right(middle, compression_type="zstd")
    with pytest.raises(InvalidRecord):
        right(damaged(batch, 6, 2 * 60))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_decompression_bombs_are_refused(codec: str) -> None:
    bomb = encode_batch([PlainRecord(value=bytes(MAX_UNCOMPRESSED_BYTES + 1), timestamp_ms=NOW)], compression=codec)
    assert len(bomb) < MAX_UNCOMPRESSED_BYTES // 100
    with pytest.raises(MessageTooLarge, match="unpacks to more than"):
        right(bomb)


def test_record_errors_have_indexes_and_are_bounded() -> None:
    with pytest.raises(InvalidRecord) as missing:
        right(encode_batch(records(3000, key=None)), cleanup_policy=frozenset({"compact"}))
    told = missing.value.facts["record_errors"]
    assert [index for index, _ in told] == list(range(MAX_REPORTED_ERRORS))
    day = 86_400_000
    with pytest.raises(InvalidTimestamp) as early:
        right(encode_batch(records(MANY, step_ms=day // MANY * 2)))
    told = early.value.facts["record_errors"]
    assert 0 < told[0][0] < MANY
    assert told[-1][0] == MANY - 1
    assert told[0][1].endswith(f"within [{NOW - 2**63 + 1}, {NOW + 3_600_000}]")


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", ["uncompressed", *CODECS[1:]])
@pytest.mark.parametrize("count", [3, MANY])
def test_batches_are_recompressed_with_the_codec_of_the_topic(source: str, target: str, count: int) -> None:
    given = records(count, step_ms=2)
    batch = encode_batch(
        given, compression=source, producer_id=4, producer_epoch=2, base_sequence=9, transactional=True
    )
    packed = right(batch, compression_type=target)
    if source == target or (source, target) == ("none", "uncompressed"):
        assert packed is None
        return
    assert packed is not None
    (before,), (header,) = iter_batch_headers(batch), iter_batch_headers(packed)
    check_crc(packed, header)
    assert header.compression == ("none" if target == "uncompressed" else target)
    assert header._replace(batch_length=0, crc=0, attributes=0) == before._replace(batch_length=0, crc=0, attributes=0)
    assert header.is_transactional
    assert list(decode_records(packed)) == list(decode_records(batch))


def test_the_largest_timestamp_is_that_of_the_records() -> None:
    batch = bytearray(encode_batch(records(3, step_ms=5)))
    struct.pack_into(">q", batch, 35, NOW + 999)
    packed = right(bytes(batch))
    assert packed is not None
    (header,) = iter_batch_headers(packed)
    check_crc(packed, header)
    assert header.max_timestamp == NOW + 10
    assert right(bytes(batch), message_timestamp_type="LogAppendTime") is None, "the broker's time comes anyway"


def test_log_append_time_of_a_producer_is_refused() -> None:
    batch = encode_batch(records(2), append_time_ms=NOW)
    packed = right(batch)
    assert packed is not None
    assert not next(iter_batch_headers(packed)).has_append_time
    with pytest.raises(InvalidTimestamp, match="invalid timestamps"):
        right(batch, message_timestamp_type="LogAppendTime")


def test_the_largest_timestamp_of_a_compacted_topic_is_that_of_a_record() -> None:
    """Not the batch's base, when none of its records stands there."""
    section = bytearray(encode_batch([PlainRecord(key=b"k", value=b"v", timestamp_ms=NOW)] * MANY)[61:])
    start = 0
    for _ in range(MANY):
        section[start + 2] = 1  # a delta of -1
        start = read_record(bytes(section), start)[-1]
    batch = build_batch(bytes(section), records_count=MANY, base_timestamp=NOW, max_timestamp=NOW)
    mended = right(batch, cleanup_policy=frozenset({"compact"}))
    assert mended is not None
    assert parse_header(mended, 0, 0).max_timestamp == NOW - 1
