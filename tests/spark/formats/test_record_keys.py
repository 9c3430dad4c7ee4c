"""Keys with a schema as columns and back, beside fastavro, Google's Protobuf and Python's JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace.errors import TopologyError
from headrace.formats import Avro, JsonSchema, Protobuf
from headrace.spark.formats.avro import sink_avro_key, source_avro_key
from headrace.spark.formats.record_keys import decode_keys, encode_keys
from headrace.spark.formats.typed_keys import is_one_to_one, sink_key, source_key
from headrace.spark.formats.value_parts import NotOfSchema
from headrace.spark.topology.nodes import TypedKey

WHERE = "program.py:1"
POINT = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "n", "type": "string"}]}'
ROWS = StructType().add("id", IntegerType()).add("name", StringType()).add("n", LongType())
AVRO_KEYS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "long": ("long", st.integers(-(1 << 63), (1 << 63) - 1)),
    "string": ("string", st.text(max_size=5)),
    "optional": (["null", "string"], st.none() | st.text(max_size=5)),
    "record": (json.loads(POINT), st.fixed_dictionaries({"x": st.integers(-9, 9), "n": st.text(max_size=3)})),
}


@pytest.mark.parametrize("name", AVRO_KEYS)
def test_avro_keys_of_any_type_equal_fastavro(name: str) -> None:
    schema, values = AVRO_KEYS[name]
    parsed = fastavro.parse_schema(schema)

    @settings(max_examples=20, deadline=None, database=None)
    @given(st.lists(st.none() | values.map(lambda value: (value,)), min_size=1, max_size=6))
    def check(rows: list[tuple[Any] | None]) -> None:
        keys = []
        for row in rows:
            target = io.BytesIO()
            if row is not None:
                fastavro.schemaless_writer(target, parsed, row[0])
            keys.append(None if row is None else target.getvalue())
        key = TypedKey(columns=("k",), format="avro", serde=Avro(schema=json.dumps(schema)))
        column, bad = decode_keys(pa.array(keys, pa.binary()), key)
        assert not bad
        assert column.to_pylist() == [None if row is None else row[0] for row in rows]
        if name != "optional":  # a column's null is a record without a key
            assert encode_keys(pa.RecordBatch.from_arrays([column], names=["k"]), key).to_pylist() == keys

    check()


def test_a_bad_key_is_named() -> None:
    key = TypedKey(columns=("k",), format="avro", serde=Avro(schema=POINT))
    column, [bad] = decode_keys(pa.array([None, b"\x02\x06ab"], pa.binary()), key)
    assert column.to_pylist() == [None, None]
    assert (bad.index, bad.reason) == (1, "it is not Avro of its schema: key.n: the record ends within it")


MESSAGE = 'syntax = "proto3"; message Key { optional int32 id = 1; optional string name = 2; }'
PROPERTIES = {"id": {"type": ["null", "integer"]}, "name": {"type": ["null", "string"]}}
DOCUMENT = json.dumps({"type": "object", "properties": PROPERTIES})


@pytest.mark.parametrize("serde", [Protobuf(schema=MESSAGE), JsonSchema(schema=DOCUMENT)], ids=["protobuf", "json"])
def test_keys_of_two_columns_are_read_as_a_struct(serde: Any) -> None:
    written = sink_key(serde, ["id", "name"], ROWS, "t", is_table=False, where=WHERE)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "name": "é", "n": 2}, {"id": None, "name": "b", "n": 3}])
    keys = encode_keys(batch, written)
    read, field = source_key("at", serde, ["t"], "json", StructType(), WHERE)
    assert field.dataType.simpleString() in {"struct<id:int,name:string>", "struct<id:bigint,name:string>"}
    column, bad = decode_keys(pa.concat_arrays([keys, pa.array([None, b"\xff"], pa.binary())]), read)
    assert column.to_pylist() == [{"id": 1, "name": "é"}, {"id": None, "name": "b"}, None, None]
    assert [row.index for row in bad] == [3]
    # The struct that a source reads is written as the same key.
    struct = StructType([field])
    again = sink_key(serde, ["at"], struct, "t", is_table=False, where=WHERE)
    assert encode_keys(pa.RecordBatch.from_arrays([column[:3]], names=["at"]), again).to_pylist() == [
        *keys.to_pylist(),
        None,
    ]
    table = sink_key(serde, ["at"], struct, "t", is_table=True, where=WHERE)
    with pytest.raises(NotOfSchema, match="at is null, and the rows of a table need a key"):
        encode_keys(pa.RecordBatch.from_arrays([column], names=["at"]), table)


def test_avro_schemas_of_keys() -> None:
    avro = Avro(schema="[]")
    assert sink_avro_key(Avro(schema='"long"'), "t", StructField("id", IntegerType()), WHERE).schema == '"long"'
    one = sink_key(Avro(registry=_registry()), ["id"], ROWS, "t", is_table=False, where=WHERE)
    assert (one.serde, one.is_record) == (Avro(registry=_registry(), schema='"int"', subject="t-key"), False)
    two = sink_key(Avro(registry=_registry()), ["id", "name"], ROWS, "t", is_table=False, where=WHERE)
    assert two.is_record
    with pytest.raises(TopologyError, match="these keys cannot be written as Avro"):
        sink_key(Avro(schema='"int"'), ["name"], ROWS, "t", is_table=False, where=WHERE)
    with pytest.raises(TopologyError, match="the Avro schema of the keys cannot be read as a column"):
        source_avro_key(avro, "key", ["t"], WHERE)
    assert [is_one_to_one(name) for name in ("long", "double", "avro", "json_schema")] == [True, False, False, False]


def _registry() -> Any:
    from headrace.formats import SchemaRegistry

    return SchemaRegistry("http://localhost:8081")
