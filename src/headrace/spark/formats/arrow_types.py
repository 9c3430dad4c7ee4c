"""Spark types as the Arrow types in which their columns travel to and from Spark's Python stages."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DateType, StructType, TimestampType

from headrace.spark.arrow_types import FLAT

INSTANT = FLAT["timestamp"]


def arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    return FLAT[kind.typeName()]


def has_time(kind: DataType) -> bool:
    """Whether a timestamp or date lies somewhere in `kind`."""
    if isinstance(kind, StructType):
        return any(has_time(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return has_time(kind.elementType)
    return isinstance(kind, (DateType, TimestampType))
