"""Which Spark types a JSON record may be decoded to, and their Arrow types.

Timestamps are instants: Arrow `timestamp("us", "UTC")`, as Spark hands them to Python stages.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from headrace.spark.formats.arrow_types import children, unsupported
from headrace.spark.unsupported import is_hidden, refusal

_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
COORDINATES = (  # the struct `_kafka`; built by hand, since workers have no Spark context to parse DDL with
    StructType()
    .add("key", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("headers", _HEADERS)
)
RAW = (  # the columns of Spark's own Kafka source
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", _HEADERS)
)


def check_schema(schema: StructType, where: str) -> None:
    """Check that JSON records can be decoded to `schema`.

    Raises:
        TopologyError: names the first field with an unsupported type.
    """
    if not schema.fields:
        raise refusal("bad-value", "the schema has no columns", 'schema="origin string, dep_delay double"', where)
    folded = [field.name.lower() for field in schema.fields]
    for field in schema.fields:
        if is_hidden(field.name):
            raise refusal("bad-value", f'the name "{field.name}" is taken', "read it under another name", where)
        if folded.count(field.name.lower()) > 1:
            raise refusal("duplicate-column", f'the schema has two columns "{field.name}"', "name each once", where)
        refused = _refused(field.dataType)
        if refused is not None:
            raise refusal(
                "not-supported-here",
                f'"{field.name}": {refused.simpleString()} cannot be read from JSON',
                "read it as a string, or a map with string keys, and cast it",
                where,
            )


def _refused(kind: DataType) -> DataType | None:
    """Return the part of `kind` that JSON records cannot be decoded to, or None."""
    if isinstance(kind, (CharType, VarcharType)) or (isinstance(kind, StringType) and kind.simpleString() != "string"):
        return kind
    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        return kind
    if not children(kind):
        return unsupported(kind)
    return next((bad for bad in map(_refused, children(kind)) if bad is not None), None)


def struct_of(schema_json: str) -> StructType:
    """Return the `StructType` that `schema_json` (`DataType.json()`) describes."""
    import json

    loaded: Any = StructType.fromJson(json.loads(schema_json))
    return loaded
