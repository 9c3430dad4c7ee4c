"""Rows to JSON records, as Spark's `to_json` writes them with every null written out; keys and values alike.

Timestamps are written in UTC with microseconds ("2013-01-01T05:06:07.123456Z"), whatever the session's time zone: the
same instant is the same text in a key and in a value, on every instance. A timestamp without a zone has no "Z".
Integers and strings are written by compiled loops (`json_text_kernels`), other columns become columns of text before,
nested ones from their innermost columns outwards.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.array_types import BoolArray, ByteArray, Int32Array, IntegerArray
from headrace.spark.formats import json_text_kernels as kernels
from headrace.spark.formats.arrow_buffers import binary_array, read_only
from headrace.spark.formats.java_text import java_double, java_float, quoted

_SPECIAL = r'[\x00-\x1f"\\]'


def encode_json(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return one JSON object per row, as a binary array."""
    rows = len(batch)
    if not rows:
        return pa.array([], pa.binary())
    parts = [_part(batch.column(name), name) for name in columns]
    sizes = np.zeros(rows, np.int64)
    for part in parts:
        if part.data is None:
            kernels.add_integer_sizes(part.values, part.there, len(part.label), sizes)
        else:
            kernels.add_text_sizes(part.values, part.there, len(part.label), part.quoted, sizes)
    offsets = np.zeros(rows + 1, np.int64)
    # Every part begins with a comma, the first of which becomes the opening brace; one byte more is for the closing
    # one. A row without columns is `{}`.
    np.cumsum(np.maximum(sizes, 1) + 1, out=offsets[1:])
    cursors, target = offsets[:-1].copy(), np.empty(int(offsets[-1]), np.uint8)
    for part in parts:
        if part.data is None:
            kernels.write_integers(part.values, part.there, part.label, cursors, target)
        else:
            kernels.write_texts(part.values, part.data, part.there, part.label, part.quoted, cursors, target)
    kernels.close_rows(offsets, target)
    return binary_array(offsets, target)


@dataclass(frozen=True, slots=True)
class _Part:
    """One column in the form that kernels take: integers, or texts in `data` delimited by `values`."""

    label: ByteArray
    values: IntegerArray
    there: BoolArray
    data: ByteArray | None = None
    quoted: bool = False


def _part(column: pa.Array, name: str) -> _Part:
    label = read_only(np.frombuffer(("," + quoted(name) + ":").encode(), np.uint8))
    there = np.ones(len(column), np.bool_)
    if column.null_count:
        there = column.is_valid().to_numpy(zero_copy_only=False)
    kind = column.type
    if pa.types.is_signed_integer(kind):
        values = column.cast(pa.int64()).fill_null(0).to_numpy()
        return _Part(label, read_only(values), read_only(there))
    if pa.types.is_string(kind):
        offsets, data = _bytes_of(column)
        # The whole column is scanned at once. Without special characters its bytes are copied between quotes as they
        # are.
        if kernels.is_plain_text(data, int(offsets[0]), int(offsets[-1])):
            return _Part(label, offsets, read_only(there), data, quoted=True)
    offsets, data = _bytes_of(text_of(column))
    return _Part(label, offsets, read_only(there), data)


def _bytes_of(texts: pa.Array) -> tuple[Int32Array, ByteArray]:
    _, ends, body = texts.buffers()
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return read_only(np.frombuffer(ends, np.int32, len(texts) + 1, texts.offset * 4)), read_only(data)


def text_of(column: pa.Array) -> pa.Array:
    """The JSON text of each value; null stays null."""
    kind, types = column.type, pa.types
    if types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if types.is_string(kind) or types.is_large_string(kind):
        return _strings(column.cast(pa.string()))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(pa.string())
    if types.is_floating(kind):
        return _floats(column)
    if types.is_date(kind) or types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', time_text(column), '"', "")
    if types.is_binary(kind) or types.is_large_binary(kind):
        texts = [None if value is None else f'"{base64.b64encode(value).decode()}"' for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if types.is_struct(kind):
        return _structs(column)
    if types.is_map(kind):
        return _maps(column)
    return _lists(column)


def time_text(column: pa.Array) -> pa.Array:
    """Dates ("2013-01-01"), timestamps ("2013-01-01T05:06:07.123456", and "Z" behind instants); UTC."""
    is_date = pa.types.is_date(column.type)
    plain = column if is_date else column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    if _few_digit_years(plain):
        texts = plain.cast(pa.string()) if is_date else pc.strftime(plain, "%Y-%m-%dT%H:%M:%S")
    else:  # NumPy knows every year; Java puts a sign before those of more than four digits
        days = plain.cast(pa.int32() if is_date else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        written = np.datetime_as_string(days.astype("datetime64[D]" if is_date else "datetime64[us]"))
        texts = pa.array([_with_java_year(text) for text in written.tolist()], pa.string(), mask=_is_null(column))
    if is_date or column.type.tz is None:
        return texts
    return pc.binary_join_element_wise(texts, "Z", "")


def _with_java_year(text: str) -> str:
    year, minus, rest = text.partition("-") if text[0] != "-" else text[1:].partition("-")
    sign = "-" if text[0] == "-" else "+" if len(year) > 4 else ""
    return f"{sign}{year:0>4}{minus}{rest}"


def _is_null(column: pa.Array) -> BoolArray:
    found: BoolArray = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _structs(column: pa.Array) -> pa.Array:
    # Written by concatenating columns of text, from the inside out: no Python object per row at any depth.
    parts = []
    for index in range(column.type.num_fields):
        label = f"{',' if index else '{'}{quoted(column.type.field(index).name)}:"
        parts += [label, _with_nulls(text_of(column.field(index)))]
    texts = pc.binary_join_element_wise(*parts, "}", "") if parts else pa.repeat(pa.scalar("{}"), len(column))
    return _where_valid(column, texts)


def _lists(column: pa.Array) -> pa.Array:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        column = column.cast(pa.list_(column.type.value_type))
    made = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    texts = made.from_arrays(column.offsets, _with_nulls(text_of(column.values)))
    return _where_valid(column, pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", ""))


def _maps(column: pa.Array) -> pa.Array:
    """Return maps as Spark writes them: objects whose names are the texts of the keys."""
    names = column.keys
    if not pa.types.is_string(names.type):
        names = pc.replace_substring(text_of(names), '"', "")
    entries = pc.binary_join_element_wise(_strings(names), _with_nulls(text_of(column.items)), ":")
    texts = pa.ListArray.from_arrays(column.offsets, entries)
    return _where_valid(column, pc.binary_join_element_wise("{", pc.binary_join(texts, ","), "}", ""))


def _with_nulls(texts: pa.Array) -> pa.Array:
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _strings(column: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(column, _SPECIAL)
    if not pc.any(special, min_count=0).as_py():
        return pc.binary_join_element_wise('"', column, '"', "")
    # Escaping is done in Python, for each distinct string once.
    encoded = column.dictionary_encode()
    texts = pa.array([quoted(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _floats(column: pa.Array) -> pa.Array:
    magnitude = pc.abs(column)
    # In this range Arrow and Java both write plain decimals with the shortest digits; outside they differ in where
    # exponents begin and how they look.
    plain = pc.and_(pc.greater_equal(magnitude, 1e-3), pc.less(magnitude, 1e6))
    if pc.all(pc.fill_null(plain, True), min_count=0).as_py() and pa.types.is_float64(column.type):
        text = column.cast(pa.string())
        whole = pc.invert(pc.match_substring(text, "."))
        return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    write = java_double if pa.types.is_float64(column.type) else java_float
    texts = [None if value is None else write(value) for value in column.to_pylist()]
    return pa.array([text if text is None or text[-1].isdigit() else f'"{text}"' for text in texts], pa.string())


def _few_digit_years(column: pa.Array) -> bool:
    """Whether all years have four digits, which is what Arrow's own formatting can do."""
    if column.null_count == len(column):
        return True
    years = pc.min_max(pc.year(column)).as_py()
    return bool(years["min"] >= 1000 and years["max"] <= 9999)
