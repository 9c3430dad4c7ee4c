"""Our JSON encoder against Spark's `to_json`."""

from __future__ import annotations

import datetime as dt
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from tests.spark.formats.generated_values import generated

from headrace.spark import formats
from headrace.spark.formats.java_text import java_double
from headrace.spark.topology.nodes import TopicSink
from headrace.spark.verify_streams import JSON_OPTIONS

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


def test_doubles_read_back_the_same(spark):
    """Digit for digit they may differ: Java before 19 prints a digit too many now and then."""
    numbers = generated(st.floats(), 600)
    assert len(numbers) > 500
    frame = spark.createDataFrame([(number,) for number in numbers], "d double").coalesce(1)
    wanted = [row[0] for row in frame.select(F.to_json(F.struct("*"))).collect()]
    found = formats.encode_value_json(pa.record_batch({"d": pa.array(numbers, pa.float64())}), ["d"]).to_pylist()
    for mine, theirs in zip(found, wanted, strict=True):
        assert json.loads(mine) == json.loads(theirs)
        assert len(mine) <= len(theirs)


JAVA_DOUBLES = {
    1.0: "1.0",
    1e7: "1.0E7",
    9999999.5: "9999999.5",
    1e-3: "0.001",
    9.99e-4: "9.99E-4",
    -2.5e-9: "-2.5E-9",
    123456789.125: "1.23456789125E8",
    1e16: "1.0E16",
    1.5e300: "1.5E300",
    -0.0: "-0.0",
    5e-324: "5.0E-324",  # the shortest text that reads back; Java prints 4.9E-324
}


@pytest.mark.parametrize(("number", "text"), JAVA_DOUBLES.items())
def test_java_doubles(number, text):
    assert java_double(number) == text
    assert float(text) == number


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


def test_keys_and_values_agree_on_times_whatever_the_zone():
    times = [
        dt.datetime.fromisoformat("2013-07-01T05:06:07.000001+00:00"),
        None,
        dt.datetime.fromisoformat("0005-01-01T00:00+00:00"),
        dt.datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"),
    ]
    for zone in ("UTC", "America/New_York", "Europe/Berlin"):
        batch = pa.record_batch({"t": pa.array(times, pa.timestamp("us", zone))})
        found = formats.encode_key(batch, ["t"]).to_pylist()
        assert found == [
            b'{"t":"2013-07-01T05:06:07.000001Z"}',
            b'{"t":null}',
            b'{"t":"0005-01-01T00:00:00.000000Z"}',
            b'{"t":"9999-12-31T23:59:59.999999Z"}',
        ]
        assert formats.encode_value_json(batch, ["t"]).to_pylist() == found
        assert formats.encode_key(batch.slice(0, 2), ["t"]).to_pylist() == found[:2]


def test_years_of_five_digits_and_before_the_first():
    far = pa.array([253_402_300_800_000_000, -62_198_755_200_000_000, None], pa.int64())
    batch = pa.record_batch({"t": far.cast(pa.timestamp("us", "UTC")), "n": far.cast(pa.timestamp("us"))})
    assert formats.encode_value_json(batch, ["t", "n"]).to_pylist() == [
        b'{"t":"+10000-01-01T00:00:00.000000Z","n":"+10000-01-01T00:00:00.000000"}',
        b'{"t":"-0001-01-01T00:00:00.000000Z","n":"-0001-01-01T00:00:00.000000"}',
        b'{"t":null,"n":null}',
    ]


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
