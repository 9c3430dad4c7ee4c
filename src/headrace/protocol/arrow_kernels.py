"""The loops that read and write records, compiled by numba: no Python object per record. Arrays in, arrays out.

Callers: `arrow_batches` and `sampled_contexts` (decoding), `arrow_encoding` (encoding: measure first, then write into
bytes of that size).
Rules: every kernel is cached on disk and releases the GIL. Arrays that are only read come in read-only, so that each
kernel is compiled for one set of types. Bytes from the wire are bounds-checked here: numba itself checks nothing, and
these bytes come from untrusted clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.cgutils import ir
    from numba.core.typing import Context, Signature

    from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array

__all__ = [
    "BAD",
    "copy_bytes",
    "copy_slices",
    "measure_batches",
    "murmur2_of_slices",
    "read_varint",
    "scan_headers",
    "scan_records",
    "write_batches",
]


BAD = -1  # a position that says: malformed

Integer: TypeAlias = int | np.int64  # numba infers the width


@intrinsic
def copy_bytes(
    _typing: Context,
    target: types.Array,
    target_at: types.Integer,
    source: types.Array,
    source_at: types.Integer,
    length: types.Integer,
) -> tuple[Signature, Callable[..., ir.Value]]:
    """Copy `length` bytes between two byte arrays. A loop over bytes takes 17 times as long for 100 of them."""

    def generate(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: tuple[ir.Value, ...]
    ) -> ir.Value:
        target_type, _, source_type, _, _ = signature.args
        to, to_index, start, start_index, count = arguments
        to_data = context.make_array(target_type)(context, builder, to).data
        start_data = context.make_array(source_type)(context, builder, start).data
        cgutils.raw_memcpy(builder, builder.gep(to_data, [to_index]), builder.gep(start_data, [start_index]), count, 1)
        return context.get_dummy_value()

    return types.void(target, target_at, source, source_at, length), generate


@njit(cache=True, nogil=True, inline="always")
def read_varint(source: ByteArray, position: int, end: int) -> tuple[Integer, int]:
    """A zigzag varint: (value, position behind it), the position BAD when it leaves the record."""
    if position >= end or position < 0:
        return 0, BAD
    # 1. One byte, the common case: lengths below 64 and deltas of neighbouring records.
    byte = np.uint64(source[position])
    position += 1
    if byte < 0x80:
        return np.int64(byte >> np.uint64(1)) ^ -np.int64(byte & np.uint64(1)), position
    # 2. Longer ones. Ten bytes hold 64 bits; an eleventh is malformed, and would shift beyond the integer.
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
    source: ByteArray,
    batches: Int64Array,
    start_offset: int,
    end_offset: int,
    key_at: Int64Array,
    key_offsets: Int32Array,
    key_valid: BoolArray,
    value_at: Int64Array,
    value_offsets: Int32Array,
    value_valid: BoolArray,
    offsets: Int64Array,
    timestamps: Int64Array,
    headers_at: Int64Array,
    headers_end: Int64Array,
    header_counts: Int64Array,
    emitted: Int64Array,
) -> tuple[int, int]:
    """Parse every record of every batch and keeps those within [start_offset, end_offset).

    `batches` has a row per batch: section start, section end, count, base offset, base timestamp, the timestamp of all
    records or -1 (log append time), last offset delta. `*_at` receive positions in `source`, `*_offsets` Arrow's.
    Returns (records kept, index of the first malformed batch or -1).
    """
    # Every length is checked against the end of its record before it is used, and BAD (-1) travels through the varint
    # reader, so one comparison after several reads finds an error in any of them. The scan counts rows and bytes
    # itself; Arrow's offsets are written as it goes.
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
            # 1. The length of the record bounds everything below: a field that leaves its record is malformed, even if
            #    the bytes behind it exist.
            length, position = read_varint(source, position, section_end)
            if position < 0 or length < 1 or length > section_end - position:
                return row, batch
            end = position + length
            # 2. Skip the attributes, which are unused in magic 2. BAD is returned by each further read, so one test
            #    suffices.
            timestamp_delta, position = read_varint(source, position + 1, end)
            offset_delta, position = read_varint(source, position, end)
            # An offset outside of the batch would let a record appear in another batch's range, hence twice or never.
            if offset_delta < 0 or offset_delta > batches[batch, 6]:
                return row, batch
            # 3. Key, value, headers: -1 is null. Lengths are compared with the rest of the record, not added first: a
            #    sum of two large numbers could wrap.
            key_length, position = read_varint(source, position, end)
            if position < 0 or key_length > end - position:
                return row, batch
            key_position = position
            if key_length > 0:
                position += key_length
            value_length, position = read_varint(source, position, end)
            if position < 0 or value_length > end - position:
                return row, batch
            value_position = position
            if value_length > 0:
                position += value_length
            header_count, position = read_varint(source, position, end)
            if position < 0 or header_count < 0 or header_count > end - position:
                return row, batch
            # Headers are parsed by `scan_headers`, if at all; without any the record must end here.
            if header_count == 0 and position != end:
                return row, batch
            offset = base_offset + offset_delta
            # 4. Kept: positions in the source, and running byte counts, which are Arrow's offsets. A record outside of
            #    the range is skipped, but was checked like the others.
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
        # Bytes behind the last record belong to no record.
        if position != section_end:
            return row, batch
        emitted[batch] = row - first_row
    return row, BAD


@njit(cache=True, nogil=True)
def scan_headers(
    source: ByteArray,
    headers_at: Int64Array,
    headers_end: Int64Array,
    header_counts: Int64Array,
    key_at: Int64Array,
    key_offsets: Int32Array,
    value_at: Int64Array,
    value_offsets: Int32Array,
    value_valid: BoolArray,
) -> int:
    """Parse the headers of all records. Returns the first record with malformed ones, or -1."""
    item = 0
    key_bytes = 0
    value_bytes = 0
    key_offsets[0] = 0
    value_offsets[0] = 0
    for row in range(header_counts.shape[0]):
        position = headers_at[row]
        end = headers_end[row]
        for _ in range(header_counts[row]):
            key_length, position = read_varint(source, position, end)
            if position < 0 or key_length < 0 or key_length > end - position:
                return row
            key_at[item] = position
            key_bytes += key_length
            position += key_length
            value_length, position = read_varint(source, position, end)
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
def copy_slices(source: ByteArray, at: Int64Array, offsets: Int32Array, target: ByteArray) -> None:
    """Pack the slices of `source` that start at `at` and are as long as `offsets` say, one behind the other."""
    for row in range(at.shape[0]):
        copy_bytes(target, np.int64(offsets[row]), source, at[row], np.int64(offsets[row + 1] - offsets[row]))


@njit(cache=True, nogil=True, inline="always")
def _varint_bytes(value: Integer) -> int:
    # Zigzag: the sign moves to the lowest bit, so small negative deltas stay short.
    zigzag = (np.uint64(value) << np.uint64(1)) ^ np.uint64(np.int64(value) >> np.int64(63))
    size = 1
    while zigzag > np.uint64(0x7F):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True, inline="always")
def _write_varint(target: ByteArray, position: int, value: Integer) -> int:
    zigzag = (np.uint64(value) << np.uint64(1)) ^ np.uint64(np.int64(value) >> np.int64(63))
    while zigzag > np.uint64(0x7F):
        target[position] = np.uint8((zigzag & np.uint64(0x7F)) | np.uint64(0x80))
        position += 1
        zigzag >>= np.uint64(7)
    target[position] = np.uint8(zigzag)
    return position + 1


@njit(cache=True, nogil=True, inline="always")
def _length(offsets: Int32Array, bitmap: ByteArray, bit: int, row: int) -> Integer:
    """The length of a binary value, -1 for null. An empty bitmap says that nothing is null."""
    if bitmap.shape[0] > 0:
        # The bitmap of a sliced column starts at the slice's own bit (`bit`), the offsets were shifted already.
        place = row + bit
        if not (bitmap[place >> 3] >> np.uint8(place & 7)) & 1:
            return -1
    return np.int64(offsets[row + 1]) - np.int64(offsets[row])


@njit(cache=True, nogil=True, inline="always")
def _header_bytes(
    row: int,
    list_offsets: Int32Array,
    key_offsets: Int32Array,
    value_offsets: Int32Array,
    value_bitmap: ByteArray,
    value_bit: int,
) -> int:
    """The encoded size of a record's header count and headers."""
    if list_offsets.shape[0] == 0:
        return 1
    first = list_offsets[row]
    last = list_offsets[row + 1]
    size: int = _varint_bytes(last - first)
    for item in range(first, last):
        key_length = np.int64(key_offsets[item + 1]) - np.int64(key_offsets[item])
        value_length = _length(value_offsets, value_bitmap, value_bit, item)
        size += _varint_bytes(key_length) + key_length + _varint_bytes(value_length) + max(value_length, 0)
    return size


@njit(cache=True, nogil=True)
def measure_batches(
    rows: Int64Array,
    timestamps: Int64Array,
    key_offsets: Int32Array,
    key_bitmap: ByteArray,
    key_bit: int,
    value_offsets: Int32Array,
    value_bitmap: ByteArray,
    value_bit: int,
    header_list_offsets: Int32Array,
    header_key_offsets: Int32Array,
    header_value_offsets: Int32Array,
    header_value_bitmap: ByteArray,
    header_value_bit: int,
    max_section_bytes: int,
    body_bytes: Int64Array,
    batches: Int64Array,
) -> int:
    """Cut `rows` into batches and measure them.

    `body_bytes` receives each record's size without its length. `batches` gets per batch: first row (index into
    `rows`), count, section bytes, base timestamp, max timestamp. A batch holds at least one record. Empty `key_offsets`
    mean that all keys are null; `timestamps` has one entry for all rows or one for each. Returns the batch count.
    """
    # Greedy: a record joins the present batch if its bytes still fit. Deltas are relative to the first record of the
    # batch, so a record is measured against the present batch first, and again as the first of the next one (both
    # deltas are 0 then, a byte each: `size + 2`).
    count = 0
    section = 0
    for index in range(rows.shape[0]):
        row = rows[index]
        timestamp = timestamps[row] if timestamps.shape[0] > 1 else timestamps[0]
        key_length = _length(key_offsets, key_bitmap, key_bit, row) if key_offsets.shape[0] > 0 else -1
        value_length = _length(value_offsets, value_bitmap, value_bit, row)
        # 1: the attributes byte, always 0.
        size = 1 + _varint_bytes(key_length) + max(key_length, 0) + _varint_bytes(value_length) + max(value_length, 0)
        size += _header_bytes(
            row, header_list_offsets, header_key_offsets, header_value_offsets, header_value_bitmap, header_value_bit
        )
        if count > 0:
            delta = index - batches[count - 1, 0]
            body = size + _varint_bytes(timestamp - batches[count - 1, 3]) + _varint_bytes(delta)
            whole = _varint_bytes(body) + body
            if section + whole <= max_section_bytes:
                body_bytes[index] = body
                section += whole
                batches[count - 1, 1] += 1
                batches[count - 1, 2] = section
                batches[count - 1, 4] = max(batches[count - 1, 4], timestamp)
                continue
        body = size + 2
        body_bytes[index] = body
        section = _varint_bytes(body) + body
        batches[count, 0] = index
        batches[count, 1] = 1
        batches[count, 2] = section
        batches[count, 3] = timestamp
        batches[count, 4] = timestamp
        count += 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _write_slice(target: ByteArray, position: int, data: ByteArray, start: int, length: int) -> int:
    """A length and its bytes; a negative length (null) writes none."""
    position = _write_varint(target, position, length)
    if length <= 0:
        return position
    copy_bytes(target, np.int64(position), data, np.int64(start), np.int64(length))
    return position + length


@njit(cache=True, nogil=True)
def write_batches(
    rows: Int64Array,
    timestamps: Int64Array,
    key_offsets: Int32Array,
    key_bitmap: ByteArray,
    key_bit: int,
    key_data: ByteArray,
    value_offsets: Int32Array,
    value_bitmap: ByteArray,
    value_bit: int,
    value_data: ByteArray,
    header_list_offsets: Int32Array,
    header_key_offsets: Int32Array,
    header_key_data: ByteArray,
    header_value_offsets: Int32Array,
    header_value_bitmap: ByteArray,
    header_value_bit: int,
    header_value_data: ByteArray,
    body_bytes: Int64Array,
    batches: Int64Array,
    gap: int,
    target: ByteArray,
) -> int:
    """Write the records of all batches that `measure_batches` cut, `gap` bytes before each. Returns the bytes used."""
    position = 0
    for batch in range(batches.shape[0]):
        position += gap
        first = batches[batch, 0]
        base_timestamp = batches[batch, 3]
        for delta in range(batches[batch, 1]):
            index = first + delta
            row = rows[index]
            timestamp = timestamps[row] if timestamps.shape[0] > 1 else timestamps[0]
            position = _write_varint(target, position, body_bytes[index])
            target[position] = 0
            position = _write_varint(target, position + 1, timestamp - base_timestamp)
            position = _write_varint(target, position, delta)
            if key_offsets.shape[0] > 0:
                length = _length(key_offsets, key_bitmap, key_bit, row)
                position = _write_slice(target, position, key_data, key_offsets[row], length)
            else:
                # -1 in zigzag: a null key.
                target[position] = 1
                position += 1
            length = _length(value_offsets, value_bitmap, value_bit, row)
            position = _write_slice(target, position, value_data, value_offsets[row], length)
            if header_list_offsets.shape[0] == 0:
                target[position] = 0
                position += 1
            else:
                position = _write_varint(target, position, header_list_offsets[row + 1] - header_list_offsets[row])
                for item in range(header_list_offsets[row], header_list_offsets[row + 1]):
                    start = header_key_offsets[item]
                    length = np.int64(header_key_offsets[item + 1]) - np.int64(start)
                    position = _write_slice(target, position, header_key_data, start, length)
                    length = _length(header_value_offsets, header_value_bitmap, header_value_bit, item)
                    position = _write_slice(target, position, header_value_data, header_value_offsets[item], length)
    return position


@njit(cache=True, nogil=True)
def murmur2_of_slices(
    data: ByteArray, offsets: Int32Array, bitmap: ByteArray, bit: int, partitions: int, target: Int32Array
) -> None:
    """Return Kafka's partition of each key (`partitioner.partition_for_key`); -1 for a null key."""
    # Kafka's `Utils.murmur2`, in 32-bit arithmetic: every step is cast, because numba widens to 64 bits.
    multiplier = np.uint32(0x5BD1E995)
    for row in range(target.shape[0]):
        length = _length(offsets, bitmap, bit, row)
        if length < 0:
            target[row] = -1
            continue
        start = offsets[row]
        digest = np.uint32(np.uint32(0x9747B28C) ^ np.uint32(length))
        whole = length & ~3
        for at in range(start, start + whole, 4):
            word = np.uint32(
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            word = np.uint32(word * multiplier)
            word = np.uint32(np.uint32(word ^ (word >> np.uint32(24))) * multiplier)
            digest = np.uint32(np.uint32(digest * multiplier) ^ word)
        # Up to three bytes are left: lowest byte first, as in the switch without breaks of the Java code.
        rest = length - whole
        if rest > 0:
            for index in range(rest):
                digest = np.uint32(digest ^ (np.uint32(data[start + whole + index]) << np.uint32(8 * index)))
            digest = np.uint32(digest * multiplier)
        digest = np.uint32(np.uint32(digest ^ (digest >> np.uint32(13))) * multiplier)
        digest = np.uint32(digest ^ (digest >> np.uint32(15)))
        # `Utils.toPositive`: the sign bit is cleared, not negated; `abs` of the least number would be negative.
        target[row] = np.int64(digest & np.uint32(0x7FFFFFFF)) % partitions
