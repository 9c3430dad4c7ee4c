"""JSON Schema to columns and back: what Confluent's and Connect's schemas look like, and what has no columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType

from headrace.spark.formats.json_schema_types import JsonSchemaError, check_writable, json_schema_of, parse_json_schema


def columns_of(**properties: Any) -> str:
    found = parse_json_schema(json.dumps({"type": "object", "properties": properties})).spark
    return found.simpleString().removeprefix("struct<").removesuffix(">")


def columns(ddl: str) -> StructType:
    """The columns of a DDL without types that Spark would need a session for."""
    names = {
        "string": '"string"', "bigint": '"long"', "int": '"integer"', "smallint": '"short"', "tinyint": '"byte"',
        "double": '"double"', "float": '"float"', "boolean": '"boolean"', "date": '"date"', "timestamp": '"timestamp"',
        "binary": '"binary"', "decimal": '"decimal(10,2)"',
        "strings": '{"type": "array", "elementType": "string", "containsNull": true}',
        "map": '{"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": true}',
    }  # fmt: skip
    fields = [each.split() for each in ddl.split(", ")]
    described = [
        {"name": name, "type": json.loads(names[kind]), "nullable": True, "metadata": {}} for name, kind in fields
    ]
    return StructType.fromJson({"type": "struct", "fields": described})


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "string"}, "a:string"),
        ({"type": "integer"}, "a:bigint"),
        ({"type": "integer", "connect.type": "int16"}, "a:smallint"),
        ({"type": "number"}, "a:double"),
        ({"type": "number", "connect.type": "float32"}, "a:float"),
        ({"type": "boolean"}, "a:boolean"),
        ({"type": "string", "format": "date"}, "a:date"),
        ({"type": "string", "format": "date-time"}, "a:timestamp"),
        ({"type": "string", "format": "uuid"}, "a:string"),
        ({"type": "string", "contentEncoding": "base64"}, "a:binary"),
        ({"type": ["null", "string"]}, "a:string"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "a:bigint"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None}, "a:boolean"),
        ({"enum": ["x", "y"]}, "a:string"),
        ({"enum": ["x", None]}, "a:string"),
        ({"type": "array", "items": {"type": "string"}}, "a:array<string>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "a:map<string,bigint>"),
        ({"type": "object", "properties": {"b": {"type": "string"}}}, "a:struct<b:string>"),
        ({"type": "integer", "minimum": 0}, "a:bigint"),
    ],
)
def test_columns_of_a_schema(schema: dict[str, Any], wanted: str) -> None:
    assert columns_of(a=schema) == wanted


def test_definitions_are_followed() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/x~1y"}, "b": {"$ref": "#/$defs/z"}},
        "definitions": {"x/y": {"type": "integer"}},
        "$defs": {"z": {"type": "object", "properties": {"c": {"$ref": "#/definitions/x~1y"}}}},
    }
    assert parse_json_schema(json.dumps(schema)).spark.simpleString() == "struct<a:bigint,b:struct<c:bigint>>"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, "a has no type"),
        (True, "a allows any value"),
        ({"type": ["string", "integer"]}, "a has several types"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, r"a has several alternatives \(oneOf\)"),
        ({"type": "array"}, r"a\[\] allows any value"),
        ({"type": "object"}, "a is an object without properties"),
        ({"type": "text"}, "'text', which JSON Schema does not know"),
        ({"$ref": "#"}, "another document"),
        ({"$ref": "other.json"}, "another document"),
        ({"$ref": "#/definitions/b"}, "which is not there"),
    ],
)
def test_schemas_without_columns_name_the_part(schema: Any, reason: str) -> None:
    with pytest.raises(JsonSchemaError, match=reason):
        columns_of(a=schema)


def test_a_schema_that_contains_itself_has_no_columns() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}
    with pytest.raises(JsonSchemaError, match=r"node\.next contains itself|next contains itself"):
        parse_json_schema(json.dumps({"$ref": "#/definitions/node", "definitions": {"node": node}}))


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "string"}', '{"type": "object"}'])
def test_what_is_no_object_has_no_columns(text: str) -> None:
    with pytest.raises(JsonSchemaError):
        parse_json_schema(text)


def test_the_schema_of_columns_has_these_columns() -> None:
    wanted = columns(
        "a string, b bigint, c int, d smallint, e tinyint, f double, g float, h boolean, i date, j timestamp, "
        "k binary, l strings, m map"
    )
    text = json_schema_of(wanted, "rows")
    assert parse_json_schema(text).spark.simpleString() == wanted.simpleString()
    check_writable(parse_json_schema(text), wanted)
    assert json.loads(text)["required"] == wanted.names, "each column is written, a null as null"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"a": {"type": "integer"}}, "a: string cannot be written as bigint"),
        ({"b": {"type": "string"}}, 'no property for the column "a"'),
        ({"a": {"type": "string"}, "b": {"type": "string"}}, 'requires "b", and there is no such column'),
        ({"a": {"type": "string", "pattern": "x"}}, "a has the keyword pattern, which a sink does not check"),
        ({"a": {"type": "string", "format": "date"}}, "a: string cannot be written as date"),
        ({"a": {"oneOf": [{"type": "null"}, {"enum": ["x"]}]}}, "a has the keyword enum"),
    ],
)
def test_columns_that_a_schema_does_not_take(properties: dict[str, Any], reason: str) -> None:
    schema = parse_json_schema(
        json.dumps(
            {"type": "object", "properties": properties, "required": [name for name in properties if name == "b"]}
        )
    )
    if set(properties) == {"b"}:
        schema = parse_json_schema(json.dumps({"type": "object", "properties": properties}))
    with pytest.raises(JsonSchemaError, match=reason):
        check_writable(schema, columns("a string"))


@pytest.mark.parametrize(
    ("ddl", "schema"),
    [
        ("a date", {"type": "string"}),
        ("a timestamp", {"type": "string", "format": "date-time"}),
        ("a int", {"type": "number"}),
        ("a decimal", {"type": "number"}),
        ("a bigint", {"type": "integer", "connect.type": "int32"}),
    ],
)
def test_columns_that_a_schema_takes(ddl: str, schema: dict[str, Any]) -> None:
    check_writable(parse_json_schema(json.dumps({"type": "object", "properties": {"a": schema}})), columns(ddl))
