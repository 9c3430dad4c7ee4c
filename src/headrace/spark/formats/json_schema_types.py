"""JSON Schema and Spark types: which columns a schema has, and which schema columns have.

Drafts 4 to 2020-12, as far as a schema describes columns: objects, arrays, maps, texts, numbers, and nulls beside them.
`connect.type` (int8 … int64, float32, float64) is that of Kafka Connect's converter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["JsonSchemaError", "JsonType", "check_writable", "json_schema_of", "parse_json_schema"]

JsonKind: TypeAlias = Literal["string", "integer", "number", "boolean", "array", "map", "object"]

_INTEGERS: Final[Mapping[str, DataType]] = {
    "int8": ByteType(), "int16": ShortType(), "int32": IntegerType(), "int64": LongType(),
}  # fmt: skip
_CONNECT_TYPES: Final = {
    ByteType: "int8", ShortType: "int16", IntegerType: "int32", LongType: "int64", FloatType: "float32",
    DoubleType: "float64",
}  # fmt: skip
_TEXTS: Final[Mapping[str, DataType]] = {"date": DateType(), "date-time": TimestampType()}
# Keywords that restrict values and say nothing of columns. A source does not check them; a sink that ignored one could
# write records that its own schema forbids.
_RESTRICTIONS: Final = frozenset(
    {
        *("enum", "const", "not", "allOf", "if", "then", "else"),
        *("pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("prefixItems", "additionalItems", "unevaluatedItems"),
        *("minProperties", "maxProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
        *("dependencies", "dependentRequired", "dependentSchemas"),
    }
)


class JsonSchemaError(ValueError):
    """A schema, or a part of one, that does not describe columns; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonType:
    """One part of a schema.

    Attributes:
        path: Where it is, for messages.
        kind: What kind of values it allows.
        spark: Spark's type.
        allows_null: Whether a null may be written in its place.
        element: Of an array or a map.
        properties: Of an object, in order.
        required: Names that an object must have.
        restrictions: Keywords that restrict its values further.
    """

    path: str
    kind: JsonKind
    spark: DataType
    allows_null: bool = False
    element: JsonType | None = None
    properties: tuple[tuple[str, JsonType], ...] = ()
    required: frozenset[str] = frozenset()
    restrictions: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def parse_json_schema(text: str) -> JsonType:
    """Return the object that a schema describes. Raises JsonSchemaError."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise JsonSchemaError(f"it is not JSON: {error}") from None
    found = _Parser(schema).parse(schema, "", ())
    if found.kind != "object":
        raise JsonSchemaError("it does not describe an object with properties")
    return found


@dataclass(frozen=True, slots=True)
class _Parser:
    """Reader of one schema document. `within` are the definitions that a part lies in: a recursion has no columns."""

    document: Any

    def parse(self, schema: Any, path: str, within: tuple[str, ...]) -> JsonType:
        what = path or "the schema"
        if not isinstance(schema, Mapping):
            raise JsonSchemaError(f"{what} allows any value")
        if "$ref" in schema:
            return self._referred(schema, path, within)
        for choice in ("oneOf", "anyOf"):
            if choice in schema:
                return self._chosen(schema, choice, path, within)
        kinds = schema.get("type", _kind_of_values(schema))
        kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            raise JsonSchemaError(f"{what} has {'several types' if others else 'no type'}")
        nullable = len(others) < len(kinds)
        restrictions = tuple(sorted(_RESTRICTIONS & schema.keys()))
        shared: dict[str, Any] = {"path": path, "allows_null": nullable, "restrictions": restrictions}
        match others[0]:
            case "string":
                return JsonType(kind="string", spark=_text_type(schema), **shared)
            case "integer":
                return JsonType(kind="integer", spark=_INTEGERS.get(_connect(schema), LongType()), **shared)
            case "number":
                kind: DataType = FloatType() if _connect(schema) == "float32" else DoubleType()
                return JsonType(kind="number", spark=kind, **shared)
            case "boolean":
                return JsonType(kind="boolean", spark=BooleanType(), **shared)
            case "array":
                element = self.parse(schema.get("items"), f"{path}[]", within)
                return JsonType(kind="array", spark=ArrayType(element.spark), element=element, **shared)
            case "object":
                return self._object(schema, path, within, shared)
            case other:
                raise JsonSchemaError(f"{what} has the type {other!r}, which JSON Schema does not know")

    def _object(self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], shared: Any) -> JsonType:
        declared = schema.get("properties")
        if not declared:
            if not isinstance(schema.get("additionalProperties"), Mapping):
                raise JsonSchemaError(f"{path or 'the schema'} is an object without properties")
            element = self.parse(schema["additionalProperties"], f"{path}.*", within)
            return JsonType(kind="map", spark=MapType(StringType(), element.spark), element=element, **shared)
        properties = tuple(
            (name, self.parse(each, f"{path}.{name}".lstrip("."), within)) for name, each in declared.items()
        )
        return JsonType(
            kind="object",
            spark=StructType([StructField(name, each.spark) for name, each in properties]),
            properties=properties,
            required=frozenset(schema.get("required", ())),
            **shared,
        )

    def _referred(self, schema: Mapping[str, Any], path: str, within: tuple[str, ...]) -> JsonType:
        target = str(schema["$ref"])
        if target in within:
            raise JsonSchemaError(f"{path or 'the schema'} contains itself ({target})")
        if not target.startswith("#/"):
            raise JsonSchemaError(f"{path or 'the schema'} refers to another document ({target})")
        found = self.document
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise JsonSchemaError(f"{path or 'the schema'} refers to {target}, which is not there")
            found = found[name]
        return self.parse(found, path, (*within, target))

    def _chosen(self, schema: Mapping[str, Any], choice: str, path: str, within: tuple[str, ...]) -> JsonType:
        """Return the one alternative beside null."""
        others = [each for each in schema[choice] if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(others) != 1:
            raise JsonSchemaError(f"{path or 'the schema'} has several alternatives ({choice})")
        found = self.parse(others[0], path, within)
        around = tuple(sorted(_RESTRICTIONS & schema.keys()))
        return replace(
            found,
            allows_null=found.allows_null or len(others) < len(schema[choice]),
            restrictions=(*found.restrictions, *around),
        )


def _kind_of_values(schema: Mapping[str, Any]) -> list[str]:
    """Return the types of a schema that has none and lists its values, or whose keywords need an object or an array."""
    listed = schema.get("enum", [schema["const"]] if "const" in schema else ())
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    if listed:
        return sorted({names.get(type(value), "object") for value in listed})
    return ["object"] if "properties" in schema else ["array"] if "items" in schema else []


def _text_type(schema: Mapping[str, Any]) -> DataType:
    if schema.get("contentEncoding") == "base64":
        return BinaryType()
    return _TEXTS.get(str(schema.get("format")), StringType())


def _connect(schema: Mapping[str, Any]) -> str:
    return str(schema.get("connect.type"))


# -- columns to a schema -----------------------------------------------------------------------------------------------


def json_schema_of(columns: StructType, title: str) -> str:
    """Return the schema of records with these columns, of which each is written. Raises JsonSchemaError."""
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_object_of(columns, "")})


def _object_of(columns: StructType, path: str) -> dict[str, Any]:
    properties = {
        field.name: _nullable(_schema_of(field.dataType, f"{path}.{field.name}".lstrip(".")), field.nullable)
        for field in columns.fields
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _nullable(schema: dict[str, Any], nullable: bool) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]} if nullable else schema


def _schema_of(kind: DataType, path: str) -> dict[str, Any]:
    match kind:
        case StructType():
            return _object_of(kind, path)
        case ArrayType():
            return {"type": "array", "items": _nullable(_schema_of(kind.elementType, f"{path}[]"), kind.containsNull)}
        case MapType():
            value = _nullable(_schema_of(kind.valueType, f"{path}.*"), kind.valueContainsNull)
            return {"type": "object", "additionalProperties": value}
        case ByteType() | ShortType() | IntegerType() | LongType():
            return {"type": "integer", "connect.type": _CONNECT_TYPES[type(kind)]}
        case FloatType() | DoubleType():
            return {"type": "number", "connect.type": _CONNECT_TYPES[type(kind)]}
        case DecimalType():
            return {"type": "number"}
        case BooleanType():
            return {"type": "boolean"}
        case DateType():
            return {"type": "string", "format": "date"}
        case TimestampType():
            return {"type": "string", "format": "date-time"}
        case BinaryType():
            return {"type": "string", "contentEncoding": "base64"}
        case StringType() | TimestampNTZType():
            return {"type": "string"}
    raise JsonSchemaError(f"{path}: {kind.simpleString()} has no JSON Schema")


# -- columns for a given schema ----------------------------------------------------------------------------------------

_WRITABLE: Final[Mapping[JsonKind, tuple[type[DataType], ...]]] = {
    "string": (StringType,),
    "integer": (ByteType, ShortType, IntegerType, LongType),
    "number": (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    "boolean": (BooleanType,),
}
_WRITABLE_TEXTS: Final = (DateType, TimestampType, BinaryType)


def check_writable(schema: JsonType, columns: StructType) -> None:
    """Check that rows of these columns are records of a schema, but for nulls, which are looked at when they come.

    Raises:
        JsonSchemaError: for a column without a property, a required property without a column, a type that the property
            does not take, and keywords that restrict values, which nothing would check.
    """
    _check_part(schema, columns)


def _check_part(schema: JsonType, column: Any) -> None:
    what = schema.path or "the schema"
    if schema.restrictions:
        raise JsonSchemaError(f"{what} has the keyword {schema.restrictions[0]}, which a sink does not check")
    if schema.kind == "object" and isinstance(column, StructType):
        properties = dict(schema.properties)
        for field in column.fields:
            if field.name not in properties:
                raise JsonSchemaError(f'{what} has no property for the column "{field.name}"')
            _check_part(properties[field.name], field.dataType)
        missing = sorted(schema.required - set(column.names))
        if missing:
            raise JsonSchemaError(f'{what} requires "{missing[0]}", and there is no such column')
    elif (schema.kind, type(column)) in (("array", ArrayType), ("map", MapType)):
        assert schema.element is not None
        _check_part(schema.element, column.elementType if schema.kind == "array" else column.valueType)
    elif schema.kind == "string" and isinstance(column, _WRITABLE_TEXTS):
        # A date is also a text; a text need not be a date.
        if not isinstance(schema.spark, (StringType, type(column))):
            raise JsonSchemaError(f"{what}: {column.simpleString()} is no {schema.spark.simpleString()}")
    elif not isinstance(column, _WRITABLE.get(schema.kind, ())) or (
        schema.kind == "string" and not isinstance(schema.spark, StringType)
    ):
        raise JsonSchemaError(f"{what}: {column.simpleString()} cannot be written as {schema.spark.simpleString()}")
