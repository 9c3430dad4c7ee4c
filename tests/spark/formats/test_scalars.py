"""Single values as Kafka's serializers write them: against Python's `struct` on random bytes, slices and nulls."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.formats.scalar_reference import scalar_reader, scalar_writer
from headrace.spark.formats.scalars import SCALARS, decode_scalars, encode_scalars
from headrace.spark.formats.value_parts import NotOfSchema

UUID_TEXT = st.uuids().map(str)
BYTES: dict[str, st.SearchStrategy[bytes]] = {
    "short": st.binary(min_size=2, max_size=2),
    "integer": st.binary(min_size=4, max_size=4),
    "long": st.binary(min_size=8, max_size=8),
    "float": st.binary(min_size=4, max_size=4),
    "double": st.binary(min_size=8, max_size=8),
    "boolean": st.sampled_from([b"\0", b"\1", b"\2"]),
    "uuid": UUID_TEXT.map(str.encode) | UUID_TEXT.map(lambda text: text.upper().encode()),
    "string": st.text(max_size=5).map(str.encode),
    "bytes": st.binary(max_size=5),
}


def same(mine: Any, other: Any) -> bool:
    return mine == other or (isinstance(mine, float) and isinstance(other, float) and mine != mine and other != other)


@pytest.mark.parametrize("name", SCALARS)
def test_decoding_equals_struct_on_random_bytes(name: str) -> None:
    read, write = scalar_reader(name), scalar_writer(name)

    @settings(max_examples=25, deadline=None, database=None)
    @given(st.lists(st.none() | BYTES[name] | st.binary(max_size=9), max_size=8), st.integers(0, 3), st.booleans())
    def check(records: list[bytes | None], skipped: int, large: bool) -> None:
        values = pa.array([b"x" * 7] * skipped + records, pa.large_binary() if large else pa.binary())[skipped:]
        column, bad = decode_scalars(values, name)
        wanted = [read(record) for record in records]
        assert len(column) == len(records)
        column.validate(full=True)
        assert all(map(same, column.to_pylist(), [value for value, _ in wanted])), (column, wanted)
        assert [row.index for row in bad] == [at for at, (_, why) in enumerate(wanted) if why is not None]
        # Whatever decodes is written as `struct` writes it, also from a slice.
        again = encode_scalars(column, name, "value")
        again.validate(full=True)
        assert again.to_pylist() == [write(value) for value in column.to_pylist()]
        assert encode_scalars(column[1:], name, "value").to_pylist() == again.to_pylist()[1:]

    check()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("long", b"\0" * 4, "it has 4 bytes; a long has 8"),
        ("integer", b"\0", "it has 1 byte; an integer has 4"),
        ("double", b"", "it has 0 bytes; a double has 8"),
        ("boolean", b"\2", "a boolean is a byte that is 0 or 1"),
        ("uuid", b"67e55044-10b1-426f-9247bb680e5fe0c8-", "it is no UUID of 36 characters"),
        ("uuid", b"1-1-1-1-1", "it is no UUID of 36 characters"),
        ("string", b"\xff", "it is not UTF-8 at byte 1"),
    ],
)
def test_bad_bytes_are_named_and_leave_a_null(name: str, value: bytes, reason: str) -> None:
    column, [bad] = decode_scalars(pa.array([None, value, None], pa.binary()), name)
    assert (column.to_pylist(), bad.index) == ([None] * 3, 1)
    assert bad.reason.startswith(reason)


def test_keys_that_a_serializer_writes_differently_are_bad() -> None:
    text = "67e55044-10b1-426f-9247-bb680e5fe0c8"
    values = pa.array([text.encode(), text.upper().encode()], pa.binary())
    assert decode_scalars(values, "uuid")[0].to_pylist() == [text, text]
    column, [bad] = decode_scalars(values, "uuid", is_key=True)
    assert (column.to_pylist(), bad.index) == ([text, None], 1)


def test_narrow_columns_are_written_wide() -> None:
    assert encode_scalars(pa.array([-2, None], pa.int8()), "long", "n").to_pylist() == [struct.pack(">q", -2), None]
    assert encode_scalars(pa.array([0.1], pa.float32()), "double", "x").to_pylist() == [
        struct.pack(">d", float(np.float32(0.1)))
    ]
    odd = np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)
    assert encode_scalars(pa.array(odd), "double", "x").to_pylist() == [struct.pack(">d", math.nan)]


def test_a_text_that_is_no_uuid_is_refused() -> None:
    with pytest.raises(NotOfSchema, match="id is 'one': it is no UUID of 36 characters"):
        encode_scalars(pa.array([None, "one"]), "uuid", "id")
