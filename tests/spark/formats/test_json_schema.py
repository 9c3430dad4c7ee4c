"""Values of a JSON Schema: headers, nulls, numbers, and random rows judged by the library `jsonschema`."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.formats import JsonSchema, SchemaRegistry
from headrace.spark.formats import record_values
from headrace.spark.formats.json_schema import decode_json_schema, encode_json_schema, sink_json_schema
from headrace.spark.formats.schema_registry import RegisteredSchema, UnknownSchema
from headrace.spark.formats.value_parts import NotOfSchema

PLACE = pa.struct([("city", pa.string()), ("floor", pa.int32())])
TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    # name → Arrow's type, Spark's, a random value
    "text": (pa.string(), "string", lambda r: r.choice(["", "ä\n", '"', "x" * 30])),
    "count": (pa.int64(), "long", lambda r: r.randint(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), "short", lambda r: r.randint(-300, 300)),
    "ratio": (pa.float64(), "double", lambda r: r.choice([0.0, -1.5, 1e300, 0.1])),
    "seen": (pa.bool_(), "boolean", lambda r: r.random() < 0.5),
    "tags": (
        pa.list_(pa.string()),
        {"type": "array", "elementType": "string", "containsNull": True},
        lambda r: r.choice([[], ["a", None], ["b"]]),
    ),
    "place": (
        PLACE,
        {
            "type": "struct",
            "fields": [
                {"name": "city", "type": "string", "nullable": True, "metadata": {}},
                {"name": "floor", "type": "integer", "nullable": True, "metadata": {}},
            ],
        },
        lambda r: r.choice([{"city": None, "floor": 1}, {"city": "x", "floor": None}]),
    ),
    "sums": (
        pa.map_(pa.string(), pa.int64()),
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        lambda r: r.choice([[], [("a", 1), ("b", None)]]),
    ),
}


def spark_columns(names: list[str]) -> StructType:
    fields = [{"name": name, "type": TYPES[name][1], "nullable": True, "metadata": {}} for name in names]
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize("seed", range(20))
def test_random_rows_are_valid_and_come_back(seed: int) -> None:
    chance = random.Random(seed)
    names = chance.sample(sorted(TYPES), chance.randint(1, len(TYPES)))
    rows = [
        {name: None if chance.random() < 0.2 else TYPES[name][2](chance) for name in names}
        for _ in range(chance.randint(1, 40))
    ]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, TYPES[name][0]) for name in names]))
    serde = sink_json_schema(
        JsonSchema(schema=None, registry=SchemaRegistry("http://x")), "rows", spark_columns(names), ""
    )
    serde = replace(serde, registry=None, subject=None)
    values = encode_json_schema(batch, names, serde)
    assert serde.schema is not None
    validator = jsonschema.Draft7Validator(json.loads(serde.schema))
    for value in values.to_pylist():
        validator.validate(json.loads(value))
    back, bad = decode_json_schema(values.cast(pa.binary()), serde, names, "UTC")
    assert not bad
    assert back.to_pylist() == batch.to_pylist()


def schema_of(**properties: Any) -> JsonSchema:
    return JsonSchema(schema=json.dumps({"type": "object", "properties": properties}))


@pytest.mark.parametrize(
    ("column", "properties", "reason"),
    [
        (pa.array([1, None]), {"a": {"type": "integer"}}, "a is null"),
        (pa.array([1.0, float("nan")]), {"a": {"type": "number"}}, "a is NaN or infinite"),
        (pa.array([float("inf")], pa.float32()), {"a": {"type": ["null", "number"]}}, "a is NaN or infinite"),
        (pa.array([["x", None]]), {"a": {"type": "array", "items": {"type": "string"}}}, r"a\[\] is null"),
        (
            pa.array([{"b": 1}, {"b": None}]),
            {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}},
            r"a\.b is null",
        ),
        (
            pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
            {"a": {"type": "object", "additionalProperties": {"type": "integer"}}},
            r"a\.\* is null",
        ),
    ],
)
def test_values_that_the_schema_forbids_are_not_written(column: pa.Array, properties: Any, reason: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], names=["a"])
    with pytest.raises(NotOfSchema, match=reason):
        encode_json_schema(batch, ["a"], schema_of(**properties))


def test_nulls_of_parents_are_no_nulls_of_their_parts() -> None:
    item = {"type": "object", "properties": {"b": {"type": "integer"}}}
    serde = schema_of(a={"oneOf": [{"type": "null"}, item]})
    batch = pa.RecordBatch.from_arrays([pa.array([{"b": 1}, None])], names=["a"])
    assert encode_json_schema(batch, ["a"], serde).to_pylist() == [b'{"a":{"b":1}}', b'{"a":null}']
    sliced = pa.RecordBatch.from_arrays([pa.array([{"b": None}, {"b": 2}])[1:]], names=["a"])
    assert encode_json_schema(sliced, ["a"], serde).to_pylist() == [b'{"a":{"b":2}}']


def test_headers_are_judged_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def schema_of_id(registry: SchemaRegistry, schema_id: int, kind: str) -> RegisteredSchema:
        if schema_id != 7:
            raise UnknownSchema(f"no schema with the id {schema_id}")
        return RegisteredSchema("{}")

    monkeypatch.setattr(record_values, "schema_of_id", schema_of_id)
    serde = replace(schema_of(n={"type": "integer"}), registry=SchemaRegistry("http://localhost:1"))
    known, unknown = b"\0\0\0\0\x07", b"\0\0\0\0\x09"
    values = [
        known + b'{"n":1}',
        b'{"n":2}',
        None,
        unknown + b'{"n":3}',
        known + b'{"n":"x"}',
        b"\0",
        known + b'{"n":6}',
    ]
    batch, bad = decode_json_schema(pa.array(values, pa.binary()), serde, ["n"], "UTC")
    assert batch.column("n").to_pylist() == [1, None, None, None, None, None, 6]
    reasons = {one.index: one.reason for one in bad}
    assert reasons.keys() == {1, 3, 4, 5}
    assert "zero byte" in reasons[1]
    assert "no schema with the id 9" in reasons[3]
    assert "n is" in reasons[4]
    empty, bad = decode_json_schema(pa.array(values, pa.binary()), serde, [], "UTC")
    assert not empty.columns
    assert {one.index for one in bad} == {1, 3, 4, 5}, "whether a value decodes does not depend on the columns"


def test_a_format_needs_a_schema() -> None:
    with pytest.raises(ConfigError, match="JsonSchema needs a schema registry or a schema"):
        JsonSchema()
