"""Our JSON encoder against Spark's `to_json`."""

from __future__ import annotations

import datetime as dt
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.spark.formats.generated_values import generated

from headrace.spark import formats
from headrace.spark.topology.nodes import TopicSink
from headrace.spark.verification.verify_streams import JSON_OPTIONS

pytestmark = pytest.mark.spark

DDL = (
    "s string, b boolean, n bigint, i int, d double, t timestamp, dt date, bi binary, x decimal(12,4), "
    "st struct<x: int, y: string, z: double>, ar array<string>, m map<string, int>, ti tinyint, f float, "
    "nt timestamp_ntz, deep array<struct<t: timestamp, m: map<int, array<decimal(4,1)>>, b: binary>>"
)
UTC = dt.UTC
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MOMENTS = st.datetimes(min_value=dt.datetime.fromisoformat("0002-01-01"), timezones=st.just(UTC))
DEEP = st.dictionaries(
    st.integers(0, 9), st.none() | st.lists(st.none() | st.decimals(-9, 9, places=1), max_size=2), max_size=2
)
ROWS = st.tuples(
    st.none() | NAMES,
    st.none() | st.booleans(),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    st.none()
    | st.integers(-(10**9), 10**9).map(lambda n: n / 64)
    | st.sampled_from([math.nan, math.inf, -0.0, 1e7, 9.99e-4]),
    st.none() | MOMENTS,
    st.none() | st.dates(),
    st.none() | st.binary(max_size=6),
    st.none() | st.decimals(-(10**7), 10**7, places=4),
    st.none() | st.tuples(st.none() | st.integers(0, 9), st.none() | NAMES, st.none() | st.just(0.5)),
    st.none() | st.lists(st.none() | NAMES, max_size=3),
    st.none() | st.dictionaries(NAMES, st.none() | st.integers(0, 9), max_size=2),
    st.none() | st.integers(-128, 127),
    st.none() | st.integers(-(10**6), 10**6).map(lambda n: n / 64),
    st.none() | MOMENTS.map(lambda moment: moment.replace(tzinfo=None)),
    st.none()
    | st.lists(
        st.none() | st.tuples(st.none() | MOMENTS, st.none() | DEEP, st.none() | st.binary(max_size=4)), max_size=2
    ),
)


def test_as_to_json(spark):
    rows = generated(ROWS, 250)
    assert len(rows) > 200
    frame = spark.createDataFrame(rows, StructType.fromDDL(DDL)).coalesce(1)
    wanted = [row[0] for row in frame.select(F.to_json(F.struct("*"), JSON_OPTIONS)).collect()]
    batch = frame.toArrow().combine_chunks().to_batches()[0]
    found = [value.decode() for value in formats.encode_value_json(batch, batch.schema.names).to_pylist()]
    assert found == wanted


def test_keys():
    batch = pa.record_batch({"a": pa.array(["x", None, "", "{}"]), "n": pa.array([1, None, 3, 4], pa.int64())})
    assert formats.encode_key(batch, ["a"]).to_pylist() == [b"x", b'{"a":null}', b"", b"{}"]
    assert formats.encode_key(batch, ["n"]).to_pylist() == [b'{"n":1}', b'{"n":null}', b'{"n":3}', b'{"n":4}']
    found = formats.encode_key(batch, ["a", "n"]).to_pylist()
    assert found == [b'{"a":"x","n":1}', b'{"a":null,"n":null}', b'{"a":"","n":3}', b'{"a":"{}","n":4}']


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    texts=st.lists(st.none() | NAMES | st.sampled_from(['{"a":', '{"a":null}', "{}", "null"]), max_size=8, unique=True)
)
def test_no_two_values_share_a_key(texts):
    for values in (pa.array(texts, pa.string()), pa.array(texts, pa.string()).cast(pa.binary())):
        keys = formats.encode_key(pa.record_batch({"a": values}), ["a"]).to_pylist()
        assert None not in keys
        assert len(set(keys)) == len(texts)


def test_string_and_raw_values():
    batch = pa.record_batch(
        {"s": pa.array(["x", None]), "n": pa.array([1, 2]), "d": pa.array([1.0, 1e9]), "r": pa.array([b"\xff", None])}
    )

    def written(column, value_format):
        return formats.encode_value(batch, [column], TopicSink(topic="t", value_format=value_format))

    assert written("s", "string").to_pylist() == [b"x", None]
    assert written("n", "string").to_pylist() == [b"1", b"2"]
    assert written("d", "string").to_pylist() == [b"1.0", b"1.0E9"]
    assert written("r", "raw").to_pylist() == [b"\xff", None]
    assert formats.encode_value_json(batch.slice(0, 0), ["s"]).to_pylist() == []
