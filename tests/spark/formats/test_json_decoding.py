"""Our JSON decoder against Spark's `from_json`: the same records refused, the same values out of the others."""

from __future__ import annotations

import datetime as dt
import json
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.spark import formats
from headrace.spark.topic_frames import BAD_COLUMN, decoded_by_spark
from headrace.spark.topology.nodes import TopicSource

pytestmark = pytest.mark.spark

PHASES = (Phase.explicit, Phase.generate)
DDL = (
    "a bigint, i int, h smallint, d double, s string, b boolean, t timestamp, dt date, "
    "st struct<x: int, y: string>, ar array<double>"
)
NESTED_TIME = "n struct<t: timestamp>, ts array<timestamp>, s string"

ODD_RECORDS = [
    'null', '', '  ', '5', '[]', '[{"a":1}]', '{"a":1} x', '{"a":1}{"a":2}', '{"a":1', '{"a":1.0}', '{"a":1e3}',
    '{"i":3000000000}', '{"h":40000}', '{"a":"1"}', '{"d":"NaN"}', '{"d":NaN}', '{"d":-Infinity}', '{"d":INF}',
    '{"d":"INF"}', '{"d":"1.5"}', '{"d":1e400}', '{"d":5}', '{"d":""}', '{"s":1.50}', '{"s":1e3}',
    '{"s":12345678901234567890123}', '{"s":{"z":1.50,"y":"a\\nb/\\u00e9"}}', '{"s":[1, 2 ,"x"]}', '{"s":true}',
    '{"s":null}', '{"b":"true"}', '{"b":1}', '{"t":"2013-01-01"}', '{"t":"2013-01-01 5:06:07"}',
    '{"t":"2013-01-01T05:06:07.123456789Z"}', '{"t":"2013"}', '{"t":"2013-01-01T05:06:07+02:00"}',
    '{"t":"2013-01-01T05:06"}', '{"t":"2013-1-1 1:2:3 Europe/Berlin"}', '{"t":12}', '{"t":1.5}', '{"t":""}',
    '{"t":"x"}', '{"t":"2013-01-01T05:06:07.1+0200"}', '{"t":" 2013-01-01 "}', '{"t":"2013-02-30"}',
    '{"t":"2013-01-01T24:00:00Z"}', '{"t":"2013-01-01T23:59:60Z"}', '{"t":"+002013-01-01"}',
    '{"t":"2013-01-01T05:06:07 UTC"}', '{"t":"2013-01-01T05:06:07GMT+1"}', '{"t":"2013-01-01T05:06:07+2"}',
    '{"t":"2013-01-01T05:06:07+2:30"}', '{"t":"2013-01-01T"}', '{"t":"2013-01-01 05"}', '{"t":"2013-01-01Z"}',
    '{"t":"2013-03-10T02:30:00"}', '{"t":"2013-11-03T01:30:00"}', '{"t":"0001-01-01 00:00:00Z"}',
    '{"t":"9999-12-31 23:59:59.999999"}', '{"dt":"2013-01-01"}', '{"dt":"2013-1-1"}', '{"dt":"2013-01-01T05:00:00"}',
    '{"dt":"2013-01-01 xx"}', '{"dt":"2013"}', '{"dt":5}', '{"dt":"2013-02-30"}', '{"dt":"2013-01-01x"}',
    '{"st":{"x":1,"q":2}}', '{"st":[1]}', '{"st":{"x":"q"}}', '{"ar":[1,2.5,null,"NaN"]}', '{"ar":[1,"x"]}',
    '{"ar":1}', '{"ar":[[1]]}', '{"a":1,"a":2}', '{"A":1}', "{'a':1}", '{"s":"\\ud800"}', '{"s":"\\ud83d\\ude00"}',
    '{"s":"a\tb"}', '{"a":01}', '{"a":-0}', '{"a":1,}', '{a:1}', '{"s":"\\x"}', '{"a":9223372036854775808}',
    '{"a":9223372036854775807}', '\ufeff{"a":1}', '{"s":NaN}', '\n {"a": 7}\n', '{"s":"\\/"}', '{"d":-0.0}',
    '{"a": 1 /*c*/}', '{"d":.5}', '{"d":+5}', '{"d":5.}', '{"st":null}', '{"ar":null}',
    '{"a":5,"d":"bad","s":"keep"}', '{"s":"line\\nbreak"}', '{"s":"\\u0000"}', '{"s":"\u2028"}', '{}', '{"a" : 1}',
    '{"a":1}\r',
]  # fmt: skip


def decoded(values, ddl_schema, zone="UTC"):
    source = TopicSource(name="x", topics=("x",), value_format="json", schema_json=ddl_schema.json(), time_zone=zone)
    table = pa.table(
        {
            "key": pa.nulls(len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(range(len(values)), pa.int64()),
            "timestamp": pa.array([0] * len(values), pa.int64()),
        }
    )
    found = formats.decode(table, source, topic="x", partition=0)
    bad = {row.index: row for row in found.bad_rows}
    return source, _listed(pa.Table.from_batches([found.batch.select(ddl_schema.names)]), bad), bad


def by_spark(spark, values, source):
    from headrace.spark.formats.schemas import RAW

    rows = [(None, value, "x", 0, i, None, 0, None) for i, value in enumerate(values)]
    frame = decoded_by_spark(spark.createDataFrame(rows, RAW), source)
    table = frame.select(*StructType.fromJson(json.loads(source.schema_json)).names, BAD_COLUMN).toArrow()
    bad = {i for i, there in enumerate(table.column(BAD_COLUMN).is_valid().to_pylist()) if there}
    return _listed(table.drop_columns([BAD_COLUMN]), bad), bad


def _listed(table, bad):
    """Rows as dictionaries; microseconds, since Python's years end at 9999; nothing of rows that are no text at all."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.timestamp("us")).cast(pa.int64()))
    return [None if i in bad else table.slice(i, 1).to_pylist()[0] for i in range(table.num_rows)]


def assert_same(spark, values, ddl, zone="UTC"):
    schema = StructType.fromDDL(ddl)
    source, rows, bad = decoded(values, schema, zone)
    wanted, wanted_bad = by_spark(spark, values, source)
    for index, value in enumerate(values):
        assert (index in bad) == (index in wanted_bad), (value, bad.get(index))
        if index not in bad:
            assert _comparable(rows[index]) == _comparable(wanted[index]), value


def _comparable(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return value


def test_odd_records_together_and_alone(spark):
    values = [text.encode() for text in ODD_RECORDS] + [None, b"\xff", b'{"s":"\xc3"}', b'{"s":"\xed\xa0\x80"}'[:6]]
    plain = [b'{"a":%d,"s":"x"}' % i for i in range(100)]
    assert_same(spark, [*plain, *values, *plain], DDL)


def test_nested_timestamps(spark):
    values = [
        b'{"n":{"t":"2013-01-01T00:00:00Z"},"ts":["2013-01-01",5,null]}',
        b'{"n":{"t":"x"}}',
        b'{"ts":[{}]}',
        b'{"s":"a"}',
    ]
    assert_same(spark, values, NESTED_TIME)


def test_timestamps_in_another_zone(spark):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        texts = [text for text in ODD_RECORDS if '"t"' in text]
        assert_same(spark, [text.encode() for text in texts], DDL, "America/New_York")
        usual = [b'{"t":"2013-07-01 05:06:07"}', b'{"t":"2013-07-01T05:06:07Z"}', b'{"t":"2013-01-01T05:06:07.5"}']
        assert_same(spark, usual, DDL, "America/New_York")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


OLDEST = dt.datetime.fromisoformat("1000-01-01")
SINCE_1900 = dt.datetime.fromisoformat("1900-01-01")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 65), 1 << 65),
    st.integers(-5, 5),
    st.integers(-1000, 1000).map(lambda n: n / 8),
    st.text(max_size=8),
    st.dates().filter(lambda d: d.year >= 1000).map(str),
    st.datetimes(min_value=OLDEST).map(lambda t: t.isoformat() + "Z"),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner),
    max_leaves=4,
)
DOUBLES = st.floats(allow_nan=False)


def right(strategy):
    return st.one_of(strategy, strategy, strategy, strategy, strategy, strategy, strategy, st.none(), ANYTHING)


RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "a": right(st.integers(-(1 << 63), (1 << 63) - 1)),
        "i": right(st.integers(-(1 << 31), (1 << 31) - 1)),
        "d": right(DOUBLES),
        "s": right(st.text(max_size=20)),
        "b": right(st.booleans()),
        "t": right(st.datetimes(min_value=SINCE_1900).map(lambda t: t.isoformat(sep=" "))),
        "dt": right(st.dates(min_value=dt.date(1000, 1, 1)).map(str)),
        "st": right(
            st.fixed_dictionaries({}, optional={"x": right(st.integers(-9, 9)), "y": right(st.text(max_size=5))})
        ),
        "ar": right(st.lists(right(DOUBLES), max_size=3)),
        "other": ANYTHING,
    },
)


@st.composite
def record_bytes(draw):
    record = draw(RECORDS)
    text = json.dumps(record, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, None, 1])))
    return text.encode("utf-8", "replace")


# Each example is a Spark job: many records in few examples, and no shrinking.
@settings(max_examples=2, deadline=None, derandomize=True, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(values=st.lists(record_bytes(), min_size=100, max_size=200))
def test_generated_records(spark, values):
    assert_same(spark, values, DDL)


def test_reasons_and_excerpts():
    from pyspark.sql.types import ArrayType, DoubleType

    schema = StructType().add("dep_delay", DoubleType()).add("st", StructType().add("ar", ArrayType(DoubleType())))
    values = [
        b'{"dep_delay":"n/a"}',
        b'{"st":{"ar":[1,true]}}',
        b"[1]",
        b'{"dep_delay":1',
        b'{"dep_delay":1}' + b" " * 500 + b"x",
    ]
    _, _, bad = decoded(values, schema)
    assert [row.reason for row in bad.values()] == [
        'dep_delay is "n/a", a double is wanted',
        "st.ar[1] is true, a double is wanted",
        "it is [1], a JSON object is wanted",
        "it is not JSON: Expecting ',' delimiter at character 15",
    ]
    assert bad[0].excerpt == '{"dep_delay":"n/a"}'
    _, _, long = decoded([b"[" + b"x" * 900], schema)
    assert len(long[0].excerpt) == 200


def test_a_block_with_one_bad_record_stays_in_order():
    from pyspark.sql.types import LongType

    schema = StructType().add("a", LongType())
    values = [b'{"a":%d}' % i for i in range(1000)]
    values[400], values[777] = b'{"a":"x"}', b'{"a":\n777}'
    _, rows, bad = decoded(values, schema)
    assert list(bad) == [400]
    assert [row and row["a"] for row in rows] == [None if i == 400 else i for i in range(1000)]
