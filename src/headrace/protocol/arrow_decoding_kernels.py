"""The loops that read records, compiled by numba: no Python object per record. Arrays in, arrays out; `arrow_batches`
calls them. Those that write are in `arrow_encoding_kernels`.

Rules: every kernel is cached on disk and releases the GIL. Arrays that are only read come in read-only, so that each
kernel is compiled for one set of types. What is read from the wire is bounds-checked here: numba itself checks nothing,
and these bytes come from strangers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["copy_bytes", "copy_slices", "scan_headers", "scan_records"]

BAD = -1  # a position that says: malformed


@intrinsic
def copy_bytes(_typing: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """memcpy of `length` bytes between two byte arrays. A loop over bytes takes 17 times as long for 100 of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_type, _, source_type, _, _ = signature.args
        to, to_index, start, start_index, count = arguments
        to_data = context.make_array(target_type)(context, builder, to).data
        start_data = context.make_array(source_type)(context, builder, start).data
        cgutils.raw_memcpy(builder, builder.gep(to_data, [to_index]), builder.gep(start_data, [start_index]), count, 1)
        return context.get_dummy_value()

    return types.void(target, target_at, source, source_at, length), generate


@njit(cache=True, nogil=True, inline="always")
def _read_varint(source: Any, position: Any, end: Any) -> tuple[Any, Any]:
    """A zigzag varint: (value, position behind it), the position BAD when it leaves the record."""
    if position >= end or position < 0:
        return 0, BAD
    byte = np.uint64(source[position])
    position += 1
    if byte < 0x80:
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), position
    zigzag = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    while True:
        if position >= end or shift > np.uint64(63):
            return 0, BAD
        byte = np.uint64(source[position])
        position += 1
        zigzag |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1)), position
        shift += np.uint64(7)


@njit(cache=True, nogil=True)
def scan_records(  # noqa: C901 one pass over bytes; every check must stand where the byte is read
    source: Any,
    batches: Any,
    start_offset: int,
    end_offset: int,
    key_at: Any,
    key_offsets: Any,
    key_valid: Any,
    value_at: Any,
    value_offsets: Any,
    value_valid: Any,
    offsets: Any,
    timestamps: Any,
    headers_at: Any,
    headers_end: Any,
    header_counts: Any,
    emitted: Any,
) -> tuple[int, int]:
    """Parses every record of every batch and keeps those within [start_offset, end_offset).

    `batches` has a row per batch: section start, section end, count, base offset, base timestamp, the timestamp of all
    records or -1 (log append time), last offset delta. `*_at` receive positions in `source`, `*_offsets` Arrow's.
    Returns (records kept, index of the first malformed batch or -1).
    """
    row = 0
    key_bytes = 0
    value_bytes = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for batch in range(batches.shape[0]):
        position = batches[batch, 0]
        section_end = batches[batch, 1]
        base_offset = batches[batch, 3]
        base_timestamp = batches[batch, 4]
        append_time = batches[batch, 5]
        first_row = row
        for _ in range(batches[batch, 2]):
            length, position = _read_varint(source, position, section_end)
            if position < 0 or length < 1 or length > section_end - position:
                return row, batch
            end = position + length
            timestamp_delta, position = _read_varint(source, position + 1, end)
            offset_delta, position = _read_varint(source, position, end)
            if offset_delta < 0 or offset_delta > batches[batch, 6]:
                return row, batch
            key_length, position = _read_varint(source, position, end)
            if position < 0 or key_length > end - position:
                return row, batch
            key_position = position
            if key_length > 0:
                position += key_length
            value_length, position = _read_varint(source, position, end)
            if position < 0 or value_length > end - position:
                return row, batch
            value_position = position
            if value_length > 0:
                position += value_length
            header_count, position = _read_varint(source, position, end)
            if position < 0 or header_count < 0 or header_count > end - position:
                return row, batch
            if header_count == 0 and position != end:
                return row, batch
            offset = base_offset + offset_delta
            if start_offset <= offset < end_offset:
                key_at[row] = key_position
                key_valid[row] = key_length >= 0
                value_at[row] = value_position
                value_valid[row] = value_length >= 0
                if key_length > 0:
                    key_bytes += key_length
                if value_length > 0:
                    value_bytes += value_length
                offsets[row] = offset
                timestamps[row] = append_time if append_time >= 0 else base_timestamp + timestamp_delta
                headers_at[row] = position
                headers_end[row] = end
                header_counts[row] = header_count
                row += 1
                key_offsets[row] = key_bytes
                value_offsets[row] = value_bytes
            position = end
        if position != section_end:
            return row, batch
        emitted[batch] = row - first_row
    return row, BAD


@njit(cache=True, nogil=True)
def scan_headers(
    source: Any,
    headers_at: Any,
    headers_end: Any,
    header_counts: Any,
    key_at: Any,
    key_offsets: Any,
    value_at: Any,
    value_offsets: Any,
    value_valid: Any,
) -> int:
    """Parses the headers of all records. Returns the first record with malformed ones, or -1."""
    item = 0
    key_bytes = 0
    value_bytes = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(header_counts.shape[0]):
        position = headers_at[row]
        end = headers_end[row]
        for _ in range(header_counts[row]):
            key_length, position = _read_varint(source, position, end)
            if position < 0 or key_length < 0 or key_length > end - position:
                return row
            key_at[item] = position
            key_bytes += key_length
            position += key_length
            value_length, position = _read_varint(source, position, end)
            if position < 0 or value_length > end - position:
                return row
            value_at[item] = position
            value_valid[item] = value_length >= 0
            if value_length > 0:
                value_bytes += value_length
                position += value_length
            item += 1
            key_offsets[item] = key_bytes
            value_offsets[item] = value_bytes
        if position != end:
            return row
    return BAD


@njit(cache=True, nogil=True)
def copy_slices(source: Any, at: Any, offsets: Any, target: Any) -> None:
    """Packs the slices of `source` that start at `at` and are as long as `offsets` say, one behind the other."""
    for row in range(at.shape[0]):
        copy_bytes(target, np.int64(offsets[row]), source, at[row], np.int64(offsets[row + 1] - offsets[row]))
