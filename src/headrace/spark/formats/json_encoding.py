"""Rows to JSON records, as Spark's `to_json` writes them: null fields of structs left out, numbers as Java prints them.

Timestamps are written with milliseconds and the offset of the session's time zone ("2013-01-01T05:06:07.123Z"), as
Spark does by default. Integers and strings are written by compiled loops (`json_text_kernels`), other columns become
columns of text before: no Python object per row for the flat types.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.formats import json_text_kernels as kernels
from headrace.spark.formats.java_text import java_double, quoted

_MOST_BYTES = 2**31 - 1  # of an array with 32-bit offsets
_SPECIAL = r'[\x00-\x1f"\\]'


def encode_json(batch: pa.RecordBatch, columns: Sequence[str], *, exact_time: bool = False) -> pa.Array:
    """One JSON object per row, as a binary array.

    `exact_time` writes timestamp columns in UTC with microseconds: as parts of a key they must tell rows apart.
    """
    rows = len(batch)
    if not rows:
        return pa.array([], pa.binary())
    parts = [_part(batch.column(name), name, exact_time=exact_time) for name in columns]
    sizes = np.zeros(rows, np.int64)
    for part in parts:
        if part.data is None:
            kernels.add_integer_sizes(part.values, part.there, len(part.label), sizes)
        else:
            kernels.add_text_sizes(part.values, part.there, len(part.label) + 2 * part.quoted, sizes)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.maximum(sizes, 1) + 1, out=offsets[1:])
    cursors, target = offsets[:-1].copy(), np.empty(int(offsets[-1]), np.uint8)
    for part in parts:
        if part.data is None:
            kernels.write_integers(part.values, part.there, part.label, cursors, target)
        else:
            kernels.write_texts(part.values, part.data, part.there, part.label, part.quoted, cursors, target)
    kernels.close_rows(offsets, target)
    if len(target) > _MOST_BYTES:
        return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(target)])
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(target)]
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One column as the kernels take it: integers, or with `data` texts between `values`; which rows have one."""

    label: Any
    values: Any
    there: Any
    data: Any = None
    quoted: bool = False


def _part(column: pa.Array, name: str, *, exact_time: bool) -> _Part:
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
        if kernels.is_plain_text(data, int(offsets[0]), int(offsets[-1])):
            return _Part(label, offsets, read_only(there), data, quoted=True)
    exact = exact_time and pa.types.is_timestamp(kind)
    offsets, data = _bytes_of(_exact_timestamps(column) if exact else text_of(column))
    return _Part(label, offsets, read_only(there), data)


def _bytes_of(texts: pa.Array) -> tuple[Any, Any]:
    _, ends, body = texts.buffers()
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return read_only(np.frombuffer(ends, np.int32, len(texts) + 1, texts.offset * 4)), read_only(data)


def read_only(array: Any) -> Any:
    """A view that compiled loops take whether its memory is Arrow's, which cannot be written, or NumPy's."""
    view = array.view()
    view.setflags(write=False)
    return view


def text_of(column: pa.Array) -> pa.Array:
    """The JSON text of each value; null stays null."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(column.cast(pa.string()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_date(kind) and _few_digit_years(column):
        return pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
    if pa.types.is_timestamp(kind) and kind.tz in {"UTC", None} and _few_digit_years(column):
        return _timestamps(column)
    return pa.array([None if value is None else _text(value, kind) for value in _values(column)], pa.string())


def _strings(column: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(column, _SPECIAL)
    if not pc.any(special, min_count=0).as_py():
        return pc.binary_join_element_wise('"', column, '"', "")
    encoded = column.dictionary_encode()
    texts = pa.array([quoted(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _floats(column: pa.Array) -> pa.Array:
    magnitude = pc.abs(column)
    usual = pc.and_(pc.greater_equal(magnitude, 1e-3), pc.less(magnitude, 1e6))
    if pc.all(pc.fill_null(usual, True), min_count=0).as_py() and pa.types.is_float64(column.type):
        text = column.cast(pa.string())
        whole = pc.invert(pc.match_substring(text, "."))
        return pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    return pa.array([None if value is None else _float(value) for value in _values(column)], pa.string())


def _timestamps(column: pa.Array) -> pa.Array:
    millis = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms"))
    zone = '"' if column.type.tz is None else 'Z"'
    return pc.binary_join_element_wise('"', pc.strftime(millis, "%Y-%m-%dT%H:%M:%S"), zone, "")


def _exact_timestamps(column: pa.Array) -> pa.Array:
    utc = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    zone = '"' if column.type.tz is None else 'Z"'
    if _few_digit_years(utc):
        return pc.binary_join_element_wise('"', pc.strftime(utc, "%Y-%m-%dT%H:%M:%S"), zone, "")
    texts = [None if value is None else f'"{value.isoformat(timespec="microseconds")}{zone}' for value in _values(utc)]
    return pa.array(texts, pa.string())


def _few_digit_years(column: pa.Array) -> bool:
    """Whether all years have four digits, which is what Arrow's own formatting can do."""
    if column.null_count == len(column):
        return True
    years = pc.min_max(pc.year(column)).as_py()
    return bool(years["min"] >= 1000 and years["max"] <= 9999)


def _values(column: pa.Array) -> list[Any]:
    return list(column.to_pylist())


def _float(value: float) -> str:
    text = java_double(value)
    return text if text[-1].isdigit() else f'"{text}"'


def _text(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        inner = ((kind.field(i).name, kind.field(i).type) for i in range(kind.num_fields))
        fields = [f"{quoted(name)}:{_text(value[name], sub)}" for name, sub in inner if value[name] is not None]
        return "{" + ",".join(fields) + "}"
    if pa.types.is_map(kind):
        return "{" + ",".join(f"{quoted(str(k))}:{_text(v, kind.item_type)}" for k, v in value) + "}"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "[" + ",".join(_text(item, kind.value_type) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (int, Decimal)):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, datetime):
        return f'"{_instant(value)}"'
    return f'"{value}"'  # a date


def _instant(value: datetime) -> str:
    text = f"{value.year:04}-{value.month:02}-{value.day:02}T{value:%H:%M:%S}.{value.microsecond // 1000:03}"
    offset = value.utcoffset()
    if offset is None:
        return text
    seconds = int(offset.total_seconds())
    if seconds == 0:
        return text + "Z"
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    tail = f":{seconds % 60:02}" if seconds % 60 else ""
    return f"{text}{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}{tail}"
