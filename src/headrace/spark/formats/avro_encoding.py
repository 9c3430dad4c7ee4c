"""Rows to Avro records: first the size of every value, then each column writes its part of every row.

As in `json_encoding`, a column is written as a whole, at the positions that its rows have reached. Optional values are
written as the subset of rows that have one; items of arrays and maps as one long column of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import DataType

from headrace.array_types import ByteArray, Int64Array
from headrace.spark.formats import avro_kernels as kernels
from headrace.spark.formats.arrow_buffers import read_only
from headrace.spark.formats.arrow_types import arrow_type
from headrace.spark.formats.avro_schema import (
    MICROS_OF,
    MISSING,
    AvroSchemaError,
    AvroType,
    parse_schema,
    spark_type,
    without_null,
)
from headrace.spark.formats.value_parts import (
    BytesPart,
    ItemsPart,
    NotOfSchema,
    OptionalPart,
    Part,
    RecordPart,
    VarintPart,
    WordPart,
    encode_part,
    without_nulls,
)

__all__ = ["AvroWriter", "avro_writer", "check_record_writable", "check_writable"]

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")


@lru_cache(maxsize=64)
def avro_writer(schema: str) -> AvroWriter:
    """Return the writer of records of `schema`, kept for the next call."""
    return AvroWriter(parse_schema(schema))


class AvroWriter:
    """Encoder of rows as records of one schema."""

    def __init__(self, schema: AvroType) -> None:
        self._schema = schema

    def encode(self, batch: pa.RecordBatch, columns: Sequence[str], prefix: bytes) -> pa.Array:
        """Return one record per row, as a binary array.

        Args:
            batch: The rows.
            columns: Which columns to write, by the names of the schema's fields.
            prefix: Bytes that each record begins with.

        Raises:
            NotOfSchema: for a null where the schema allows none, an unknown symbol, and numbers out of range.
        """
        rows = len(batch)
        if not rows:
            return pa.array([], pa.binary())
        # In the schema's order: Avro's records have neither names nor tags.
        fields: list[Part] = []
        for field in self._schema.fields:
            there = field.name in columns
            column = batch.column(field.name) if there else _default_column(field.type, field.default, rows)
            fields.append(_part(column, field.type, field.name))
        return encode_part(RecordPart(rows, fields), prefix)


class _DecimalPart(Part):
    """Unscaled decimals in two's complement, high byte first; as bytes of the least length, or fixed."""

    def __init__(self, values: pa.Array, fixed_size: int | None) -> None:
        # A copy, because kernels need aligned, contiguous words and the column may be a slice.
        words = np.frombuffer(values.buffers()[1], np.uint64, 2 * len(values), values.offset * 16)
        self._words = read_only(words.reshape(-1, 2).copy())
        self._least = np.empty(len(values), np.int64)
        kernels.decimal_sizes(self._words, self._least)
        self._lengths = VarintPart(self._least) if fixed_size is None else None
        if fixed_size is not None:
            self._least[:] = fixed_size
        self.sizes = self._least + (self._lengths.sizes if self._lengths is not None else 0)

    def write(self, at: Int64Array, target: ByteArray) -> None:
        if self._lengths is not None:
            self._lengths.write(at, target)
        kernels.write_decimals(self._words, self._least, at, target)


class _BlocksPart(Part):
    """Arrays and maps: one block with all items where there are any, then an empty block."""

    def __init__(self, counts: NDArray[np.int64], items: Part) -> None:
        # The specification ends every array with a block of zero items; an empty array is that block alone.
        filled = counts > 0
        self._blocks = RecordPart(
            len(counts), [OptionalPart(filled, VarintPart(counts[filled])), ItemsPart(counts, items)]
        )
        self.sizes = self._blocks.sizes + 1

    def write(self, at: Int64Array, target: ByteArray) -> None:
        self._blocks.write(at, target)
        target[at] = 0
        at += 1


def _part(column: pa.Array, kind: AvroType, path: str) -> Part:
    """Return the part of a column; `kind` may be a union with null."""
    # Of int and long, and of float and double, the wider one: it has room for every value of the column.
    value, nullable = without_null(kind)
    if kind.kind != "union":
        return _value_part(without_nulls(column, path), value, path)
    if not nullable:
        column = without_nulls(column, path)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    branches = [branch.kind for branch in kind.branches]
    null = branches.index("null") if nullable else -1
    # The number of the branch in the order of the schema: `["null", T]` and `[T, "null"]` are both common.
    branch = VarintPart(np.where(there, branches.index(value.kind), null))
    return RecordPart(len(there), [branch, OptionalPart(there, _value_part(column.drop_null(), value, path))])


def _value_part(column: pa.Array, kind: AvroType, path: str) -> Part:
    """Return the part of a column without nulls."""
    match kind.kind:
        case "record":
            fields = []
            for field in kind.fields:
                at = column.type.get_field_index(field.name)
                inner = column.field(at) if at >= 0 else _default_column(field.type, field.default, len(column))
                fields.append(_part(inner, field.type, f"{path}.{field.name}"))
            return RecordPart(len(column), fields)
        case "array":
            counts = pc.list_value_length(column).cast(pa.int64()).to_numpy()
            return _BlocksPart(counts, _part(column.flatten(), kind.element, f"{path}[]"))
        case "map":
            return _map_part(column, kind, path)
        case "enum":
            known = pa.array(kind.symbols, pa.string())
            # An enum is the position of its symbol in the schema.
            chosen = pc.index_in(column, known)
            if chosen.null_count:
                wrong = column.filter(chosen.is_null())[0].as_py()
                raise NotOfSchema(f"{path}: {wrong!r} is no symbol of the enum {kind.name}")
            return VarintPart(chosen.cast(pa.int64()).to_numpy())
        case _:
            return _flat_part(column, kind, path)


def _map_part(column: pa.MapArray, kind: AvroType, path: str) -> Part:
    # A sliced map shares the children of the whole, so keys and items are cut at the first and the last offset.
    offsets = np.asarray(column.offsets.to_numpy(), np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    keys = BytesPart(column.keys.slice(first, last - first), has_length=True)
    values = _part(column.items.slice(first, last - first), kind.element, f"{path}{{}}")
    # A map is an array of pairs in Avro's bytes.
    return _BlocksPart(np.diff(offsets), RecordPart(last - first, [keys, values]))


def _flat_part(column: pa.Array, kind: AvroType, path: str) -> Part:
    if kind.logical == "decimal":
        try:
            column = column.cast(pa.decimal128(kind.precision, kind.scale))
        except pa.ArrowInvalid as error:
            raise NotOfSchema(f"{path}: {error}") from None
        return _DecimalPart(column, kind.size if kind.kind == "fixed" else None)
    match kind.kind:
        case "string" | "bytes":
            return BytesPart(column, has_length=True)
        case "fixed":
            lengths = pc.binary_length(column)
            if len(column) and not pc.all(pc.equal(lengths, kind.size)).as_py():
                raise NotOfSchema(f"{path}: a value of another length than the {kind.size} bytes of {kind.name}")
            return BytesPart(column, has_length=False)
        case "boolean":
            return WordPart(column.cast(pa.uint8()).to_numpy(), 1)
        case "double":
            return WordPart(column.cast(pa.float64()).to_numpy().view(np.uint64), 8)
        case "float":
            return WordPart(column.cast(pa.float32()).to_numpy().view(np.uint32), 4)
    return VarintPart(_integers(column, kind, path))


def _integers(column: pa.Array, kind: AvroType, path: str) -> Int64Array:
    if pa.types.is_date32(column.type):
        return column.view(pa.int32()).cast(pa.int64()).to_numpy()
    if pa.types.is_timestamp(column.type):
        unit = MICROS_OF[kind.logical]
        micros = column.view(pa.int64()).to_numpy()
        if unit > 1 and (micros % unit).any():  # Spark's serializer cuts them off silently
            raise NotOfSchema(
                f"{path}: a timestamp with microseconds, and the schema holds milliseconds; "
                f"cut them off first: F.date_trunc('millisecond', '{path}')"
            )
        return micros // unit
    return column.cast(pa.int64()).to_numpy()


def _default_column(kind: AvroType, default: Any, rows: int) -> pa.Array:
    """Return the column of a field that the rows do not have: nulls. `check_writable` allows no other default."""
    assert default is not MISSING
    return pa.nulls(rows, arrow_type(spark_type(kind)))


def check_writable(kind: AvroType, column: DataType, path: str) -> None:
    """Check that a column of Spark's type `column` can be written as `kind`.

    Raises:
        AvroSchemaError: names the first part that cannot.
    """
    value, _ = without_null(kind)
    wanted = spark_type(kind, path)  # refuses unions
    allowed: tuple[str, ...] = ()
    refused = AvroSchemaError(f"{path}: {column.simpleString()} cannot be written as {value.logical or value.kind}")
    match value.kind:
        case "record" | "array" | "map":
            if column.typeName() != wanted.typeName():
                raise refused
            _check_nested(value, column, path)
        case "int":
            allowed = ("date",) if value.logical else _INTEGERS[:3]
        case "long":
            allowed = (wanted.simpleString(),) if value.logical in MICROS_OF else _INTEGERS
        case "enum":
            allowed = ("string",)
        case _ if value.logical == "decimal":
            digits = value.precision - value.scale
            fits = getattr(column, "scale", -1) == value.scale and column.precision - column.scale <= digits
            allowed = (column.simpleString(),) if column.typeName() == "decimal" and fits else ()
        case _:
            allowed = (wanted.simpleString(),)
    if value.kind not in {"record", "array", "map"} and column.simpleString() not in allowed:
        raise refused


def _check_nested(kind: AvroType, column: Any, path: str) -> None:
    if kind.kind == "array":
        check_writable(kind.element, column.elementType, f"{path}[]")
        return
    if kind.kind == "map":
        if column.keyType.typeName() != "string":
            raise AvroSchemaError(f"{path}: keys of maps are strings in Avro, not {column.keyType.simpleString()}")
        check_writable(kind.element, column.valueType, f"{path}{{}}")
        return
    check_record_writable(kind, {field.name: field.dataType for field in column.fields}, path)


def check_record_writable(kind: AvroType, columns: dict[str, DataType], path: str = "") -> None:
    """Check that rows with these columns can be written as records of `kind`.

    Raises:
        AvroSchemaError: for a column without a field, a field without a column that cannot be null, other types.
    """
    names = {field.name for field in kind.fields}
    for name in columns:
        if name not in names:
            raise AvroSchemaError(f"{path}.{name}".lstrip(".") + ": the schema has no field for this column")
    for field in kind.fields:
        where = f"{path}.{field.name}".lstrip(".")
        if field.name in columns:
            check_writable(field.type, columns[field.name], where)
        elif not without_null(field.type)[1] or field.default is not None:
            raise AvroSchemaError(f"{where}: there is no column for this field, and its default is not null")
