"""Type JSON of the topology's nodes as Spark's schema objects (driver side)."""

from __future__ import annotations

from pyspark.sql.types import DataType, StructType

__all__ = ["spark_type", "struct_of"]


def spark_type(type_json: str) -> DataType:
    """The Spark type that `DataType.json()` wrote."""
    import json

    holder = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "c", "type": json.loads(type_json), "nullable": True, "metadata": {}}]}
    )
    return holder.fields[0].dataType


def struct_of(columns: tuple[tuple[str, str], ...]) -> StructType:
    """The Spark schema of (name, type JSON) pairs."""
    schema = StructType()
    for name, type_json in columns:
        schema.add(name, spark_type(type_json))
    return schema
