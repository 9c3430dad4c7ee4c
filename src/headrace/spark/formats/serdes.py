"""Formats of values that bring a schema of their own: Avro, JSON Schema and Protobuf, loaded when first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.errors import MissingExtra
from headrace.formats import Avro, JsonSchema, Protobuf
from headrace.spark.formats.json_values import BadRow

__all__ = [
    "Serde",
    "check_packages",
    "decode_values",
    "encode_values",
    "row_reader",
    "serde_columns",
    "serde_name",
    "sink_serde",
    "source_serde",
]

SerdeName: TypeAlias = Literal["avro", "json_schema", "protobuf"]
Serde: TypeAlias = Avro | JsonSchema | Protobuf
_NAMES: Final[Mapping[type, SerdeName]] = {Avro: "avro", JsonSchema: "json_schema", Protobuf: "protobuf"}
_PACKAGES: Final[Mapping[type, list[str]]] = {
    Avro: ["fastavro"],
    JsonSchema: [],
    Protobuf: ["google.protobuf", "grpc_tools"],
}


def serde_name(serde: Serde) -> SerdeName:
    """Return the format's name in topologies."""
    return _NAMES[type(serde)]


def source_serde(serde: Serde, topics: Sequence[str], where: str) -> tuple[Serde, StructType]:
    """Return (the format with the schema that it reads with, the columns) of a source; raise TopologyError."""
    check_packages(serde)
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import source_avro

        return source_avro(serde, topics, where)
    if isinstance(serde, JsonSchema):
        from headrace.spark.formats.json_schema import source_json_schema

        return source_json_schema(serde, topics, where)
    from headrace.spark.formats.protobuf import source_protobuf

    return source_protobuf(serde, topics, where)


def sink_serde(serde: Serde, topic: str, columns: StructType, where: str) -> Serde:
    """Return the format with its schema and subject for a sink of these columns; raise TopologyError."""
    check_packages(serde)
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import sink_avro

        return sink_avro(serde, topic, columns, where)
    if isinstance(serde, JsonSchema):
        from headrace.spark.formats.json_schema import sink_json_schema

        return sink_json_schema(serde, topic, columns, where)
    from headrace.spark.formats.protobuf import sink_protobuf

    return sink_protobuf(serde, topic, columns, where)


def check_packages(serde: Serde) -> None:
    """Raise MissingExtra where a package that a format needs is not installed."""
    name, extra, needed = type(serde).__name__, serde_name(serde).replace("_", "-"), list(_PACKAGES[type(serde)])
    if serde.registry is not None:
        needed.append("confluent_kafka.schema_registry")
    try:
        for package in needed:
            importlib.import_module(package)
    except ModuleNotFoundError as error:  # the registry's client needs packages that not every installation of it has
        raise MissingExtra(
            "extra-missing",
            f"{name}(..) needs the package {error.name}, which is not installed",
            f'pip install "headrace[{extra}]", on all executors too',
            package=str(error.name).partition(".")[0],
            extra=extra,
        ) from None


def serde_columns(serde: Serde) -> StructType:
    """Return the Spark columns of a format's own schema."""
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import avro_columns

        return avro_columns(serde)
    if isinstance(serde, JsonSchema):
        from headrace.spark.formats.json_schema import json_schema_columns

        return json_schema_columns(serde)
    from headrace.spark.formats.protobuf import protobuf_columns

    return protobuf_columns(serde)


def decode_values(
    values: pa.Array, serde: Serde, wanted: Sequence[str], zone_name: str = "UTC"
) -> tuple[pa.RecordBatch, list[BadRow]]:
    """Return (one row per value, the values that do not decode) of binary values.

    Args:
        values: Binary record values.
        serde: Their format, with the schema to read with.
        wanted: The columns to build.
        zone_name: Time zone of timestamps that are texts without one.
    """
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import decode_avro

        return decode_avro(values, serde, wanted)
    if isinstance(serde, JsonSchema):
        from headrace.spark.formats.json_schema import decode_json_schema

        return decode_json_schema(values, serde, wanted, zone_name)
    from headrace.spark.formats.protobuf import decode_protobuf

    return decode_protobuf(values, serde, wanted)


def encode_values(batch: pa.RecordBatch, columns: Sequence[str], serde: Serde) -> pa.Array:
    """Return the rows as binary values."""
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import encode_avro

        return encode_avro(batch, columns, serde)
    if isinstance(serde, JsonSchema):
        from headrace.spark.formats.json_schema import encode_json_schema

        return encode_json_schema(batch, columns, serde)
    from headrace.spark.formats.protobuf import encode_protobuf

    return encode_protobuf(batch, columns, serde)


def row_reader(serde: Avro | Protobuf) -> Callable[[bytes], tuple[dict[str, Any] | None, str | None]]:
    """Return the reader that `verify` compares with, of another library: a value to (its row, why it has none)."""
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro_reference import avro_row_reader

        return avro_row_reader(serde)
    from headrace.spark.formats.protobuf_reference import protobuf_row_reader

    return protobuf_row_reader(serde)
