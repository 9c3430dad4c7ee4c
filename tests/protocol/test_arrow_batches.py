"""Record batches ⇄ Arrow, held against the plain Python code and against hostile bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.batch_samples import NOW_MS, numbered, some_bytes, some_records, table_of

from headrace.protocol.arrow_batches import (
    ALL_COLUMNS,
    AbortedTransaction,
    CorruptBatch,
    decode_to_arrow,
    murmur2_partitions,
)
from headrace.protocol.compression import CODECS
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import (
    PlainRecord,
    assign_offsets,
    build_batch,
    control_batch,
    decode_records,
    encode_batch,
    iter_batch_headers,
)


def values_of(data: bytes, **settings_: Any) -> list[bytes | None]:
    values: list[bytes | None] = decode_to_arrow(data, columns=("value",), **settings_).table["value"].to_pylist()
    return values


def one(value: bytes, **settings_: Any) -> bytes:
    return encode_batch([PlainRecord(value=value, timestamp_ms=NOW_MS)], **settings_)


@settings(max_examples=150, deadline=None)
@given(st.lists(some_records, min_size=1, max_size=4), st.sampled_from(CODECS), st.integers(0, 50), st.data())
def test_decodes_what_plain_python_decodes(
    runs: list[list[PlainRecord]], codec: str, base_offset: int, data: st.DataObject
) -> None:
    log = numbered([encode_batch(run, compression=codec) for run in runs], base_offset)
    plain = list(decode_records(log))
    decoded = decode_to_arrow(log)
    decoded.table.validate(full=True)
    assert decoded.table.to_pylist() == table_of(plain).to_pylist()
    assert decoded.next_offset == base_offset + len(plain)

    first = data.draw(st.integers(0, base_offset + len(plain) + 3))
    last = data.draw(st.integers(first, base_offset + len(plain) + 3))
    within = decode_to_arrow(log, start_offset=first, end_offset=last)
    assert within.table["offset"].to_pylist() == [r.offset for r in plain if first <= r.offset < last]
    assert within.next_offset == min(max(first, base_offset + len(plain)), last)


@settings(max_examples=60, deadline=None)
@given(st.lists(some_bytes, max_size=40), st.integers(1, 50), st.integers(0, 5))
def test_partitions_are_kafkas(keys: list[bytes | None], partitions: int, start: int) -> None:
    expected = [-1 if key is None else partition_for_key(key, partitions) for key in keys[start:]]
    assert murmur2_partitions(pa.array(keys, pa.binary()).slice(start), partitions).tolist() == expected


def test_partitions_of_every_length_of_key() -> None:
    keys = [bytes(range(200, 200 + length)) for length in range(40)]
    assert murmur2_partitions(pa.array(keys), 1000).tolist() == [partition_for_key(key, 1000) for key in keys]


def test_columns_come_as_asked() -> None:
    batch = bytearray(one(b"a"))
    assign_offsets(batch, 0, 0, append_time_ms=77)
    data = bytes(batch) + numbered([one(b"b")], 1)
    table = decode_to_arrow(data, columns=("timestamp_type", "timestamp", "value")).table
    assert table.schema.names == ["timestamp_type", "timestamp", "value"]
    assert table.to_pylist() == [
        {"timestamp_type": 1, "timestamp": 77, "value": b"a"},
        {"timestamp_type": 0, "timestamp": NOW_MS, "value": b"b"},
    ]
    with pytest.raises(ValueError, match="'topic' is no column"):
        decode_to_arrow(data, columns=("topic",))


def test_no_batches_decode_to_an_empty_table() -> None:
    for data in (b"", one(b"a")[:-1], b"\x00" * 11):
        decoded = decode_to_arrow(data, start_offset=5)
        assert decoded.table.num_rows == 0
        assert decoded.table.schema.names == list(ALL_COLUMNS)
        assert decoded.next_offset == 5


def test_the_position_lies_behind_markers_and_aborted_batches() -> None:
    identity = {"transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    abort = control_batch("abort", producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS)
    log = numbered([one(b"a"), one(b"aborted", **identity), abort])
    decoded = decode_to_arrow(log, aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=1)])
    assert decoded.table["value"].to_pylist() == [b"a"]
    assert decoded.next_offset == 3
    assert values_of(log) == [b"a", b"aborted"]


def test_the_position_lies_behind_batches_that_compaction_emptied() -> None:
    empty = build_batch(b"", records_count=0, last_offset_delta=4, base_timestamp=0, max_timestamp=0, base_offset=10)
    decoded = decode_to_arrow(empty, start_offset=10)
    assert (decoded.table.num_rows, decoded.next_offset) == (0, 15)


def test_the_position_reaches_an_end_that_lies_in_a_gap() -> None:
    log = one(b"a", base_offset=0) + one(b"b", base_offset=100)
    assert decode_to_arrow(log, end_offset=50).next_offset == 50
    assert values_of(log, end_offset=50) == [b"a"]


def test_decoding_stops_where_it_has_enough() -> None:
    log = numbered([one(b"v" * 1000, compression="zstd") for _ in range(10)])
    decoded = decode_to_arrow(log, max_bytes=3000)
    assert (decoded.table.num_rows, decoded.next_offset) == (3, 3)
    rest = decode_to_arrow(log, start_offset=3)
    assert (rest.table["offset"].to_pylist(), rest.next_offset) == ([3, 4, 5, 6, 7, 8, 9], 10)


def test_views_and_changeable_buffers_are_taken() -> None:
    log = numbered([one(b"a"), one(b"b", compression="lz4")])
    for data in (memoryview(log), bytearray(log), memoryview(bytearray(log))):
        assert values_of(data) == [b"a", b"b"]  # type: ignore[arg-type]


def test_header_keys_that_are_no_utf8_become_replacement_characters() -> None:
    batch = one(b"v", append_time_ms=1)
    with_header = encode_batch([PlainRecord(value=b"v", timestamp_ms=1, headers=(("ab", b"x"),))])
    (header,) = iter_batch_headers(with_header)
    broken = bytearray(with_header.replace(b"ab", b"\xff\xfe"))
    assign_offsets(broken, header.base_offset, 0, append_time_ms=1)
    (row,) = decode_to_arrow(bytes(broken), columns=("headers",)).table.to_pylist()
    assert row["headers"] == [{"key": "\ufffd\ufffd", "value": b"x"}]
    assert values_of(batch) == [b"v"]


def test_a_wrong_crc_names_the_batch() -> None:
    broken = bytearray(numbered([one(b"a"), one(b"b")], 40))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatch, match="at offset 41"):
        decode_to_arrow(broken)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 4, 7]))
def test_hostile_records_under_a_right_crc(section: bytes, count: int, codec: int) -> None:
    """The kernel reads no byte outside of its section: what plain Python takes it takes, and nothing else."""
    batch = bytearray(build_batch(section, records_count=count, last_offset_delta=9, base_timestamp=0, max_timestamp=0))
    batch[22] |= codec
    assign_offsets(batch, 3, 0, append_time_ms=5)
    try:
        expected = len(list(decode_records(batch)))
    except CorruptBatch:
        expected = -1
    try:
        found = decode_to_arrow(batch).table.num_rows
    except CorruptBatch:
        found = -1
    assert found == expected


def test_a_count_that_the_section_cannot_hold_allocates_nothing() -> None:
    batch = bytearray(build_batch(b"\x00" * 20, records_count=2**31 - 1, base_timestamp=0, max_timestamp=0))
    with pytest.raises(CorruptBatch, match="too short for 2147483647 records"):
        decode_to_arrow(batch)
