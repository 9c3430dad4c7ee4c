"""Spark types as the Arrow types in which their columns travel to and from Spark's Python stages."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CharType,
    DataType,
    DecimalType,
    MapType,
    NumericType,
    StringType,
    StructType,
    VarcharType,
)

from headrace.spark.arrow_types import FLAT

INSTANT = FLAT["timestamp"]
LOCAL_TIME = FLAT["timestamp_ntz"]


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a column of Spark type `kind`; timestamps are in UTC. Raises KeyError: see `unsupported`."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, (StringType, CharType, VarcharType)):
        return FLAT["string"]
    return FLAT[kind.typeName()]


def arrow_schema(columns: StructType) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in columns.fields])


def children(kind: DataType) -> tuple[DataType, ...]:
    """The types of the fields, elements, keys and values of a nested type; none for a flat one."""
    if isinstance(kind, StructType):
        return tuple(field.dataType for field in kind.fields)
    if isinstance(kind, ArrayType):
        return (kind.elementType,)
    if isinstance(kind, MapType):
        return (kind.keyType, kind.valueType)
    return ()


def unsupported(kind: DataType) -> DataType | None:
    """The part of `kind` that no sink can write (intervals, variants, void), or None."""
    if not children(kind):
        known = isinstance(kind, (DecimalType, StringType, CharType, VarcharType)) or kind.typeName() in FLAT
        return None if known else kind
    return next((bad for bad in map(unsupported, children(kind)) if bad is not None), None)


def unsupported_map_key(kind: DataType) -> DataType | None:
    """The type of a map's keys somewhere in `kind` that JSON cannot name a field by, or None.

    Spark's `to_json` writes dates and timestamps there as bare numbers, and bytes and nested values as addresses.
    """
    if isinstance(kind, MapType) and not isinstance(kind.keyType, (NumericType, BooleanType, StringType)):
        return kind.keyType
    return next((bad for bad in map(unsupported_map_key, children(kind)) if bad is not None), None)
