"""Keys of records as columns, in the format of a source or a sink: single values, Avro, JSON Schema, Protobuf."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats import Avro
from headrace.spark.formats.json_values import BadRow
from headrace.spark.formats.scalars import decode_scalars, encode_scalars
from headrace.spark.formats.serdes import Serde, decode_values, encode_values, serde_columns
from headrace.spark.formats.value_parts import NotOfSchema
from headrace.spark.topology.nodes import TypedKey

__all__ = ["decode_keys", "encode_keys"]


def decode_keys(keys: pa.Array, key: TypedKey, zone_name: str = "UTC") -> tuple[pa.Array, list[BadRow]]:
    """Return (one value per record, the keys that do not decode); records without a key are null.

    Args:
        keys: Binary keys of records.
        key: Their format.
        zone_name: Time zone of timestamps that are texts without one.
    """
    if key.serde is None:
        return decode_scalars(keys, key.format, is_key=True)
    if isinstance(key.serde, Avro):
        from headrace.spark.formats.avro import decode_avro_keys

        return decode_avro_keys(keys, key.serde)
    batch, bad = decode_values(keys, key.serde, serde_columns(key.serde).names, zone_name)
    missing = keys.is_null().to_numpy(zero_copy_only=False).copy()
    missing[[row.index for row in bad]] = True
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema), mask=pa.array(missing)), bad


def encode_keys(batch: pa.RecordBatch, key: TypedKey) -> pa.Array:
    """Return the keys of a sink as a binary array, null where there is none.

    Args:
        batch: The rows.
        key: The format, with its columns.

    Raises:
        NotOfSchema: for a null where each row needs a key, and for values that the format has no place for.
        HeadraceError: if the schema cannot be registered.
    """
    if key.is_record:
        assert key.serde is not None
        return encode_values(batch, key.columns, key.serde)
    column = batch.column(key.column)
    if column.null_count and not key.may_be_null:
        raise NotOfSchema(f"{key.column} is null, and the rows of a table need a key: filter such rows in front of it")
    if key.serde is None:
        return encode_scalars(column, key.format, key.column)
    serde = key.serde
    if isinstance(serde, Avro):
        from headrace.spark.formats.avro import encode_avro_keys

        return _where_valid(column, lambda values: encode_avro_keys(values, serde))
    return _where_valid(column, lambda values: _encode_structs(values, serde))


def _encode_structs(column: pa.Array, serde: Serde) -> pa.Array:
    """Return structs that are not null as the records of a format."""
    names = [field.name for field in column.type]
    fields = [pc.struct_field(column, [position]) for position in range(len(names))]
    return encode_values(pa.RecordBatch.from_arrays(fields, names=names), names, serde)


def _where_valid(column: pa.Array, encode: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return the encoded values of a column, null where it is null."""
    found = encode(column.drop_null())
    if not column.null_count:
        return found
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return found.take(pa.array(np.cumsum(there) - 1, mask=~there))
