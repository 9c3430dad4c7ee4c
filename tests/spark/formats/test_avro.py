"""Avro in and out against fastavro: random schemas and values, schema resolution, and bytes that are not Avro."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from headrace.errors import ConfigError, TopologyError
from headrace.formats import Avro, SchemaRegistry
from headrace.spark.formats.avro import decode_avro, encode_avro, sink_avro, source_avro
from headrace.spark.formats.avro_decoding import avro_reader
from headrace.spark.formats.avro_reference import avro_row_reader
from headrace.spark.formats.avro_schema import AvroSchemaError, avro_of, parse_schema, spark_type
from headrace.spark.formats.value_parts import NotOfSchema

UTC = dt.UTC
INT, LONG = 2**31, 2**63


def record(**fields: Any) -> dict[str, Any]:
    """A schema of a record; a field is a type, or (type, default)."""
    made = []
    for name, kind in fields.items():
        kind, rest = (kind[0], {"default": kind[1]}) if isinstance(kind, tuple) else (kind, {})
        made.append({"name": name, "type": kind, **rest})
    return {"type": "record", "name": "R", "fields": made}


def encoded(schema: dict[str, Any], rows: list[dict[str, Any]]) -> list[bytes]:
    parsed, values = fastavro.parse_schema(json.loads(json.dumps(schema))), []
    for row in rows:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, row)
        values.append(target.getvalue())
    return values


def decoded(values: Sequence[bytes | None], writer: dict[str, Any], reader: dict[str, Any] | None = None) -> Any:
    """Return (rows, {row: reason}) of values without a registry, by way of the reader of one pair of schemas."""
    wanted = [field["name"] for field in (reader or writer)["fields"]]
    array = pa.array(values, pa.binary())
    ends = np.cumsum([len(value or b"") for value in values]).astype(np.int64)
    starts = ends - np.array([len(value or b"") for value in values], np.int64)
    data = np.frombuffer(b"".join(value or b"" for value in values) or b"\0", np.uint8)
    batch, bad = avro_reader(json.dumps(writer), json.dumps(reader or writer)).read(data, starts, ends, wanted)
    assert len(array) == batch.num_rows
    return batch.to_pylist(), bad


# -- random schemas and values -----------------------------------------------------------------------------------------

FLAT = {
    "boolean": st.booleans(),
    "int": st.integers(-INT, INT - 1),
    "long": st.integers(-LONG, LONG - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
}
LOGICAL: list[tuple[Any, Any]] = [
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(timezones=st.just(UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    ),
]


@st.composite
def typed(draw: Any, depth: int, names: list[int]) -> tuple[Any, Any]:
    """A schema, and a strategy for its values."""
    kinds = ["flat", "flat", "logical", "enum", "fixed", "optional"]
    kind = draw(st.sampled_from([*kinds, "array", "map", "record"] if depth else kinds[:-1]))
    names.append(len(names))
    name = f"N{len(names)}"
    if kind == "flat":
        chosen = draw(st.sampled_from(sorted(FLAT)))
        return chosen, FLAT[chosen]
    if kind == "logical":
        return draw(st.sampled_from(LOGICAL))
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 5}, st.binary(min_size=5, max_size=5)
    if kind == "optional":
        inner, values = draw(typed(0, names))
        union = ["null", inner] if draw(st.booleans()) else [inner, "null"]
        return union, st.none() | values
    if kind == "record":
        return draw(records(depth - 1, names, name))
    inner, values = draw(typed(depth - 1, names))
    if draw(st.booleans()):
        inner, values = ["null", inner] if not isinstance(inner, list) else inner, st.none() | values
        if not isinstance(inner, list) or "null" not in inner:
            inner = ["null", inner]
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    return {"type": "map", "values": inner}, st.dictionaries(FLAT["string"], values, max_size=3)


@st.composite
def records(draw: Any, depth: int, names: list[int], name: str = "R") -> tuple[Any, Any]:
    fields = [draw(typed(depth, names)) for _ in range(draw(st.integers(1, 4)))]
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": kind} for i, (kind, _) in enumerate(fields)],
    }
    return schema, st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(fields)})


def same(mine: Any, theirs: Any) -> bool:
    """Whether a value of ours is what fastavro read or was given; pyarrow returns maps as lists of pairs."""
    if isinstance(theirs, dict) and isinstance(mine, list):
        return len(mine) == len(theirs) and all(same(value, theirs[key]) for key, value in mine)
    if isinstance(theirs, dict):
        return mine is not None and mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs) or (mine != mine and theirs != theirs)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_schemas_agree_with_fastavro(data: Any) -> None:
    schema, values = data.draw(records(2, []))
    rows = data.draw(st.lists(values, min_size=1, max_size=5))
    written = encoded(schema, rows)
    found, bad = decoded(written, schema)
    assert not bad
    assert all(map(same, found, rows)), (found, rows)
    avro = Avro(schema=json.dumps(schema))
    batch, refused = decode_avro(pa.array(written, pa.binary()), avro, [field["name"] for field in schema["fields"]])
    assert not refused
    again = encode_avro(batch, batch.schema.names, avro).to_pylist()
    read = avro_row_reader(avro)
    assert all(same(read(value)[0], row) for value, row in zip(again, rows, strict=True))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_fastavro_reads_them(data: Any) -> None:
    schema, values = data.draw(records(1, []))
    rows = data.draw(st.lists(values, min_size=3, max_size=3))
    written = [bytearray(value) for value in encoded(schema, rows)]
    if not written[1]:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(written[1]) - 1))
        written[1][at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        written[1] = written[1][: data.draw(st.integers(0, len(written[1])))]
    try:
        found, bad = decoded([bytes(value) for value in written], schema)
    except OverflowError:  # a date that Spark has and Python has not
        return
    assert same(found[0], rows[0])
    assert same(found[2], rows[2])
    avro = Avro(schema=json.dumps(schema))
    row, reason = avro_row_reader(avro)(bytes(written[1]))
    if 1 not in bad and reason is None:
        assert same(found[1], row), (found[1], row)
    names = [field["name"] for field in schema["fields"]]
    some = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    _, refused = decode_avro(pa.array([bytes(value) for value in written], pa.binary()), avro, some)
    assert {row.index: row.reason for row in refused} == bad


@pytest.mark.parametrize(
    ("written", "read", "value"),
    [
        ("bytes", "string", b"\xff\xfe"),
        ({"type": "array", "items": "bytes"}, {"type": "array", "items": "string"}, [b"a", b"\xff"]),
        (
            "bytes",
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0},
            (10**6).to_bytes(4, "big"),
        ),
    ],
)
def test_a_record_is_bad_whichever_columns_are_wanted(written: Any, read: Any, value: Any) -> None:
    [bad] = encoded(record(a="int", b=written), [{"a": 7, "b": value}])
    source = Avro(schema=json.dumps(record(a="int", b=read)))
    found = [decode_avro(pa.array([bad], pa.binary()), source, wanted) for wanted in (["a", "b"], ["b"], ["a"], [])]
    assert [[row.index for row in refused] for _, refused in found] == [[0]] * 4
    assert len({refused[0].reason for _, refused in found}) == 1
    assert avro_row_reader(source)(bad)[0] is None


def test_texts_of_the_writer_alone_need_not_be_utf8() -> None:
    writer, reader = record(gone="string", a="int"), record(a="int")
    [value] = encoded(record(gone="bytes", a="int"), [{"gone": b"\xff", "a": 7}])
    assert decoded([value], writer, reader) == ([{"a": 7}], {})


# -- resolution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer", "reader", "value", "wanted"),
    [
        ("int", "long", 7, 7),
        ("int", "float", 7, 7.0),
        ("int", "double", 7, 7.0),
        ("long", "double", 2**40, float(2**40)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "x", b"x"),
        ("bytes", "string", b"x", "x"),
        ("int", ["null", "long"], 7, 7),
        (["null", "int"], ["long", "null"], 7, 7),
        (["null", "int"], ["long", "null"], None, None),
        (["int", "string"], "string", "x", "x"),
        (["int", "long"], "long", 2**40, 2**40),
        (["int", "float", "double"], "double", 7, 7.0),
        ("null", ["null", "int"], None, None),
    ],
)
def test_promotions(writer: Any, reader: Any, value: Any, wanted: Any) -> None:
    [found], bad = decoded(encoded(record(a=writer), [{"a": value}]), record(a=writer), record(a=reader))
    assert (found, bad) == ({"a": wanted}, {})


def test_fields_of_the_writer_alone_are_skipped_and_checked() -> None:
    inner = {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}
    writer = record(a="int", gone=inner, also=["null", {"type": "enum", "name": "E", "symbols": ["X"]}], b="string")
    rows = [{"a": i, "gone": {"k": ["x", None] * i}, "also": "X" if i % 2 else None, "b": str(i)} for i in range(5)]
    values = encoded(writer, rows)
    found, bad = decoded([*values, values[3][:-6]], writer, record(b="string", a="int"))
    assert found[:5] == [{"b": str(i), "a": i} for i in range(5)]
    assert found[5] == {"b": None, "a": None}
    assert list(bad) == [5]


def test_defaults_aliases_and_enum_defaults() -> None:
    writer = record(old="int", e={"type": "enum", "name": "E", "symbols": ["A", "NEW"]})
    reader = record(
        new="int",
        e={"type": "enum", "name": "E", "symbols": ["A", "OTHER"], "default": "OTHER"},
        n=(["null", "string"], None),
        s=("string", "none"),
        i=({"type": "int", "logicalType": "date"}, 1),
        d=({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "\u0001\u0000"),
        l=({"type": "array", "items": "int"}, [1, 2]),
        m=({"type": "map", "values": "int"}, {"k": 1}),
        r=({"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}, {"x": 5}),
    )
    reader["fields"][0]["aliases"] = ["old"]
    found, bad = decoded(encoded(writer, [{"old": 3, "e": "NEW"}, {"old": 4, "e": "A"}]), writer, reader)
    default = {
        "n": None, "s": "none", "i": dt.date(1970, 1, 2), "d": decimal.Decimal("2.56"), "l": [1, 2], "m": [("k", 1)],
        "r": {"x": 5},
    }  # fmt: skip
    assert not bad
    assert found == [{"new": 3, "e": "OTHER", **default}, {"new": 4, "e": "A", **default}]


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("string", "int", "string cannot be read as int"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "array cannot be read as map"),
        ("int", "string", "int cannot be read as string"),
    ],
)
def test_schemas_that_do_not_resolve(writer: Any, reader: Any, reason: str) -> None:
    with pytest.raises(AvroSchemaError, match=reason):
        avro_reader(json.dumps(record(a=writer)), json.dumps(record(a=reader)))
    with pytest.raises(AvroSchemaError, match="b: the writer does not have it, and it has no default"):
        avro_reader(json.dumps(record(a="int")), json.dumps(record(a="int", b="int")))


def test_union_branches_without_a_place_are_bad_records() -> None:
    writer = record(a=["null", "int", "string"])
    values = encoded(writer, [{"a": 1}, {"a": "x"}, {"a": None}])
    found, bad = decoded(values, writer, record(a=["null", "long"]))
    assert found == [{"a": 1}, {"a": None}, {"a": None}]
    assert bad == {1: "it is not Avro of its schema: a: the reader's schema has no place for this value"}


# -- bytes that are not Avro -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("long", b"", "a: the record ends within it"),
        ("long", b"\xff" * 11, "a: the record ends within it"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "a: the number is out of range"),
        ("long", b"\x02\x02", "the record: bytes are left over behind the last field"),
        ("string", b"\x03abc", "a: its length is negative"),
        ("string", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a: its length is negative"),
        ("string", b"\x10abc", "a: the record ends within it"),
        ("string", b"\x02\xff", "a: it is not UTF-8"),
        ("boolean", b"\x02", "a: the byte is no boolean"),
        ("double", b"\0" * 7, "a: the record ends within it"),
        (["null", "int"], b"\x04\x02", "a: its union has no branch of that number"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "a: its enum has no symbol of that number"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02", "a: it announces more items"),
        ({"type": "array", "items": "string"}, b"\x02\x02\xff\x00", "a[]: it is not UTF-8"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01", "a: the number is out"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 0}, b"\x04\x7f\xff", "a: more than 3"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, b"\x22" + 17 * b"\x7f", "than 38"),
    ],
)  # fmt: skip
def test_bad_bytes_are_told_by_field(kind: Any, value: bytes, reason: str) -> None:
    schema = record(a=kind)
    good = avro_of_one(schema)
    found, bad = decoded([good, value, good], schema)
    assert list(bad) == [1]
    assert reason in bad[1], bad[1]
    assert found[1] == dict.fromkeys(found[0])
    assert found[0] == found[2] != found[1]


def avro_of_one(schema: dict[str, Any]) -> bytes:
    """Some good value of a schema."""
    from fastavro.utils import generate_one

    row: Any = generate_one(json.loads(json.dumps(schema)))
    for name, value in row.items():
        if isinstance(value, (decimal.Decimal, bytes)):
            row[name] = decimal.Decimal(7)
        if isinstance(value, dt.datetime):
            row[name] = dt.datetime(2020, 1, 1, tzinfo=UTC)
        if value is None:
            row[name] = 5
    return encoded(schema, [row])[0]


def test_hostile_loops_end() -> None:
    """An array of values that take no bytes could announce any number of them."""
    writer = record(a={"type": "array", "items": "null"}, b="int")
    _, bad = decoded([b"\xfe\xff\xff\xff\x0f" + b"\x00\x02"], writer, record(b="int"))
    assert "announces more items" in bad[0]


def test_tombstones_are_null_and_not_bad() -> None:
    schema = record(a="int")
    batch, bad = decode_avro(pa.array([b"\x02", None, b"\x04"], pa.binary()), Avro(schema=json.dumps(schema)), ["a"])
    assert (batch.to_pylist(), bad) == ([{"a": 1}, {"a": None}, {"a": 2}], [])


def test_slices_of_arrays() -> None:
    schema = record(a="int", s="string")
    values = pa.array(encoded(schema, [{"a": i, "s": str(i)} for i in range(20)]), pa.binary())
    avro = Avro(schema=json.dumps(schema))
    batch, bad = decode_avro(values.slice(5, 4), avro, ["s"])
    assert (batch.to_pylist(), bad) == ([{"s": str(i)} for i in range(5, 9)], [])
    whole, _ = decode_avro(values, avro, ["a", "s"])
    assert encode_avro(whole.slice(5, 4), ["a", "s"], avro).to_pylist() == values.slice(5, 4).to_pylist()


# -- encoding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "column", "reason"),
    [
        ("int", pa.array([1, None], pa.int32()), "a is null"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["A", "B"]), "'B' is no symbol"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"c"]), "another length than the 2 bytes"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            pa.array([1000, 1001], pa.timestamp("us", "UTC")),
            "date_trunc",
        ),
    ],
)
def test_rows_that_the_schema_has_no_place_for(kind: Any, column: pa.Array, reason: str) -> None:
    with pytest.raises(NotOfSchema, match=reason):
        encode_avro(pa.record_batch({"a": column}), ["a"], Avro(schema=json.dumps(record(a=kind))))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (["int", "long"], [1, 2**40]),
        (["null", "int", "long"], [1, None, 2**40]),
        (["int", "null", "long"], [None, 2**40]),
        (["long", "int", "null"], [None, -(2**40)]),
        (["float", "double"], [0.1]),
        (["double", "null", "float"], [None, 0.1]),
    ],
)
def test_unions_of_numbers_are_written_to_the_wider_branch(kind: Any, values: list[Any]) -> None:
    avro = Avro(schema=json.dumps(record(a=kind)))
    column = pa.array(values, pa.float64() if "double" in kind else pa.int64())
    written = encode_avro(pa.record_batch({"a": column}), ["a"], avro)
    assert [avro_row_reader(avro)(value) for value in written.to_pylist()] == [({"a": each}, None) for each in values]
    assert decode_avro(written, avro, ["a"])[0].to_pylist() == [{"a": each} for each in values]


@pytest.mark.parametrize("unscaled", [0, 1, -1, 127, 128, -128, -129, 255, 256, 10**37, -(10**37)])
@pytest.mark.parametrize("kind", [{"type": "bytes"}, *({"type": "fixed", "name": "F", "size": n} for n in (16, 20))])
def test_decimals_round_trip(unscaled: int, kind: dict[str, Any]) -> None:
    schema = record(a={**kind, "logicalType": "decimal", "precision": 38, "scale": 2})
    value = decimal.Decimal(unscaled).scaleb(-2)
    avro = Avro(schema=json.dumps(schema))
    batch = pa.record_batch({"a": pa.array([value], pa.decimal128(38, 2))})
    [written] = encode_avro(batch, ["a"], avro).to_pylist()
    assert avro_row_reader(avro)(written) == ({"a": value}, None)
    assert decode_avro(pa.array([written], pa.binary()), avro, ["a"])[0].to_pylist() == [{"a": value}]


# -- declarations ------------------------------------------------------------------------------------------------------


def columns(**fields: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in fields.items()])


def test_columns_and_schemas_belong_to_each_other() -> None:
    flat = (
        *(types.BooleanType(), types.IntegerType(), types.LongType(), types.FloatType(), types.DoubleType()),
        *(types.StringType(), types.BinaryType(), types.DateType(), types.TimestampType(), types.TimestampNTZType()),
        types.DecimalType(20, 3),
    )
    struct = columns(x=types.IntegerType(), y=types.ArrayType(types.StringType()))
    nested = (types.ArrayType(types.IntegerType()), types.MapType(types.StringType(), struct))
    made = columns(**{f"c{i}": kind for i, kind in enumerate((*flat, *nested))})
    assert spark_type(parse_schema(avro_of(made, "R"))) == made


INTEGER = columns(a=types.IntegerType())
NINE_DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("rows", "schema", "reason"),
    [
        (
            columns(a=types.IntegerType(), b=types.StringType()),
            record(a="int"),
            "b: the schema has no field",
        ),
        (INTEGER, record(a="int", b="string"), "b: there is no column for this field"),
        (INTEGER, record(a="int", b=("int", 5)), "b: there is no column for this field, and its default is not null"),
        (columns(a=types.StringType()), record(a="int"), "a: string cannot be written as int"),
        (columns(a=types.LongType()), record(a="int"), "a: bigint cannot be written as int"),
        (columns(a=types.FloatType()), record(a="double"), "a: float cannot be written as double"),
        (columns(a=types.DecimalType(10, 2)), record(a=NINE_DIGITS), "a: decimal"),
        (columns(a=INTEGER), record(a={"type": "array", "items": "int"}), "cannot be written as array"),
        (INTEGER, "not json", "it is not JSON"),
        (INTEGER, {"type": "nonsense"}, "it is not an Avro schema"),
        (columns(**{"a b": types.IntegerType()}), None, "no name in Avro"),
        (columns(a=types.MapType(types.IntegerType(), types.IntegerType())), None, "keys of maps are strings"),
    ],
)
def test_sinks_that_cannot_be(rows: types.StructType, schema: Any, reason: str) -> None:
    avro = Avro(schema=schema if isinstance(schema, str) else json.dumps(schema)) if schema else None
    avro = avro or Avro(registry=SchemaRegistry("http://127.0.0.1:1"))
    with pytest.raises(TopologyError, match=reason):
        sink_avro(avro, "t", rows, "file.py:1")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('"string"', "not a record"),
        (record(a=["int", "string"]), "a is a union of int, string"),
        (record(a="null"), "a has no values but null"),
        (record(a=["null", "R"]), "R contains itself"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0}), "39 digits"),
        ({"type": "record", "name": "R", "fields": []}, "not a record with fields"),
    ],
)
def test_sources_that_cannot_be(schema: Any, reason: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(TopologyError, match=reason):
        source_avro(Avro(schema=text), ["t"], "file.py:1")


def test_formats_check_their_arguments_and_hide_passwords() -> None:
    with pytest.raises(ConfigError, match="needs a schema registry or a schema"):
        Avro()
    with pytest.raises(ConfigError, match="no address"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(ConfigError, match="subject"):
        Avro(schema="{}", subject="s")
    for url in ("http://user:secret@h:1", "http://h:1,https://user:secret@i:1"):  # errors and logs show addresses
        with pytest.raises(ConfigError, match="password") as raised:
            SchemaRegistry(url)
        assert "secret" not in str(raised.value) + "".join(raised.value.__notes__)
    registry = SchemaRegistry("http://h:1", {"basic.auth.user.info": "user:secret"})
    assert "secret" not in repr(Avro(registry=registry))
