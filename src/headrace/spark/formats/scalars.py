"""Single values as Kafka's own serializers write them: numbers, booleans, UUIDs, strings and bytes.

Formats are named after `org.apache.kafka.common.serialization.Serdes`; `LongSerializer`, `UUIDDeserializer` and so on
have the rules. Numbers have a fixed width and the high byte first: a column of them is the byte swap of a NumPy view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from headrace.array_types import BoolArray, ByteArray, Int64Array
from headrace.spark.arrow_types import FLAT
from headrace.spark.formats.arrow_buffers import bytes_of, validity
from headrace.spark.formats.json_values import BadRow, excerpt
from headrace.spark.formats.record_values import bad_rows
from headrace.spark.formats.value_parts import NotOfSchema

__all__ = ["SCALARS", "Scalar", "decode_scalars", "decode_texts", "encode_scalars"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A format of single values.

    Attributes:
        noun: The name in messages, with its article.
        spark: The type of the column that a source reads.
        writes: The Spark types that a sink writes without a loss.
        swapped: NumPy type of the bytes of a value, high byte first; None where values have no fixed width.
        one_to_one: Whether equal values have equal bytes, so that records of one key are in one partition.
    """

    noun: str
    spark: DataType
    writes: tuple[str, ...]
    swapped: str | None = None
    one_to_one: bool = True


SCALARS: Final[Mapping[str, Scalar]] = {
    "short": Scalar("a short", ShortType(), ("tinyint", "smallint"), ">i2"),
    "integer": Scalar("an integer", IntegerType(), ("tinyint", "smallint", "int"), ">i4"),
    "long": Scalar("a long", LongType(), ("tinyint", "smallint", "int", "bigint"), ">i8"),
    # 0.0 equals -0.0, and there are many bytes for NaN.
    "float": Scalar("a float", FloatType(), ("float",), ">f4", one_to_one=False),
    "double": Scalar("a double", DoubleType(), ("float", "double"), ">f8", one_to_one=False),
    "boolean": Scalar("a boolean", BooleanType(), ("boolean",), "u1"),
    "uuid": Scalar("a UUID", StringType(), ("string",)),
    "string": Scalar("a string", StringType(), ("string",)),
    "bytes": Scalar("bytes", BinaryType(), ("binary", "string")),
}
_NAN_BITS: Final = 0x7FF8_0000_0000_0000
_UUID_LENGTH: Final = 36  # 8-4-4-4-12 hexadecimal digits
_UUID_DASHES: Final = (8, 13, 18, 23)
_NOT_A_UUID: Final = "it is no UUID of 36 characters, as 67e55044-10b1-426f-9247-bb680e5fe0c8"


def _hexadecimal(digits: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[np.frombuffer(digits, np.uint8)] = True
    return table


_LOWER_DIGITS: Final = _hexadecimal(b"0123456789abcdef")
_DIGITS: Final = _hexadecimal(b"0123456789abcdefABCDEF")


def decode_scalars(values: pa.Array, name: str, *, is_key: bool = False) -> tuple[pa.Array, list[BadRow]]:
    """Return (one value per row, the rows that do not decode), as Kafka's deserializers do.

    A null stays null, and rows that do not decode are null. UUIDs are texts in lower case.

    Args:
        values: Binary keys or values of records.
        name: A format of `SCALARS`.
        is_key: Whether a value must have the very bytes that Kafka's serializer writes. Two texts of one UUID would be
            equal keys in different partitions.
    """
    if name == "string":
        return decode_texts(values)
    if name == "bytes":
        return values.cast(pa.binary()), []
    data, offsets = bytes_of(values)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    there = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    reasons: dict[int, str] = {}
    if name == "uuid":
        found = _decode_uuids(data, starts, lengths, there, reasons, _LOWER_DIGITS if is_key else _DIGITS)
        return found, bad_rows(values, reasons)
    scalar = SCALARS[name]
    assert scalar.swapped is not None
    kind = np.dtype(scalar.swapped)
    good = _of_length(kind.itemsize, scalar.noun, lengths, there, reasons)
    plain = _slices(data, starts, lengths, good, kind.itemsize).reshape(-1).view(kind)
    if name == "boolean" and (is_wrong := plain > 1).any():
        rows = np.flatnonzero(good)[is_wrong]
        reasons |= dict.fromkeys(rows.tolist(), "a boolean is a byte that is 0 or 1")
        good[rows] = False
        plain = plain[~is_wrong]
    column = np.zeros(len(values), np.bool_ if name == "boolean" else kind.newbyteorder("="))
    column[good] = plain
    return _arrow_array(column, good, FLAT[scalar.spark.typeName()]), bad_rows(values, reasons)


def _of_length(
    width: int, noun: str, lengths: NDArray[np.int32], there: BoolArray, reasons: dict[int, str]
) -> BoolArray:
    """Return which rows have `width` bytes; `reasons` gets the others that are not null."""
    good: BoolArray = there & (lengths == width)
    for row in np.flatnonzero(there & ~good).tolist():
        reasons[row] = f"it has {_bytes(int(lengths[row]))}; {noun} has {width}"
    return good


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _slices(data: ByteArray, starts: Int64Array, lengths: NDArray[np.int32], good: BoolArray, width: int) -> ByteArray:
    """Return the bytes of the good rows, `width` of each, one behind the other."""
    count = int(np.count_nonzero(good))
    if not count:
        return np.zeros((0, width), np.uint8)
    # Nulls take no bytes. So where all other rows are good, their bytes follow each other, and nothing is copied.
    if int(lengths.sum()) == count * width:
        begin = int(starts[0])
        return data[begin : begin + count * width].reshape(-1, width)
    return data[starts[good][:, None] + np.arange(width)]


def _arrow_array(column: NDArray[Any], good: BoolArray, kind: pa.DataType) -> pa.Array:
    data = np.packbits(column, bitorder="little") if column.dtype == np.bool_ else column
    return pa.Array.from_buffers(kind, len(column), [validity(good), pa.py_buffer(data)])


def _decode_uuids(
    data: ByteArray,
    starts: Int64Array,
    lengths: NDArray[np.int32],
    there: BoolArray,
    reasons: dict[int, str],
    digits: NDArray[np.bool_],
) -> pa.Array:
    good: BoolArray = there & (lengths == _UUID_LENGTH)
    texts = _slices(data, starts, lengths, good, _UUID_LENGTH)
    fine = _are_uuids(texts, digits)
    good[np.flatnonzero(good)[~fine]] = False
    reasons |= dict.fromkeys(np.flatnonzero(there & ~good).tolist(), _NOT_A_UUID)
    return pc.ascii_lower(_equal_slices(texts[fine], good).cast(pa.string()))


def _are_uuids(texts: ByteArray, digits: NDArray[np.bool_]) -> BoolArray:
    """Return which of the texts, a row of 36 bytes each, are UUIDs."""
    has_digits = np.delete(digits[texts], _UUID_DASHES, axis=1).all(axis=1)
    return np.asarray(has_digits & (texts[:, _UUID_DASHES] == ord("-")).all(axis=1), np.bool_)


def _equal_slices(data: ByteArray, there: BoolArray) -> pa.Array:
    """Return rows of bytes as a binary array, null where `there` is False; nulls take no bytes."""
    ends = np.zeros(len(there) + 1, np.int64)
    np.cumsum(there * data.shape[1], out=ends[1:])
    buffers = [validity(there), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(there), buffers)


def decode_texts(values: pa.Array) -> tuple[pa.Array, list[BadRow]]:
    """Return (bytes as strings, the rows that are not UTF-8, which are null)."""
    try:
        return values.cast(pa.string()), []
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    bad: list[BadRow] = []
    for index, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            bad.append(BadRow(index, f"it is not UTF-8 at byte {error.start + 1}", excerpt(value)))
            texts.append(None)
    return pa.array(texts, pa.string()), bad


def encode_scalars(column: pa.Array, name: str, path: str) -> pa.Array:
    """Return the column as Kafka's serializers write it, as a binary array. A null stays null.

    Args:
        column: Values of one of the types that the format writes.
        name: A format of `SCALARS`.
        path: The column's name, for errors.

    Raises:
        NotOfSchema: for a text that is no UUID.
    """
    if name in ("string", "bytes"):
        return column.cast(pa.binary())
    there = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    found = column.drop_null()
    if name == "uuid":
        return _encode_uuids(found, there, path)
    scalar = SCALARS[name]
    assert scalar.swapped is not None
    plain = found.cast(FLAT[scalar.spark.typeName()]).to_numpy(zero_copy_only=False)
    swapped = np.ascontiguousarray(plain.astype(scalar.swapped))
    if name == "double":
        # DoubleSerializer uses Double.doubleToLongBits, which has one form of NaN. FloatSerializer keeps the bits.
        swapped.view(">i8")[np.isnan(plain)] = _NAN_BITS
    return _equal_slices(swapped.view(np.uint8).reshape(-1, swapped.itemsize), there)


def _encode_uuids(texts: pa.Array, there: BoolArray, path: str) -> pa.Array:
    data, offsets = bytes_of(texts.cast(pa.binary()))
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    good = lengths == _UUID_LENGTH
    rows = _slices(data, starts, lengths, good, _UUID_LENGTH)
    good[good] = _are_uuids(rows, _DIGITS)
    if not good.all():
        wrong = texts[int(np.flatnonzero(~good)[0])].as_py()
        raise NotOfSchema(f"{path} is {excerpt(wrong.encode())!r}: {_NOT_A_UUID}")
    return pc.ascii_lower(_equal_slices(rows, there).cast(pa.string())).cast(pa.binary())
