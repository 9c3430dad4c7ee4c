"""Arrow columns → record batches, and keys → partitions. See `arrow_batches`, which passes both on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from headrace.protocol import arrow_kernels as kernels
from headrace.protocol.batch_headers import HEADER_BYTES, NO_PRODUCER, build_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.array_types import ByteArray, Int32Array, Int64Array, IntegerArray

__all__ = ["HeaderColumns", "encode_from_arrow", "header_columns", "murmur2_partitions"]

_Element = TypeVar("_Element", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Binary:
    """The buffers of a binary column, as the kernels take them: read-only, offsets already shifted to the slice."""

    offsets: Int32Array
    bitmap: ByteArray
    bit: int
    data: ByteArray


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """The buffers of a column of headers. Empty `lists` mean that no record has headers."""

    lists: Int32Array
    names: _Binary
    values: _Binary


def encode_from_arrow(
    keys: pa.Array | None,
    values: pa.Array,
    *,
    timestamps_ms: int | pa.Array | Int64Array | Sequence[int],
    headers: pa.Array | HeaderColumns | None = None,
    compression: str = "none",
    max_batch_bytes: int = 1_000_000,
    indices: IntegerArray | Sequence[int] | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> list[bytes]:
    """Encode rows as record batches, in order. Each batch starts at offset 0: the broker assigns offsets.

    Args:
        keys: binary or string column; None: all keys are null.
        values: binary or string column; a null value is a tombstone.
        timestamps_ms: one number for all rows, or an int64 column.
        headers: column of list<struct<key, value>>, or `header_columns` of it where several calls encode its rows;
            None: no headers.
        compression: "none", "gzip", "snappy", "lz4" or "zstd".
        max_batch_bytes: size of a batch before compression. A batch has at least one record.
        indices: rows to encode, for example those of one partition; None: all.
        producer_id: of an idempotent producer.
        producer_epoch: of that producer.
        base_sequence: sequence number of the first record; it continues from batch to batch.
        transactional: the batches belong to a transaction.

    Raises:
        ValueError: the columns differ in length.

    Example:
        >>> values = pa.array([b"a", b"b"])
        >>> [batch] = encode_from_arrow(None, values, timestamps_ms=1_700_000_000_000)
    """
    rows = _rows(len(values), indices)
    if not len(rows):
        return []
    timestamps = _timestamps(timestamps_ms, len(values))
    key = _NO_COLUMN if keys is None else _binary(keys, len(values))
    value = _binary(values, len(values))
    columns = headers if isinstance(headers, HeaderColumns) else header_columns(headers, len(values))
    if len(columns.lists) not in (0, len(values) + 1):  # the kernels index without bounds checks
        raise ValueError(f"headers of {len(columns.lists) - 1} rows beside {len(values)} values")
    header_lists, header_key, header_value = columns.lists, columns.names, columns.values
    # Two passes over the rows: measure, then write into an array of exactly that size. Growing an array while writing
    # would copy it several times, and the size of a record stands in front of it, so it has to be known anyway.
    # One row per batch at most, so `measured` has as many as there are records; it is cut after the call.
    body_bytes = np.empty(len(rows), np.int64)
    measured = np.empty((len(rows), 5), np.int64)
    count = kernels.measure_batches(
        rows,
        timestamps,
        key.offsets,
        key.bitmap,
        key.bit,
        value.offsets,
        value.bitmap,
        value.bit,
        header_lists,
        header_key.offsets,
        header_value.offsets,
        header_value.bitmap,
        header_value.bit,
        max(max_batch_bytes - HEADER_BYTES, 1),
        body_bytes,
        measured,
    )
    batches = measured[:count]
    target = np.empty(int(batches[:, 2].sum()), np.uint8)
    kernels.write_batches(
        rows,
        timestamps,
        key.offsets,
        key.bitmap,
        key.bit,
        key.data,
        value.offsets,
        value.bitmap,
        value.bit,
        value.data,
        header_lists,
        header_key.offsets,
        header_key.data,
        header_value.offsets,
        header_value.bitmap,
        header_value.bit,
        header_value.data,
        body_bytes,
        batches,
        0,
        target,
    )
    sections = target.data
    # Headers and CRCs in Python: a few microseconds per batch, of thousands of records.
    encoded = []
    position = 0
    for first, records, size, base_timestamp, max_timestamp in batches.tolist():
        encoded.append(
            build_batch(
                sections[position : position + size],
                records_count=records,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                compression_type=compression,
                transactional=transactional,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                # Sequences wrap from 2^31 - 1 to 0 (KIP-98).
                base_sequence=base_sequence if base_sequence < 0 else (base_sequence + first) & 0x7FFF_FFFF,
            )
        )
        position += size
    return encoded


def murmur2_partitions(keys: pa.Array, partitions: int) -> Int32Array:
    """Return the partition of each key (binary or string) by Kafka's default partitioner: int32, -1 for null."""
    key = _binary(keys, len(keys))
    target = np.empty(len(keys), np.int32)
    kernels.murmur2_of_slices(key.data, key.offsets, key.bitmap, key.bit, partitions, target)
    return target


def _read_only(array: NDArray[_Element]) -> NDArray[_Element]:
    array.setflags(write=False)
    return array


_NO_BYTES = _read_only(np.empty(0, np.uint8))
_NO_OFFSETS = _read_only(np.empty(0, np.int32))
_ONE_OFFSET = _read_only(np.zeros(1, np.int32))
_NO_COLUMN = _Binary(_NO_OFFSETS, _NO_BYTES, 0, _NO_BYTES)
_NO_HEADERS = HeaderColumns(_NO_OFFSETS, _NO_COLUMN, _NO_COLUMN)


def _rows(length: int, indices: IntegerArray | Sequence[int] | None) -> Int64Array:
    # Checked here: the kernels index without bounds checks.
    rows = np.arange(length, dtype=np.int64) if indices is None else np.array(indices, np.int64)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < length:
        raise ValueError(f"row indices outside of {length} rows")
    return _read_only(rows)


def _timestamps(timestamps_ms: int | pa.Array | Int64Array | Sequence[int], length: int) -> Int64Array:
    if isinstance(timestamps_ms, int):
        return _read_only(np.array([timestamps_ms], np.int64))
    if isinstance(timestamps_ms, pa.ChunkedArray):
        timestamps_ms = timestamps_ms.combine_chunks()
    if isinstance(timestamps_ms, pa.Array):
        # -1 is Kafka's "no timestamp".
        timestamps_ms = timestamps_ms.fill_null(-1).to_numpy(zero_copy_only=False)
    timestamps = np.array(timestamps_ms, np.int64)
    if len(timestamps) != length:
        raise ValueError(f"{len(timestamps)} timestamps for {length} values")
    return _read_only(timestamps)


def _binary(column: pa.Array, length: int) -> _Binary:
    """The buffers of a binary or string column; large and view types are cast first."""
    if len(column) != length:
        raise ValueError(f"a column of {len(column)} rows beside {length} values")
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        # Kernels know 32-bit offsets. Large types are cast, which fails above 2 GiB instead of wrapping.
        column = column.cast(pa.binary())
    bitmap, offsets, data = column.buffers()
    first = column.offset
    return _Binary(
        offsets=_view(offsets, np.int32)[first : first + length + 1] if length else _ONE_OFFSET,
        # Without nulls no bitmap is looked at, even if the buffer exists.
        bitmap=_NO_BYTES if bitmap is None or not column.null_count else _view(bitmap, np.uint8),
        bit=first,
        data=_view(data, np.uint8),
    )


def _view(buffer: pa.Buffer | None, kind: type[_Element]) -> NDArray[_Element]:
    if buffer is None or not buffer.size:
        return _read_only(np.empty(0, kind))
    return _read_only(np.frombuffer(buffer, kind))


def header_columns(headers: pa.Array | None, length: int) -> HeaderColumns:
    """Return the buffers of a column of headers.

    Args:
        headers: list<struct<key, value>>; None: no headers.
        length: The number of records.

    Raises:
        ValueError: a column of another length, or a header without a key.
    """
    if headers is None:
        return _NO_HEADERS
    if len(headers) != length:
        raise ValueError(f"headers of {len(headers)} rows beside {length} values")
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks() if headers.num_chunks != 1 else headers.chunk(0)
    # Arrow allows a null list to span items of the child array. `flatten` leaves those out; offsets are rebuilt from
    # lengths to match.
    pairs = headers.flatten()
    if not len(pairs):
        return _NO_HEADERS
    if headers.null_count or headers.offset or not pa.types.is_list(headers.type):
        lengths = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        list_offsets = np.zeros(length + 1, np.int32)
        np.cumsum(lengths, out=list_offsets[1:])
    else:  # as they are, without a look at each row: most rows have no headers
        list_offsets = np.frombuffer(headers.buffers()[1], np.int32)[: length + 1]
        list_offsets = list_offsets - list_offsets[0] if list_offsets[0] else list_offsets
    # `flatten` of a struct applies the struct's own nulls to its fields; `field` would not.
    keys, values = pairs.flatten()
    if keys.null_count:
        raise ValueError("a record header without a key")
    return HeaderColumns(_read_only(list_offsets), _binary(keys, len(pairs)), _binary(values, len(pairs)))
