"""Our JSON decoder against Spark's `from_json`: the same records refused, the same values out of the others."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from tests.harness.values import not_none
from tests.spark.formats.generated_values import generated

from headrace.spark import formats
from headrace.spark.topic_frames import BAD_COLUMN, decoded_by_spark
from headrace.spark.topology.nodes import TopicSource

pytestmark = pytest.mark.spark

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


def raw_frame(spark, values):
    from headrace.spark.formats.schemas import RAW

    rows = [(None, value, "x", 0, i, None, 0, None) for i, value in enumerate(values)]
    return spark.createDataFrame(rows, RAW)


def by_spark(spark, values, source):
    frame = decoded_by_spark(raw_frame(spark, values), source)
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
    values = [text.encode() for text in ODD_RECORDS] + [b"\xff", b'{"s":"\xc3"}', b'{"s":"\xed\xa0\x80"}'[:6]]
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


def test_generated_records(spark):
    values = generated(record_bytes(), 300)
    assert len(set(values)) > 250
    assert_same(spark, values, DDL)


TIERS = {
    "compiled": StructType().add("zz", "string"),
    "in blocks": StructType().add("zz", StructType().add("x", "integer")),
    "one by one": StructType().add("zz", StructType().add("t", "timestamp")),
}
"""Schemas by which each way of decoding is taken; no record has the field, so types refuse nothing."""


def is_json_object(value):
    """RFC 8259 by Python's reader."""

    def refuse(word):
        raise ValueError(word)

    try:
        found = json.loads(value.decode(), parse_constant=refuse, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


SILENT_IN_SPARK = [
    b'{"n":1}{"n":1}', b'{"n":1} x', b'{"n":1}}', b'{"n":1},', b'{"n":1}\n{"n":1}', b'{"n":1}\x00', b'{"n":NaN}',
    b'{"n":-Infinity}', b'{"n":Infinity}', b'{"a":[NaN]}', b'', b'  ', b'\n', b'{"s":"\xff"}', b'{"s":"\xed\xa0\x80"}',
    b'{"\xff":1}', b"{'n':1}", b'{"n":01}', b'{"n":1.}', b'{"n":.5}', b'{"n":+1}', b'{"n":0x1}', b'{"n":1,}', b'[]',
    b'{"s":"a\tb"}', b'{"n":1/**/}', b'\xef\xbb\xbf{"n":1}', b'{"n":True}', b'{"n":nul}', b'{"s":"\\x"}', b'{"n" 1}',
]  # fmt: skip
ACCEPTED = [
    b'{}', b' {"n":1} ', b'\r\n{"n":1}\t', b'{"n":-0.0e+1}', b'{"s":"\\u00e9\xc3\xa9"}', b'{"n":null}', b'{"a":[[{}]]}',
]  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_values_that_are_no_json_object_are_refused_by_every_reader(tier):
    schema = TIERS[tier]
    plain = [b'{"a":1}'] * 40
    for values in ([value] for value in SILENT_IN_SPARK):
        assert list(decoded(values, schema)[2]) == [0], values
    _, _, bad = decoded([*plain, *SILENT_IN_SPARK, *plain, *ACCEPTED], schema)
    assert list(bad) == list(range(40, 40 + len(SILENT_IN_SPARK)))
    assert not any(map(is_json_object, SILENT_IN_SPARK))


JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)


@st.composite
def nearly_json(draw):
    """An object, now and then with a byte changed, removed or put in, or with something behind it."""
    name, body = draw(st.text(max_size=4)), draw(JSON_TEXTS)
    value = bytearray(f"{{{json.dumps(name, ensure_ascii=False)}: {body}}}".encode("utf-8", "replace"))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(value)))
        with_byte = draw(st.sampled_from(list(b' "{}[],:.-+eE0123\\/nNaItrue\n\r\t\x00\x7f\xff\xc3\xa9')))
        value[at : at + draw(st.integers(0, 1))] = bytes([with_byte]) if draw(st.booleans()) else b""
    return bytes(value) + draw(st.sampled_from([b"", b"", b"", b" ", b"\n", b"{}", b"x", bytes(value)]))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(values=st.lists(nearly_json(), min_size=20, max_size=60))
def test_every_decoder_refuses_what_python_refuses(values):
    wanted = [index for index, value in enumerate(values) if not is_json_object(value)]
    for tier, schema in TIERS.items():
        assert list(decoded(values, schema)[2]) == wanted, tier


def test_a_record_without_a_value_is_no_row():
    source = TopicSource(
        name="x", topics=("x",), value_format="json", schema_json=StructType().add("a", "integer").json()
    )
    values = pa.array([b'{"a":1}', None, b'{"a":2}', None], pa.binary())
    found = formats.decode(pa.table({"value": values}), replace(source, columns_needed=("a",)), topic="x", partition=0)
    assert not found.bad_rows
    assert not_none(found.tombstones).tolist() == [False, True, False, True]
    text = replace(source, value_format="string", schema_json=StructType().add("value", "string").json())
    found = formats.decode(
        pa.table({"value": values}), replace(text, columns_needed=("value",)), topic="x", partition=0
    )
    assert found.tombstones is None
    assert found.batch.column("value").null_count == 2


def test_verify_leaves_out_the_same_records(spark):
    values = [b'{"a":1}', None, *SILENT_IN_SPARK]
    schema = StructType().add("a", "long")
    source, _, bad = decoded(values, schema)
    frame = decoded_by_spark(raw_frame(spark, values), source)
    assert [row.a for row in frame.where(f"{BAD_COLUMN} IS NULL").collect()] == [1]
    assert list(bad) == list(range(2, len(values)))


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
        "it is not JSON: Extra data at character 516",
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
