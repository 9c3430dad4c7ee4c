"""Rows as bytes: what goes in comes out, keys are stable, and the bytes are what the docstring says."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.spark.runtime.rows.rows import decode_rows, encode_key, encode_rows
from headrace.spark.runtime.stores.byte_spans import array_of_spans

TYPES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(10, 2): st.decimals(-9999, 9999, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
}


@st.composite
def tables(draw):
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=10))
    count = draw(st.integers(0, 12))
    columns = [
        pa.array(draw(st.lists(st.none() | TYPES[kind], min_size=count, max_size=count)), kind) for kind in types
    ]
    return types, columns


@given(tables(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_rows_come_back(case, cut):
    types, columns = case
    columns = [column[cut:] for column in columns]  # sliced arrays carry an offset
    rows = encode_rows(columns)
    assert [c.to_pylist() for c in decode_rows(rows, types)] == [c.to_pylist() for c in columns]
    assert [c.to_pylist() for c in decode_rows(rows[1:], types)] == [c.to_pylist()[1:] for c in columns]


def test_the_bytes_of_a_row():
    rows = encode_rows([pa.array([7], pa.int16()), pa.array(["ab"]), pa.array([None], pa.float64()), pa.array([b"c"])])
    assert rows.to_pylist() == [b"\x01\x04" + b"\x07\x00" + bytes(8) + b"\x02\x00\x00\x00\x01\x00\x00\x00" + b"abc"]


def test_one_text_column_is_its_own_key():
    assert encode_key([pa.array(["EWR", "", None, "é"])]).to_pylist() == [b"EWR", b"", b"\xff", "é".encode()]


def test_equal_floats_have_equal_keys():
    keys = encode_key([pa.array([0.0, -0.0, math.nan, -math.nan])]).to_pylist()
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0] != keys[2]


def test_two_columns_never_collide():
    keys = encode_key([pa.array(["a", "ab", None, ""]), pa.array(["bc", "c", "", None])]).to_pylist()
    assert len(set(keys)) == 4


def test_values_that_are_no_row_are_refused():
    with pytest.raises(StateError) as short:
        decode_rows(pa.array([b"\x01"]), [pa.int64()])
    assert short.value.code == "state-corrupt"
    with pytest.raises(StateError) as foreign:
        decode_rows(pa.array([b"\x09" + bytes(9)]), [pa.int64()])
    assert foreign.value.code == "state-format"


def test_decimals_keep_their_scale():
    column = pa.array([Decimal("1.50"), None, Decimal("-3.25")], pa.decimal128(20, 2))
    assert decode_rows(encode_rows([column]), [column.type])[0].equals(column)


def test_more_bytes_than_an_array_holds_are_reported():
    lengths = np.full(3, 2**30, np.int64)
    with pytest.raises(StateError) as told:
        array_of_spans(np.zeros(1, np.uint8), np.zeros(3, np.int64), lengths, pa.binary(), np.zeros(3, np.bool_))
    assert told.value.code == "row-batch-too-large"
