"""Protobuf against Google's own library: random schemas and values, damaged bytes, evolution, refusals."""

from __future__ import annotations

import base64
import datetime as dt
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from headrace.errors import ConfigError, HeadraceError, TopologyError
from headrace.formats import Protobuf, SchemaRegistry
from headrace.spark.formats.protobuf import (
    _difference,
    decode_protobuf,
    encode_protobuf,
    sink_protobuf,
    source_protobuf,
)
from headrace.spark.formats.protobuf_decoding import protobuf_reader
from headrace.spark.formats.protobuf_encoding import unsigned_varint
from headrace.spark.formats.protobuf_reference import protobuf_row_reader
from headrace.spark.formats.protobuf_schema import (
    ProtobufSchemaError,
    compile_proto,
    index_path,
    message_at,
    message_of,
    proto_of,
    spark_columns,
)
from headrace.spark.formats.value_parts import NotOfSchema, encode_part

LONG = bool(os.environ.get("HEADRACE_LONG"))

ORDER = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  enum Channel { UNKNOWN = 0; WEB = 1; SHOP = -3; }
  message Line {
    string sku = 1;
    repeated int32 counts = 2;
    optional sint64 cents = 3;
    google.protobuf.Timestamp at = 4;
  }
  message Nothing {}
  int64 id = 1;
  string customer = 2;
  double amount = 3;
  optional int32 rank = 4;
  repeated string tags = 5;
  repeated sint32 numbers = 6;
  map<string, int64> counts = 7;
  google.protobuf.Timestamp placed = 8;
  Line first = 9;
  repeated Line lines = 10;
  Channel channel = 11;
  oneof payment { string card = 12; uint64 cash = 13; Line voucher = 14; }
  fixed32 checksum = 15;
  bytes raw = 16;
  bool done = 17;
  float weight = 18;
  map<int32, Line> by_place = 19;
  repeated Channel channels = 20;
  sfixed64 position = 1000;
  uint32 size = 21;
  Nothing nothing = 22;
  repeated fixed64 words = 23 [packed = false];
}
"""
OLD = """syntax = "proto2";
message Event {
  enum Kind { A = 3; B = 5; }
  required int32 id = 1;
  optional Kind kind = 2;
  optional string text = 3 [default = "none"];
  repeated int32 plain = 4;
  repeated int32 packed = 5 [packed = true];
  message Inner { required bool ok = 1; repeated Kind kinds = 2; }
  optional Inner inner = 6;
}
"""


def message_class(text: str, name: str | None = None) -> Any:
    file = compile_proto(text)
    return GetMessageClass(file.pool.FindMessageTypeByName(message_of(text, (), name).name))


def same(mine: Any, theirs: Any) -> bool:
    """Whether a value of ours is what the reference read; pyarrow returns maps as lists of pairs."""
    if isinstance(theirs, dict) and isinstance(mine, list):
        return len(mine) == len(theirs) and all(key in theirs and same(value, theirs[key]) for key, value in mine)
    if isinstance(theirs, dict):
        return mine is not None and mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return mine is not None and len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs) or (mine != mine and theirs != theirs)


def read_both(values: Sequence[bytes], text: str) -> tuple[list[Any], dict[int, str], list[tuple[Any, Any]]]:
    """Return (our rows, our reasons, what the reference says of each value)."""
    protobuf = Protobuf(schema=text)
    names = spark_columns(message_of(text, (), None)).names
    batch, bad = decode_protobuf(pa.array(values, pa.binary()), protobuf, names)
    assert batch.num_rows == len(values)
    reference = protobuf_row_reader(protobuf)
    return batch.to_pylist(), {row.index: row.reason for row in bad}, [reference(value) for value in values]


# -- random values -----------------------------------------------------------------------------------------------------

_INTEGERS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), st.integers(0, 2**64 - 1)),
}
_KINDS = {
    **_INTEGERS,
    "double": st.floats(),
    "float": st.floats(width=32),
    "bool": st.booleans(),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
}


def fill(data: Any, message: Any, kind: Any) -> Any:
    """Fill a message of Google's library with random values."""
    for field in kind.fields:
        if not data.draw(st.booleans()):
            continue
        if field.is_map:
            key, value = field.message.fields
            target = getattr(message, field.name)
            for _ in range(data.draw(st.integers(0, 3))):
                drawn = data.draw(_KINDS[key.kind])
                if value.message is not None:
                    fill(data, target[drawn], value.message)
                else:
                    target[drawn] = data.draw(_scalars(value))
        elif field.message is not None:
            if field.repeated:
                for _ in range(data.draw(st.integers(0, 3))):
                    fill(data, getattr(message, field.name).add(), field.message)
            elif field.message.name == "google.protobuf.Timestamp":
                getattr(message, field.name).FromMicroseconds(data.draw(st.integers(-(10**15), 10**15)))
            else:
                inner = getattr(message, field.name)
                inner.SetInParent()
                fill(data, inner, field.message)
        elif field.repeated:
            getattr(message, field.name).extend(data.draw(st.lists(_scalars(field), max_size=4)))
        else:
            setattr(message, field.name, data.draw(_scalars(field)))
    return message


def _scalars(field: Any) -> Any:
    if field.enum is not None:
        known = st.sampled_from([number for _, number in field.enum.numbers])
        return known if field.enum.closed else st.one_of(known, st.integers(-5, 9))
    return _KINDS[field.kind]


@settings(max_examples=600 if LONG else 60, deadline=None)
@given(st.data())
def test_random_values_are_read_and_written_as_by_googles_library(data: Any) -> None:
    kind, made = message_of(ORDER, (), None), message_class(ORDER)
    messages = [fill(data, made(), kind) for _ in range(data.draw(st.integers(1, 4)))]
    values = [message.SerializeToString() for message in messages]
    rows, bad, reference = read_both(values, ORDER)
    assert not bad
    assert all(same(row, theirs) for row, (theirs, _) in zip(rows, reference, strict=True)), (rows, reference)

    # Names of enums without a number, and two fields of one oneof, cannot be columns of a sink.
    names = [name for name in spark_columns(kind).names if name not in {"channel", "channels", "card", "voucher"}]
    protobuf = Protobuf(schema=ORDER)
    batch, _ = decode_protobuf(pa.array(values, pa.binary()), protobuf, names)
    for value, message in zip(encode_protobuf(batch, names, protobuf).to_pylist(), messages, strict=True):
        for name in ("channel", "channels", "card", "voucher", "nothing"):
            message.ClearField(name)
        if not any(message.counts) and not message.by_place:  # a map's entries have no order
            assert value == message.SerializeToString(deterministic=True)
        assert made.FromString(value).SerializeToString(deterministic=True) == message.SerializeToString(
            deterministic=True
        )


@st.composite
def schemas(draw: Any) -> str:
    """A file with one message of random fields, some of them of a nested message."""
    lines = {}
    for message in ("Inner", "Value"):
        numbers = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True))
        fields = []
        for number in numbers:
            kind = draw(st.sampled_from([*_KINDS, *(["Inner"] if message == "Value" else [])]))
            label = draw(st.sampled_from(["", "optional ", "repeated ", "map"]))
            declared = f"map<{draw(st.sampled_from(['string', 'int64', 'bool', 'uint32']))}, {kind}>"
            fields.append(f"  {declared if label == 'map' else label + kind} f{number} = {number};")
        lines[message] = "\n".join(fields)
    inner = f"message Inner {{\n{lines['Inner']}\n}}"
    return f'syntax = "proto3";\nmessage Value {{\n{inner}\n{lines["Value"]}\n}}'


@settings(max_examples=200 if LONG else 8, deadline=None)
@given(st.data())
def test_random_schemas_agree_with_googles_library(data: Any) -> None:
    text = data.draw(schemas())
    kind, made = message_of(text, (), None), message_class(text)
    values = [fill(data, made(), kind).SerializeToString() for _ in range(5)]
    rows, bad, reference = read_both(values, text)
    assert not bad
    assert all(same(row, theirs) for row, (theirs, _) in zip(rows, reference, strict=True)), (rows, reference)
    protobuf = Protobuf(schema=text)
    names = spark_columns(kind).names
    batch, _ = decode_protobuf(pa.array(values, pa.binary()), protobuf, names)
    for ours, theirs in zip(encode_protobuf(batch, names, protobuf).to_pylist(), values, strict=True):
        wanted = made.FromString(theirs).SerializeToString(deterministic=True)
        assert made.FromString(ours).SerializeToString(deterministic=True) == wanted


@settings(max_examples=3000 if LONG else 100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_bad_records_or_decoded_like_googles_library(data: Any) -> None:
    text = data.draw(st.sampled_from([ORDER, OLD]))
    kind, made = message_of(text, (), None), message_class(text)
    values = []
    for at in range(3):
        message = made()
        if text == OLD:
            message.id = at
        values.append(bytearray(fill(data, message, kind).SerializePartialToString()))
    for _ in range(data.draw(st.integers(1, 4))):
        if values[1]:
            values[1][data.draw(st.integers(0, len(values[1]) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        values[1] += values[1][: data.draw(st.integers(0, len(values[1])))]
    elif data.draw(st.booleans()):
        values[1] = values[1][: data.draw(st.integers(0, len(values[1])))]
    try:
        rows, bad, reference = read_both([bytes(value) for value in values], text)
    except OverflowError:  # a time that Arrow has and Python has not
        return
    for at, (row, reason) in enumerate(reference):
        assert (at in bad) == (reason is not None), (at, bad, reason)
        assert reason is not None or same(rows[at], row), (rows[at], row)
    some = data.draw(st.lists(st.sampled_from(spark_columns(kind).names), unique=True))
    _, refused = decode_protobuf(pa.array([bytes(value) for value in values], pa.binary()), Protobuf(schema=text), some)
    assert {row.index: row.reason for row in refused} == bad


# -- the bytes, by hand ------------------------------------------------------------------------------------------------


def tag(number: int, wire: int) -> bytes:
    assert number < 16
    return bytes([number << 3 | wire])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (tag(1, 0), "id: the message ends within it"),
        (tag(1, 0) + b"\xff" * 10 + b"\x01", "id: the message ends within it"),
        (tag(2, 2) + b"\x05ab", "customer: the message ends within it"),
        (tag(3, 1) + b"1234567", "amount: the message ends within it"),
        (tag(2, 2) + b"\x02\xff\xfe", "customer: it is not UTF-8"),
        (tag(5, 2) + b"\x01\xff", "tags: it is not UTF-8"),
        (tag(9, 2) + b"\x03" + tag(1, 2) + b"\x01\xff", "first.sku: it is not UTF-8"),
        (tag(9, 2) + b"\x02" + tag(1, 2) + b"\x01", "first.sku: the message ends within it"),
        (tag(6, 2) + b"\x02\x01\x80", "numbers: the message ends within it"),
        (tag(8, 2) + b"\x02" + tag(2, 0) + b"\xff", "placed.nanos: the message ends within it"),
        (tag(8, 2) + b"\x06" + tag(2, 0) + b"\x80\x94\xeb\xdc\x03", "placed: it is no time between the years"),
        (b"\x00", "the message: no field has such a tag"),
        (b"\x07", "the message: no field has such a tag"),
        (bytes([14 << 3 | 4]), "a group of fields does not end, or ends without beginning"),
        (b"\xfb\x01\xfc\x02", "a group of fields does not end, or ends without beginning"),
        (b"\xfb\x01" * 101, "a group of fields does not end, or ends without beginning"),
    ],
)
def test_bad_bytes_are_told_by_field(value: bytes, reason: str) -> None:
    rows, bad, reference = read_both([b"", value, b"\x08\x07"], ORDER)
    assert list(bad) == [1]
    assert reason in bad[1]
    assert set(rows[1].values()) == {None}
    assert rows[2]["id"] == 7
    assert reference[1][1] is not None


def test_fields_that_occur_twice_are_merged_or_replaced() -> None:
    line = bytes([9 << 3 | 2])
    once = line + b"\x03" + tag(1, 2) + b"\x01a"
    again = line + b"\x02" + tag(2, 0) + b"\x05"
    card, voucher = bytes([12 << 3 | 2]) + b"\x01x", bytes([14 << 3 | 2])
    values = [
        once + again + tag(1, 0) + b"\x01" + tag(1, 0) + b"\x02",
        voucher + b"\x03" + tag(1, 2) + b"\x01a" + card + voucher + b"\x02" + tag(2, 0) + b"\x05",
        voucher + b"\x03" + tag(1, 2) + b"\x01a" + card,
        b"\xfb\x01\x08\x01\xfc\x01" + tag(1, 0) + b"\x03",  # a group of an unknown field
    ]
    rows, bad, reference = read_both(values, ORDER)
    assert not bad
    assert all(same(row, theirs) for row, (theirs, _) in zip(rows, reference, strict=True))
    assert (rows[0]["id"], rows[0]["first"]["sku"], rows[0]["first"]["counts"]) == (2, "a", [5])
    assert (rows[1]["card"], rows[1]["voucher"]["sku"], rows[1]["voucher"]["counts"]) == (None, "", [5])
    assert (rows[2]["card"], rows[2]["voucher"]) == ("x", None)
    assert rows[3]["id"] == 3


def test_proto2_presence_closed_enums_and_required_fields() -> None:
    values = [
        b"\x08\x01",
        b"\x08\x01\x10\x03\x10\x04",  # 4 is no number of the closed enum: the field keeps what it has
        b"\x10\x03",  # no id
        b"\x08\x01\x32\x00",  # an inner message without its required field
        b"\x08\x01\x32\x04\x08\x01\x10\x09",
        b"\x08\x01\x22\x02\x01\x02\x20\x03\x28\x04\x2a\x01\x05",  # lists that are packed and not, against the schema
    ]
    rows, bad, reference = read_both(values, OLD)
    assert sorted(bad) == [2, 3]
    assert "id: it is required" in bad[2]
    assert "inner.ok: it is required" in bad[3]
    assert [reason is None for _, reason in reference] == [True, True, False, False, True, True]
    assert all(same(rows[at], reference[at][0]) for at in (0, 1, 4, 5))
    assert rows[0] == {"id": 1, "kind": None, "text": None, "plain": [], "packed": [], "inner": None}
    assert rows[1]["kind"] == "A"
    assert rows[4]["inner"] == {"ok": True, "kinds": []}
    assert (rows[5]["plain"], rows[5]["packed"]) == ([1, 2, 3], [4, 5])


def test_tombstones_are_null_and_empty_messages_are_defaults() -> None:
    text = 'syntax = "proto3"; message M { int32 a = 1; optional int32 b = 2; repeated int32 c = 3; }'
    batch, bad = decode_protobuf(
        pa.array([None, b"", b"\x08\x02"], pa.binary()), Protobuf(schema=text), ["a", "b", "c"]
    )
    assert not bad
    assert batch.to_pylist() == [{"a": None, "b": None, "c": None}, {"a": 0, "b": None, "c": []},
                                 {"a": 2, "b": None, "c": []}]  # fmt: skip


def test_unsigned_varints() -> None:
    numbers = [0, 1, 127, 128, 300, 2**32, 2**63 - 1, -1, -(2**63)]
    made = message_class('syntax = "proto3"; message M { repeated int64 a = 1 [packed = false]; }')
    wanted = [made(a=[number]).SerializeToString()[1:] for number in numbers]
    assert encode_part(unsigned_varint(np.array(numbers, np.int64)), b"").to_pylist() == wanted


# -- schemas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message {", "it is no .proto file: line 1:"),
        ('syntax = "proto3"; message M { M inner = 1; }', "inner: M contains itself"),
        ('syntax = "proto3"; enum E { A = 0; }', "the file declares no message"),
        ('syntax = "proto3"; message M { message N {} N n = 1; }', "the message has no fields"),
        ('syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 2; } }', "groups of proto2"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 A = 2; }', "which ignores case"),
        ('syntax = "proto3"; import "other.proto"; message M { int32 a = 1; }', "other.proto"),
    ],
)
def test_sources_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(TopologyError) as raised:
        source_protobuf(Protobuf(schema=text), ["t"], "app.py:3")
    assert reason in str(raised.value)


def test_messages_of_a_file_by_name_and_by_place() -> None:
    text = 'syntax = "proto3"; package p.q; message A { int32 a = 1; '
    text += "message B { message C { string c = 1; } } } message D {}"
    places = {None: (0,), "A": (0,), "A.B": (0, 0), "p.q.A.B.C": (0, 0, 0), "D": (1,)}
    for name, path in places.items():
        assert index_path(text, (), name) == path
        assert message_at(text, (), path) == message_of(text, (), name)
    for name in ("E", "A.E", "q.A"):
        with pytest.raises(ProtobufSchemaError, match="declares no message"):
            message_of(text, (), name)
    for path in ((2,), (0, 1), (-1,), ()):
        with pytest.raises(ProtobufSchemaError):
            message_at(text, (), path)


def test_serialized_descriptors_are_schemas_too() -> None:
    serialized = base64.b64encode(compile_proto(ORDER).serialized_pb).decode()
    assert message_of(serialized, (), None) == message_of(ORDER, (), None)
    with pytest.raises(ProtobufSchemaError, match="is a serialized descriptor"):
        compile_proto(serialized, (("a.proto", serialized),))


def test_imports_are_found_and_do_not_leave_their_folder() -> None:
    text = 'syntax = "proto3"; import "shop/money.proto"; message M { shop.Money paid = 1; }'
    money = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
    found = spark_columns(message_of(text, (("shop/money.proto", money),), None))
    assert found.simpleString() == "struct<paid:struct<units:bigint>>"
    with pytest.raises(ProtobufSchemaError, match="leaves its folder"):
        compile_proto(text, (("../../money.proto", money),))


M = 'syntax = "proto3"; message M {{ {} }}'


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("int32 a = 1;", "int64 a = 1;", None),
        ("uint32 a = 1;", "int64 a = 1;", None),
        ("string a = 1;", "bytes a = 1; int32 b = 2;", None),
        ("int32 a = 1; string gone = 2;", "int32 renamed = 1;", None),
        ("int32 a = 1;", "repeated int32 a = 1;", None),
        ("enum E { X = 0; } E a = 1;", "int32 a = 1;", None),
        ("int64 a = 1;", "int32 a = 1;", "a: int64 cannot be read as int32"),
        ("sint32 a = 1;", "int32 a = 1;", "a: sint32 cannot be read as int32"),
        ("int64 a = 1;", "uint64 a = 1;", "a: int64 cannot be read as uint64"),
        ("repeated int32 a = 1;", "int32 a = 1;", "a: repeated int32 cannot be read as int32"),
        ("map<string, int32> a = 1;", "map<string, string> a = 1;", "a.value: int32 cannot be read as string"),
        ("message I { int32 b = 1; } I a = 1;", "message I { bool b = 1; } I a = 1;", "a.b: int32 cannot be read"),
    ],
)
def test_writers_schemas_that_can_be_read_as_the_sources(writer: str, reader: str, reason: str | None) -> None:
    found = _difference(M.format(writer), (), (0,), M.format(reader), (), None)
    assert found is None if reason is None else reason in str(found)


def test_another_message_is_not_read_as_the_sources() -> None:
    both = 'syntax = "proto3"; message Order { int64 id = 1; } message Refund { int64 id = 1; }'
    assert _difference(both, (), (0,), both, (), None) is None
    assert "it is a message Refund" in str(_difference(both, (), (1,), both, (), None))
    assert "no message at [2]" in str(_difference(both, (), (2,), both, (), None))


# -- sinks -------------------------------------------------------------------------------------------------------------


INT, BIGINT, STRING = types.IntegerType(), types.LongType(), types.StringType()


def columns(**kinds: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


def sunk(rows: types.StructType, fields: str) -> Protobuf:
    return sink_protobuf(Protobuf(schema=M.format(fields)), "t", rows, "app.py:3")


@pytest.mark.parametrize(
    ("rows", "fields", "reason"),
    [
        (columns(a=INT, b=INT), "int32 a = 1;", "b: the message M has no field for this column"),
        (columns(a=BIGINT), "int32 a = 1;", "a: bigint cannot be written as int32"),
        (columns(a=STRING), "int32 a = 1;", "a: string cannot be written as int32"),
        (columns(a=types.ArrayType(INT)), "int32 a = 1;", "a: array<int> cannot be written as int32"),
        (columns(a=INT), "repeated int32 a = 1;", "a: int cannot be written as repeated int32"),
        (columns(a=types.MapType(STRING, INT)), "map<string, string> a = 1;", "cannot be written as a map"),
        (columns(a=types.DateType()), "string a = 1;", "a: date cannot be written as string"),
        (columns(a=columns(b=INT, c=INT)), "message I { int32 b = 1; } I a = 1;", "a.c: the message M.I has no field"),
        (columns(a=STRING, b=STRING), "oneof o { string a = 1; string b = 2; }", "two columns are fields of one oneof"),
    ],
)
def test_sinks_that_cannot_be(rows: types.StructType, fields: str, reason: str) -> None:
    with pytest.raises(TopologyError) as raised:
        sunk(rows, fields)
    assert reason in str(raised.value)


def test_a_sink_without_a_schema_is_refused_with_one_to_keep() -> None:
    rows = columns(
        a=INT,
        at=types.TimestampType(),
        tags=types.ArrayType(STRING),
        m=types.MapType(STRING, BIGINT),
        s=columns(x=types.FloatType()),
    )
    with pytest.raises(HeadraceError, match="a Protobuf sink needs a schema") as raised:
        sink_protobuf(Protobuf(registry=SchemaRegistry("http://127.0.0.1:1")), "t", rows, "app.py:3")
    text = proto_of(rows, "Value")
    assert text in raised.value.fix
    assert spark_columns(message_of(text, (), None)).simpleString() == rows.simpleString()
    with pytest.raises(TopologyError, match="Protobuf has no type for decimal"):
        sink_protobuf(
            Protobuf(registry=SchemaRegistry("http://127.0.0.1:1")), "t", columns(a=types.DecimalType(9, 2)), "app.py:3"
        )


@pytest.mark.parametrize(
    ("fields", "column", "reason"),
    [
        ("int32 a = 1;", pa.array([1, None], pa.int32()), "a is null, which the schema cannot tell from its default"),
        ("repeated int32 a = 1;", pa.array([[1], None], pa.list_(pa.int32())), "a is null, and Protobuf has empty"),
        ("repeated int32 a = 1;", pa.array([[1, None]], pa.list_(pa.int32())), "a[] is null"),
        ("uint32 a = 1;", pa.array([1, -1], pa.int64()), "a: -1 is no uint32"),
        ("uint32 a = 1;", pa.array([2**32], pa.int64()), f"a: {2**32} is no uint32"),
        ("uint64 a = 1;", pa.array([-1], pa.decimal128(20, 0)), "a: -1 is no uint64"),
        ("uint64 a = 1;", pa.array([2**64], pa.decimal128(20, 0)), f"a: {2**64} is no uint64"),
        ("enum E { X = 0; } E a = 1;", pa.array(["X", "Y"]), "a: 'Y' is no value of the enum M.E"),
        (
            "google.protobuf.Timestamp a = 1;",
            pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC")),
            "a timestamp outside of the years 1 to 9999",
        ),
    ],
)
def test_rows_that_the_schema_has_no_place_for(fields: str, column: pa.Array, reason: str) -> None:
    imported = 'import "google/protobuf/timestamp.proto"; ' if "Timestamp" in fields else ""
    text = M.format(fields).replace("message", imported + "message", 1)
    with pytest.raises(NotOfSchema) as raised:
        encode_protobuf(pa.RecordBatch.from_arrays([column], names=["a"]), ["a"], Protobuf(schema=text))
    assert reason in str(raised.value)


def test_nulls_and_defaults_of_optional_fields_are_told_apart() -> None:
    text = M.format("optional int32 a = 1; optional string b = 2; message I { int32 x = 1; } I c = 3; int32 d = 4;")
    rows = [
        {"a": None, "b": None, "c": None, "d": 0},
        {"a": 0, "b": "", "c": {"x": 0}, "d": 5},
        {"a": -1, "b": "é", "c": {"x": 7}, "d": -5},
    ]
    kinds = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.struct([("x", pa.int32())])), ("d", pa.int32())])
    batch = pa.RecordBatch.from_pylist(rows, kinds)
    for piece, wanted in ((batch, rows), (batch.slice(1), rows[1:])):
        values = encode_protobuf(piece, kinds.names, Protobuf(schema=text))
        again, bad = decode_protobuf(values, Protobuf(schema=text), kinds.names)
        assert not bad
        assert again.to_pylist() == wanted


def test_slices_of_lists_and_maps() -> None:
    text = M.format("repeated int32 a = 1; map<string, string> b = 2; repeated string c = 3;")
    kinds = pa.schema(
        [("a", pa.list_(pa.int32())), ("b", pa.map_(pa.string(), pa.string())), ("c", pa.list_(pa.string()))]
    )
    rows = [{"a": [i] * i, "b": [(str(j), "v" * j) for j in range(i)], "c": [str(i)] * (3 - i)} for i in range(4)]
    batch = pa.RecordBatch.from_pylist(rows, kinds)
    values = encode_protobuf(batch.slice(1, 2), kinds.names, Protobuf(schema=text))
    assert decode_protobuf(values, Protobuf(schema=text), kinds.names)[0].to_pylist() == rows[1:3]
    sliced = encode_protobuf(batch, kinds.names, Protobuf(schema=text)).slice(2)
    assert decode_protobuf(sliced, Protobuf(schema=text), ["a"])[0].to_pylist() == [{"a": row["a"]} for row in rows[2:]]


def test_times_keep_microseconds_and_lose_nanoseconds() -> None:
    text = 'import "google/protobuf/timestamp.proto"; ' + M.format("google.protobuf.Timestamp a = 1;")
    text = text.replace('syntax = "proto3"; ', "")
    text = 'syntax = "proto3"; ' + text
    made = message_class(text)
    message = made()
    message.a.seconds, message.a.nanos = -1, 999_999_999
    rows, bad, reference = read_both([message.SerializeToString()], text)
    assert not bad
    assert rows[0]["a"] == reference[0][0]["a"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)


def test_formats_check_their_arguments() -> None:
    with pytest.raises(ConfigError, match="needs a schema registry or a schema"):
        Protobuf()
    with pytest.raises(ConfigError, match="subject="):
        Protobuf(schema="x", subject="y")
    assert hash(Protobuf(schema="x", imports={"a": "b"})) == hash(Protobuf(schema="x", imports={"a": "b"}))
    assert protobuf_reader(ORDER, (), None) is protobuf_reader(ORDER, (), None)
