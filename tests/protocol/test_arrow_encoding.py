"""Arrow → record batches, compared with the plain Python code."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.batch_samples import NOW_MS, numbered, some_records, table_of

from headrace.protocol.arrow_batches import HEADERS_TYPE, encode_from_arrow
from headrace.protocol.arrow_encoding import header_columns
from headrace.protocol.compression import CODECS
from headrace.protocol.record_batches import (
    PlainRecord,
    decode_records,
    encode_batch,
    iter_batch_headers,
)


def encoded(records: list[PlainRecord], **settings_: Any) -> list[bytes]:
    table = table_of(records)
    return encode_from_arrow(
        table["key"], table["value"], timestamps_ms=table["timestamp"], headers=table["headers"], **settings_
    )


@settings(max_examples=150, deadline=None)
@given(some_records, st.sampled_from(CODECS), st.integers(70, 3000))
def test_encodes_what_plain_python_decodes(records: list[PlainRecord], codec: str, max_batch_bytes: int) -> None:
    batches = encoded(records, compression=codec, max_batch_bytes=max_batch_bytes)
    found = list(decode_records(numbered(batches)))
    assert found == [dataclasses.replace(record, offset=offset) for offset, record in enumerate(records)]
    if codec == "none":
        for batch in batches:
            (header,) = iter_batch_headers(batch)
            assert header.records_count == 1 or len(batch) <= max_batch_bytes


@settings(max_examples=60, deadline=None)
@given(some_records)
def test_one_batch_equals_plain_pythons_byte_for_byte(records: list[PlainRecord]) -> None:
    assert encoded(records) == [encode_batch(records)]


@settings(max_examples=60, deadline=None)
@given(some_records, st.data())
def test_slices_and_picked_rows(records: list[PlainRecord], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    table = table_of(records).slice(start)
    rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), min_size=1, max_size=20))
    (batch,) = encode_from_arrow(
        table["key"],
        table["value"],
        timestamps_ms=table["timestamp"],
        headers=table["headers"],
        indices=np.array(rows),
    )
    expected = [records[start + row] for row in rows]
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in decode_records(batch)] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in expected
    ]


def test_strings_large_columns_and_chunks_are_taken() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view()):
        values = pa.array(["a", None, "bü"], pa.string()).cast(kind)
        (batch,) = encode_from_arrow(values, pa.chunked_array([values]), timestamps_ms=NOW_MS)
        found = [(record.key, record.value) for record in decode_records(batch)]
        assert found == [(b"a", b"a"), (None, None), ("bü".encode(), "bü".encode())]


def test_no_keys_one_timestamp_no_headers() -> None:
    (batch,) = encode_from_arrow(None, pa.array([b"a", None]), timestamps_ms=5)
    assert list(decode_records(batch)) == [
        PlainRecord(key=None, value=b"a", timestamp_ms=5, offset=0),
        PlainRecord(key=None, value=None, timestamp_ms=5, offset=1),
    ]


def test_null_lists_of_headers_are_no_headers() -> None:
    headers = pa.array([None, [("h", b"1")], []], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    (batch,) = encode_from_arrow(None, pa.array([b"a", b"b", b"c"]), timestamps_ms=5, headers=headers)
    assert [record.headers for record in decode_records(batch)] == [(), (("h", b"1"),), ()]


def test_headers_are_prepared_once_for_several_calls() -> None:
    headers = pa.array([[("h", b"1")], [], [("i", None), ("h", b"2")]], HEADERS_TYPE)
    values = pa.array([b"a", b"b", b"c"])
    prepared = header_columns(headers, 3)
    for rows in ([0, 2], [1], [2, 1, 0]):
        once = encode_from_arrow(None, values, timestamps_ms=5, headers=prepared, indices=rows)
        assert once == encode_from_arrow(None, values, timestamps_ms=5, headers=headers, indices=rows)
    with pytest.raises(ValueError, match="headers of 3 rows beside 2 values"):
        encode_from_arrow(None, values[:2], timestamps_ms=5, headers=prepared)
    assert encode_from_arrow(None, values, timestamps_ms=5, headers=header_columns(None, 3)) == encode_from_arrow(
        None, values, timestamps_ms=5
    )


def test_sequences_count_on_from_batch_to_batch_and_wrap() -> None:
    values = pa.array([b"v" * 50] * 10)
    batches = encode_from_arrow(
        None, values, timestamps_ms=1, max_batch_bytes=200, producer_id=9, producer_epoch=2, base_sequence=2**31 - 3
    )
    headers = [next(iter_batch_headers(batch)) for batch in batches]
    assert [header.base_sequence for header in headers] == [2**31 - 3, 2**31 - 1, 1, 3, 5]
    assert {(header.producer_id, header.producer_epoch, header.records_count) for header in headers} == {(9, 2, 2)}


def test_no_rows_encode_to_no_batch() -> None:
    assert encode_from_arrow(None, pa.array([], pa.binary()), timestamps_ms=1) == []
    assert encode_from_arrow(None, pa.array([b"a"]), timestamps_ms=1, indices=[]) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": pa.array([b"k"]), "timestamps_ms": 1},
        {"keys": None, "timestamps_ms": pa.array([1])},
        {"keys": None, "timestamps_ms": 1, "headers": pa.array([None], pa.list_(pa.struct([("key", pa.string())])))},
        {"keys": None, "timestamps_ms": 1, "indices": [2]},
        {"keys": None, "timestamps_ms": 1, "indices": [-1]},
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rows|timestamps"):
        encode_from_arrow(values=pa.array([b"a", b"b"]), **columns)
