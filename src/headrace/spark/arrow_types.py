"""Spark's types as Arrow's, the way they cross between the JVM and the Python workers.

Only the flat types that rows hold, and lists that aggregates return; other nested columns pass through the pipeline as
they came.
"""

from __future__ import annotations

import functools
import json
import re

import pyarrow as pa

from headrace.errors import TopologyError

__all__ = ["FLAT", "arrow_type", "arrow_types", "result_arrow_type", "schema_of", "type_json_of"]

# By the name that Spark gives a type (`DataType.typeName()`).
FLAT = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_SIZED_TEXT = re.compile(r"(varchar|char|string)\b")


@functools.cache
def arrow_type(type_json: str) -> pa.DataType:
    """The Arrow type of a column whose Spark type is `type_json` (`DataType.json()`); timestamps are µs in UTC."""
    name = json.loads(type_json) if type_json.startswith(('"', "{")) else type_json
    if isinstance(name, str):
        if name in FLAT:
            return FLAT[name]
        if decimal := _DECIMAL.fullmatch(name):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if _SIZED_TEXT.match(name):
            return pa.string()
    raise TopologyError(
        "not-supported-here",
        f"a store or an internal topic cannot hold a column of type {type_json}",
        "Group and aggregate by columns of flat types (numbers, strings, binaries, dates, timestamps, booleans).",
    )


@functools.cache
def result_arrow_type(type_json: str) -> pa.DataType:
    """Return the Arrow type of an aggregate's result: a flat type, or a list of flat values or of structs of them."""
    if not type_json.startswith("{"):
        return arrow_type(type_json)
    found = json.loads(type_json)
    if found["type"] == "array":
        return pa.list_(result_arrow_type(json.dumps(found["elementType"])))
    fields = found["fields"] if found["type"] == "struct" else ()
    return pa.struct([(field["name"], arrow_type(json.dumps(field["type"]))) for field in fields])


def type_json_of(kind: pa.DataType) -> str:
    """Return the Spark type, as JSON, of a column of flat values: `arrow_type` of it is `kind`."""
    if pa.types.is_decimal(kind):
        return f'"decimal({kind.precision},{kind.scale})"'
    [name] = [name for name, one in FLAT.items() if one == kind]
    return f'"{name}"'


def arrow_types(columns: tuple[tuple[str, str], ...]) -> tuple[pa.DataType, ...]:
    """Arrow types of (name, type JSON) pairs."""
    return tuple(arrow_type(type_json) for _name, type_json in columns)


def schema_of(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """Arrow schema of (name, type JSON) pairs."""
    return pa.schema(zip([name for name, _ in columns], arrow_types(columns), strict=True))
