"""Avro schemas: reading their JSON, and the Spark types that belong to them.

The mapping is Spark's (`org.apache.spark.sql.avro.SchemaConverters`), except that unions of several types are refused
where Spark makes a struct with one member each, and that decimals are written as `bytes`, which all serializers read,
where Spark writes `fixed`. Optional columns are written as `["null", T]` with the default null, so that a column can be
added later without breaking readers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
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
    VarcharType,
)

__all__ = [
    "MICROS_OF",
    "MISSING",
    "AvroField",
    "AvroSchemaError",
    "AvroType",
    "avro_of",
    "parse_schema",
    "spark_type",
    "without_null",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MISSING: Final = object()  # a field without a default; null is a default
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_KINDS: Final = _PRIMITIVES | {"record", "error", "array", "map", "enum", "fixed"}
_MOST_NESTED = 32
_MOST_DIGITS = 38  # of Spark's decimals
_INSTANTS: Final = {"timestamp-millis": 1000, "timestamp-micros": 1}
_LOCAL_TIMES: Final = {"local-timestamp-millis": 1000, "local-timestamp-micros": 1}
MICROS_OF: Final = {**_INSTANTS, **_LOCAL_TIMES}  # microseconds in the unit of a time
# Which primitive each logical type may annotate. Others are ignored, as the specification asks for.
_ANNOTATES: Final = {
    "date": ("int",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string",),
    **dict.fromkeys(MICROS_OF, ("long",)),
}


class AvroSchemaError(ValueError):
    """A schema that is not Avro, or that has no Spark type; the message says where and why."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AvroType:
    """One Avro type with all names resolved.

    `kind` is a primitive's name, "record", "enum", "fixed", "array", "map" or "union". `items` are an array's elements
    or a map's values.
    """

    kind: str
    name: str = ""
    logical: str = ""
    fields: tuple[AvroField, ...] = ()
    branches: tuple[AvroType, ...] = ()
    items: AvroType | None = None
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0

    @property
    def element(self) -> AvroType:
        """The elements of an array, the values of a map."""
        assert self.items is not None
        return self.items


def parse_schema(text: str) -> AvroType:
    """Return the type that a schema's JSON describes.

    Raises:
        AvroSchemaError: for text that is not an Avro schema, and for types that contain themselves.
    """
    from fastavro.schema import SchemaParseException, UnknownType
    from fastavro.schema import parse_schema as checked

    try:
        document = json.loads(text)
    except ValueError as error:
        raise AvroSchemaError(f"it is not JSON: {error}") from None
    named: dict[str, Any] = {}
    try:
        parsed = checked(document, named_schemas=named)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as error:
        raise AvroSchemaError(f"it is not an Avro schema: {error}") from None
    return _Builder(named).build(parsed, (), "")


class _Builder:
    """Expansion of a schema that fastavro has checked: names become the types that they stand for."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def build(self, schema: Any, within: tuple[str, ...], path: str) -> AvroType:
        if isinstance(schema, list):
            return AvroType("union", branches=tuple(self.build(branch, within, path) for branch in schema))
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return AvroType(schema)
            # A recursive type (a tree) has no finite Spark type.
            if schema in within:
                raise AvroSchemaError(f"{path or schema}: {schema} contains itself, which no Spark type can express")
            return self.build(self._named[schema], within, path)
        if not isinstance(schema["type"], str) or schema["type"] not in _KINDS:
            return self.build(schema["type"], within, path)
        return self._declared(schema, within, path)

    def _declared(self, schema: dict[str, Any], within: tuple[str, ...], path: str) -> AvroType:
        within = (*within, schema["name"]) if "name" in schema else within
        if len(within) > _MOST_NESTED:
            raise AvroSchemaError(f"{path}: more than {_MOST_NESTED} types within each other")
        match schema["type"]:
            case "record" | "error":
                fields = tuple(self._field(field, within, path) for field in schema["fields"])
                return AvroType("record", schema["name"], fields=fields)
            case "array":
                return AvroType("array", items=self.build(schema["items"], within, f"{path}[]"))
            case "map":
                return AvroType("map", items=self.build(schema["values"], within, f"{path}{{}}"))
            case "enum":
                symbols = tuple(schema["symbols"])
                return AvroType("enum", schema["name"], symbols=symbols, default_symbol=schema.get("default"))
            case "fixed":
                return _annotated(AvroType("fixed", schema["name"], size=int(schema["size"])), schema, path)
            case primitive:
                return _annotated(AvroType(primitive), schema, path)

    def _field(self, field: dict[str, Any], within: tuple[str, ...], path: str) -> AvroField:
        where = f"{path}.{field['name']}" if path else str(field["name"])
        kind = self.build(field["type"], within, where)
        # The old form {"name": .., "type": "int", "logicalType": "date"} annotates nothing by the specification.
        return AvroField(field["name"], kind, field.get("default", MISSING), tuple(field.get("aliases", ())))


def _annotated(kind: AvroType, schema: dict[str, Any], path: str) -> AvroType:
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or kind.kind not in _ANNOTATES.get(logical, ()):
        return kind
    if logical != "decimal":
        return replace(kind, logical=logical)
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
        return kind  # "must be ignored" where it is not valid
    if precision > _MOST_DIGITS:
        raise AvroSchemaError(f"{path}: a decimal of {precision} digits; Spark's have at most {_MOST_DIGITS}")
    return replace(kind, logical=logical, precision=precision, scale=scale)


def without_null(kind: AvroType) -> tuple[AvroType, bool]:
    """Return (the type of the values, whether null is allowed) of a type that may be a union with null."""
    if kind.kind != "union":
        return kind, kind.kind == "null"
    branches = tuple(branch for branch in kind.branches if branch.kind != "null")
    nullable = len(branches) < len(kind.branches)
    if len(branches) == 1:
        return branches[0], nullable
    kinds = {branch.kind for branch in branches if not branch.logical}
    if len(kinds) == len(branches):
        # Both are varints, and every value of the narrower type is one of the wider.
        if kinds == {"int", "long"}:
            return AvroType("long"), nullable
        if kinds == {"float", "double"}:
            return AvroType("double"), nullable
    return AvroType("union", branches=branches), nullable


def spark_type(kind: AvroType, path: str = "") -> DataType:
    """Return the Spark type of values of `kind`, which are all optional.

    Raises:
        AvroSchemaError: for null alone, and for unions of several types other than int with long and float with double.
    """
    value, _ = without_null(kind)
    match value.kind:
        case "record":
            fields = []
            for field in value.fields:
                where = f"{path}.{field.name}" if path else field.name
                fields.append(StructField(field.name, spark_type(field.type, where)))
            return StructType(fields)
        case "array":
            return ArrayType(spark_type(value.element, f"{path}[]"))
        case "map":
            return MapType(StringType(), spark_type(value.element, f"{path}{{}}"))
        case "union":
            names = ", ".join(branch.name or branch.kind for branch in value.branches)
            raise AvroSchemaError(f"{path or 'the schema'} is a union of {names or 'nothing'}")
        case "null":
            raise AvroSchemaError(f"{path or 'the schema'} has no values but null")
        case _:
            return _flat_spark_type(value)


def _flat_spark_type(kind: AvroType) -> DataType:
    if kind.logical == "decimal":
        return DecimalType(kind.precision, kind.scale)
    if kind.logical == "date":
        return DateType()
    if kind.logical in _INSTANTS:
        return TimestampType()
    if kind.logical in _LOCAL_TIMES:
        return TimestampNTZType()
    types: dict[str, DataType] = {
        "boolean": BooleanType(), "int": IntegerType(), "long": LongType(), "float": FloatType(),
        "double": DoubleType(), "bytes": BinaryType(), "fixed": BinaryType(), "string": StringType(),
        "enum": StringType(),
    }  # fmt: skip
    return types[kind.kind]


def avro_of(columns: StructType, name: str) -> str:
    """Return the schema, as JSON, of a record with these columns; every one is optional.

    Args:
        columns: The columns; names must be Avro's (letters, digits and underscores).
        name: The record's name, with dots for a namespace.

    Raises:
        AvroSchemaError: for a name or a type that Avro does not have.
    """
    return json.dumps(_record_of(columns, name, ""))


def avro_type_of(kind: DataType, name: str) -> str:
    """Return the schema, as JSON, of values of a Spark type that are not null; `name` is that of a record among them.

    Raises:
        AvroSchemaError: for a name or a type that Avro does not have.
    """
    return json.dumps(_avro_type(kind, name, "key"))


def _record_of(columns: StructType, name: str, path: str) -> dict[str, Any]:
    fields = []
    for field in columns.fields:
        where = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise AvroSchemaError(f'"{where}" is no name in Avro: letters, digits and underscores, no digit first')
        kind = _avro_type(field.dataType, f"{name}_{field.name}", where)
        fields.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def _avro_type(kind: DataType, name: str, path: str) -> Any:
    match kind:
        case StructType():
            return _record_of(kind, name, path)
        case ArrayType():
            return {"type": "array", "items": ["null", _avro_type(kind.elementType, name, f"{path}[]")]}
        case MapType():
            if not isinstance(kind.keyType, (StringType, CharType, VarcharType)):
                raise AvroSchemaError(f"{path}: keys of maps are strings in Avro, not {kind.keyType.simpleString()}")
            return {"type": "map", "values": ["null", _avro_type(kind.valueType, name, f"{path}{{}}")]}
        case DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case StringType() | CharType() | VarcharType():
            return "string"
    known: dict[type[DataType], Any] = {
        BooleanType: "boolean", ByteType: "int", ShortType: "int", IntegerType: "int", LongType: "long",
        FloatType: "float", DoubleType: "double", BinaryType: "bytes",
        DateType: {"type": "int", "logicalType": "date"},
        TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
        TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
    }  # fmt: skip
    found = known.get(type(kind))
    if found is None:
        raise AvroSchemaError(f"{path}: Avro has no type for {kind.simpleString()}")
    return found
