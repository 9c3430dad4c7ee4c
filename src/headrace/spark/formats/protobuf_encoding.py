"""Arrow columns to Protobuf messages, column by column into one buffer (see `value_parts`).

Fields are written by ascending number and as Google's serializers write them: lists of numbers packed where the schema
asks for it, fields without presence only if they differ from the default. A null is a field that is not written. Where
the schema could not tell it from the default, null is refused: a reader would take it for 0 or for an empty text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import DataType, StructType

from headrace.array_types import ByteArray, Int64Array, IntegerArray
from headrace.protocol.array_bounds import encode_unsigned_varint
from headrace.spark.formats.protobuf_schema import (
    FIRST_SECOND,
    LAST_SECOND,
    TIMESTAMP,
    ProtobufEnum,
    ProtobufField,
    ProtobufMessage,
    ProtobufSchemaError,
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

__all__ = ["check_message_writable", "encode_messages", "unsigned_varint"]

_LENGTH_DELIMITED: Final = 2
_WIRE_TYPES: Final = {
    "double": 1, "fixed64": 1, "sfixed64": 1, "float": 5, "fixed32": 5, "sfixed32": 5, "string": 2, "bytes": 2,
    "message": 2,
}  # fmt: skip
_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_ALLOWED: Final = {  # which Spark types may be written as each kind
    "double": ("double",), "float": ("float",), "bool": ("boolean",), "string": ("string",), "bytes": ("binary",),
    "enum": ("string",),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), _INTEGERS[:3]),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), _INTEGERS),
    **dict.fromkeys(("uint64", "fixed64"), (*_INTEGERS, "decimal(20,0)")),
}  # fmt: skip
_HIGHEST: Final = {"uint32": 2**32 - 1, "fixed32": 2**32 - 1, "uint64": 2**64 - 1, "fixed64": 2**64 - 1}


def encode_messages(batch: pa.RecordBatch, columns: Sequence[str], message: ProtobufMessage, prefix: bytes) -> pa.Array:
    """Return one message per row, as a binary array.

    Args:
        batch: The rows.
        columns: Which columns to write, by the names of the message's fields.
        message: The type of the messages.
        prefix: Bytes that each record begins with.

    Raises:
        NotOfSchema: for a null where the schema has none, an unknown name of an enum, and numbers out of range.
    """
    if not len(batch):
        return pa.array([], pa.binary())
    found = {name: batch.column(name) for name in columns}
    return encode_part(_message_part(found, message, "", len(batch)), prefix)


def unsigned_varint(values: IntegerArray) -> VarintPart:
    """Return a part that writes each value as an unsigned varint, negative ones as their 64 bits.

    The bytes of an unsigned varint are those of the zigzag varint of the number whose zigzag form it is.
    """
    # `VarintPart` writes zigzag. Undoing zigzag first makes it write the bits as they are, negative numbers as ten
    # bytes, which Protobuf asks for.
    bits = np.ascontiguousarray(values, np.int64).view(np.uint64)
    return VarintPart((bits >> np.uint64(1)).view(np.int64) ^ -(bits & np.uint64(1)).view(np.int64))


class _TaggedPart(Part):
    """Values behind the tag of their field."""

    def __init__(self, field: ProtobufField, value: Part, wire_type: int | None = None) -> None:
        wire_type = _WIRE_TYPES.get(field.kind, 0) if wire_type is None else wire_type
        self._tag, self._value = encode_unsigned_varint(field.number << 3 | wire_type), value
        self.sizes = value.sizes + len(self._tag)

    def write(self, at: Int64Array, target: ByteArray) -> None:
        for byte in self._tag:
            target[at] = byte
            at += 1
        self._value.write(at, target)


class _DelimitedPart(Part):
    """Bytes of another part behind their length."""

    def __init__(self, body: Part) -> None:
        self._body, self._lengths = body, unsigned_varint(body.sizes)
        self.sizes = body.sizes + self._lengths.sizes

    def write(self, at: Int64Array, target: ByteArray) -> None:
        self._lengths.write(at, target)
        self._body.write(at, target)


def _message_part(columns: dict[str, pa.Array], message: ProtobufMessage, path: str, rows: int) -> RecordPart:
    parts: list[Part] = []
    for field in message.fields:
        if field.name in columns:
            where = f"{path}.{field.name}".lstrip(".")
            parts.append(_field_part(columns[field.name], field, where))
    return RecordPart(rows, parts)


def _field_part(column: pa.Array, field: ProtobufField, path: str) -> Part:
    if field.repeated:
        return _list_part(column, field, path)
    if not field.has_presence:
        column = _with_defaults(column, path)
    elif field.required:
        column = without_nulls(column, path)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    value = column.drop_null()
    # proto3 does not write a field that has its default, and Google's serializers leave it out: the bytes are the same
    # as theirs.
    if not field.has_presence:
        written = _differs_from_default(value)
        there, value = written, value.filter(pa.array(written))
    return OptionalPart(there, _TaggedPart(field, _value_part(value, field, path)))


def _with_defaults(column: pa.Array, path: str) -> pa.Array:
    if column.null_count:
        raise NotOfSchema(
            f"{path} is null, which the schema cannot tell from its default: declare the field optional, "
            f"or write F.coalesce('{path}', ..)"
        )
    return column


def _differs_from_default(values: pa.Array) -> NDArray[np.bool_]:
    """Return where values are not the default; -0.0 is not, since its bits are not those of 0."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = pc.greater(pc.binary_length(values), 0)
    elif pa.types.is_floating(kind):
        bits = values.to_numpy().view(np.uint64 if kind.bit_width == 64 else np.uint32)
        return np.asarray(bits != 0)
    elif pa.types.is_boolean(kind):
        found = values
    else:
        found = pc.not_equal(values, pa.scalar(0).cast(kind))
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)


def _list_part(column: pa.Array, field: ProtobufField, path: str) -> Part:
    if column.null_count:
        raise NotOfSchema(
            f"{path} is null, and Protobuf has empty lists and maps only: write F.coalesce('{path}', F.array()) "
            "or F.create_map()"
        )
    offsets = np.asarray(column.offsets.to_numpy(), np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    counts = np.diff(offsets)
    if field.is_map:
        items: Part = _entries_part(column.keys.slice(first, last - first), column.items.slice(first, last - first),
                                    field, path)  # fmt: skip
        return ItemsPart(counts, _TaggedPart(field, items))
    values = without_nulls(column.values.slice(first, last - first), f"{path}[]")
    items = _value_part(values, field, f"{path}[]")
    if not field.packed:
        return ItemsPart(counts, _TaggedPart(field, items))
    filled = counts > 0
    # Items of a row behind one tag and one length; a row without items has no tag at all.
    packed = _DelimitedPart(ItemsPart(counts[filled], items))
    return OptionalPart(filled, _TaggedPart(field, packed, wire_type=_LENGTH_DELIMITED))


def _entries_part(keys: pa.Array, values: pa.Array, field: ProtobufField, path: str) -> Part:
    assert field.message is not None
    key, value = field.message.fields
    parts: list[Part] = []
    for column, part in ((keys, key), (values, value)):
        where = f"{path}{{}}"
        parts.append(_TaggedPart(part, _value_part(without_nulls(column, where), part, where)))
    return _DelimitedPart(RecordPart(len(keys), parts))


def _value_part(column: pa.Array, field: ProtobufField, path: str) -> Part:
    """Return the part of values without nulls, without tags."""
    if field.message is not None:
        return _DelimitedPart(_nested_part(column, field.message, path))
    match field.kind:
        case "string" | "bytes":
            return _DelimitedPart(BytesPart(column, has_length=False))
        case "enum":
            assert field.enum is not None
            return unsigned_varint(_enum_numbers(column, field.enum, path))
        case "bool":
            return WordPart(column.cast(pa.uint8()).to_numpy(), 1)
        case "double":
            return WordPart(column.to_numpy().view(np.uint64), 8)
        case "float":
            return WordPart(column.to_numpy().view(np.uint32), 4)
        case "sint32" | "sint64":
            return VarintPart(column.cast(pa.int64()).to_numpy())
    numbers = _whole_numbers(column, field.kind, path)
    width = {1: 8, 5: 4}.get(_WIRE_TYPES.get(field.kind, 0))
    return unsigned_varint(numbers) if width is None else WordPart(numbers.view(np.uint64), width)


def _nested_part(column: pa.Array, message: ProtobufMessage, path: str) -> Part:
    if message.name != TIMESTAMP:
        inner = {column.type.field(i).name: pc.struct_field(column, i) for i in range(column.type.num_fields)}
        return _message_part(inner, message, path, len(column))
    micros = column.view(pa.int64()).to_numpy()
    seconds, rest = np.divmod(micros, 1_000_000)
    if ((seconds < FIRST_SECOND) | (seconds > LAST_SECOND)).any():
        raise NotOfSchema(f"{path}: a timestamp outside of the years 1 to 9999, which {TIMESTAMP} has no place for")
    times = {"seconds": pa.array(seconds), "nanos": pa.array((rest * 1000).astype(np.int32))}
    return _message_part(times, message, path, len(column))


def _whole_numbers(column: pa.Array, kind: str, path: str) -> NDArray[np.int64]:
    highest = _HIGHEST.get(kind)
    if pa.types.is_decimal(column.type):
        words = np.frombuffer(column.buffers()[1], np.uint64, 2 * len(column), column.offset * 16).reshape(-1, 2)
        outside = words[:, 1] != 0  # negative, or more than 64 bits
        numbers = words[:, 0].copy().view(np.int64)
    else:
        numbers = column.cast(pa.int64()).to_numpy()
        outside = (numbers < 0) | (numbers > min(highest, 2**63 - 1)) if highest is not None else np.zeros(0, np.bool_)
    if outside.any():
        value = column.filter(pa.array(outside))[0].as_py()
        raise NotOfSchema(f"{path}: {value} is no {kind}")
    return np.asarray(numbers)


def _enum_numbers(column: pa.Array, enum: ProtobufEnum, path: str) -> NDArray[np.int64]:
    chosen = pc.index_in(column, pa.array([name for name, _ in enum.numbers], pa.string()))
    if chosen.null_count:
        wrong = column.filter(chosen.is_null())[0].as_py()
        raise NotOfSchema(f"{path}: {wrong!r} is no value of the enum {enum.name}")
    numbers = np.array([number for _, number in enum.numbers], np.int64)
    return np.asarray(numbers[chosen.to_numpy()])


def check_message_writable(message: ProtobufMessage, columns: StructType, path: str = "") -> None:
    """Check that rows with these columns can be written as messages of this type.

    Raises:
        ProtobufSchemaError: for a column without a field, a required field without a column, other types.
    """
    fields = {field.name: field for field in message.fields}
    for column in columns.fields:
        where = f"{path}.{column.name}".lstrip(".")
        if column.name not in fields:
            raise ProtobufSchemaError(f"{where}: the message {message.name} has no field for this column")
        _check_field(fields[column.name], column.dataType, where)
    for field in message.fields:
        if field.required and field.name not in columns.fieldNames():
            raise ProtobufSchemaError(f"{path}.{field.name}".lstrip(".") + ": there is no column for a required field")
    shared = [field.oneof for field in message.fields if field.oneof >= 0 and field.name in columns.fieldNames()]
    if len(set(shared)) < len(shared):
        raise ProtobufSchemaError(f"{path or message.name}: two columns are fields of one oneof; keep one of them")


def _check_field(field: ProtobufField, column: DataType, path: str) -> None:
    refused = ProtobufSchemaError(f"{path}: {column.simpleString()} cannot be written as {field.declared}")
    kind = column.typeName()
    if field.is_map:
        if kind != "map":
            raise refused
        assert field.message is not None
        key, value = field.message.fields
        _check_value(key, column.keyType, path, refused)
        _check_value(value, column.valueType, f"{path}{{}}", refused)
        return
    if field.repeated:
        if kind != "array":
            raise refused
        column = column.elementType
    _check_value(field, column, f"{path}[]" if field.repeated else path, refused)


def _check_value(field: ProtobufField, column: DataType, path: str, refused: ProtobufSchemaError) -> None:
    if field.message is None:
        if column.simpleString() not in _ALLOWED[field.kind]:
            raise refused
    elif field.message.name == TIMESTAMP:
        if column.simpleString() != "timestamp":
            raise refused
    elif isinstance(column, StructType):
        check_message_writable(field.message, column, path)
    else:
        raise refused
