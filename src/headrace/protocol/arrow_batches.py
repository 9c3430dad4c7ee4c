"""Record batches ⇄ Arrow, without a Python object per record (extra "client": pyarrow, numba).

Decoding, here: the sections of all batches are parsed by one kernel call that writes Arrow offsets, then keys and
values are packed by one copy each. Encoding, in `arrow_encoding`: one kernel cuts rows into batches and measures them,
one writes them; headers and CRCs are set per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.protocol import arrow_kernels as kernels
from headrace.protocol.arrow_encoding import encode_from_arrow, murmur2_partitions
from headrace.protocol.batch_headers import (
    Aborted,
    AbortedTransaction,
    BatchHeader,
    Bytes,
    CorruptBatch,
    check_crc,
    iter_batch_headers,
    records_section,
    surviving_batches,
)
from headrace.protocol.sampled_contexts import sampled_contexts
from headrace.protocol.sampled_contexts import warm_up as warm_up_contexts

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array

__all__ = [
    "ALL_COLUMNS",
    "HEADERS_TYPE",
    "AbortedTransaction",
    "CorruptBatch",
    "DecodedBatches",
    "decode_to_arrow",
    "encode_from_arrow",
    "murmur2_partitions",
    "warm_up",
]

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
ALL_COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")
_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.int32(),
    "headers": HEADERS_TYPE,
    "trace_context": pa.binary(),
}

MAX_DECODED_BYTES: Final = 256 * 1024 * 1024
_SMALLEST_RECORD_BYTES = 7  # its length, attributes, two deltas, two lengths, a header count
_NO_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatches:
    """`table` holds the records, ascending by offset. `next_offset` is where to read on: behind everything seen.

    That includes control batches, aborted batches and gaps that compaction left; it is never above `end_offset`.
    """

    table: pa.RecordBatch
    next_offset: int


def decode_to_arrow(
    data: Bytes,
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    aborted_transactions: Sequence[Aborted] = (),
    columns: Sequence[str] = ALL_COLUMNS,
    max_bytes: int = MAX_DECODED_BYTES,
) -> DecodedBatches:
    """Decode the records of a Fetch response with offsets in [start_offset, end_offset) to Arrow columns.

    Control batches and batches of aborted transactions are left out; a truncated last batch is ignored.

    Args:
        data: record batches.
        start_offset: first offset.
        end_offset: offset behind the last record; None: no limit.
        aborted_transactions: of the Fetch response (read_committed).
        columns: names in the order of the result: key and value (binary), offset and timestamp (int64, ms),
            timestamp_type (int32: 0 create, 1 log append time, as in Spark), headers (list of struct of key string,
            value binary), trace_context (binary: `traceparent` and `tracestate` of a sampled record, else null).
        max_bytes: bound of the uncompressed records. Decoding stops after the batch that reaches it, and
            `next_offset` of the result is where to continue.

    Raises:
        CorruptBatch: a batch is damaged.
    """
    # 1. Headers: which batches count. `seen` keeps the last header that was looked at, also of a control or aborted
    #    batch, because the position has to move past those.
    end = _NO_END if end_offset is None else end_offset
    seen: list[BatchHeader] = []
    kept: list[BatchHeader] = []
    sections: list[memoryview] = []
    section_bytes = 0
    for header in surviving_batches(data, _noted(iter_batch_headers(data), seen, end), aborted_transactions):
        # Batches come whole: the first one may begin before the range. One without records is what compaction leaves of
        # a producer's last batch.
        if header.last_offset < start_offset or not header.records_count:
            continue
        check_crc(data, header)
        section = records_section(data, header, max_bytes)
        # 2. Before arrays are allocated for `records_count` rows: the count comes from the sender.
        if header.records_count * _SMALLEST_RECORD_BYTES > len(section):
            raise CorruptBatch(f"it is too short for {header.records_count} records", base_offset=header.base_offset)
        kept.append(header)
        sections.append(section)
        section_bytes += len(section)
        if section_bytes >= max_bytes:
            break
    # 3. Behind everything seen, not behind the last record kept: a reader that stopped at the last record would ask for
    #    the same control batch for ever.
    next_offset = max(start_offset, seen[-1].next_offset if seen else start_offset)
    table = _parse(data, kept, sections, start_offset, end, columns)
    return DecodedBatches(table=table, next_offset=min(next_offset, end))


def _noted(headers: Iterable[BatchHeader], seen: list[BatchHeader], end_offset: int) -> Iterator[BatchHeader]:
    """Pass headers on until `end_offset`, keeping the last one: where the position is."""
    for header in headers:
        if header.base_offset >= end_offset:
            # What lies between is a gap, of compaction or of markers: nothing below the end is left to read.
            seen[:] = [header._replace(base_offset=end_offset - 1, last_offset_delta=0)]
            return
        seen[:] = [header]
        yield header


class _Rows:
    """The arrays that `scan_records` fills, one entry per record."""

    def __init__(self, capacity: int, batches: int) -> None:
        self.key_at = np.empty(capacity, np.int64)
        self.key_offsets = np.empty(capacity + 1, np.int32)
        self.key_valid = np.empty(capacity, np.bool_)
        self.value_at = np.empty(capacity, np.int64)
        self.value_offsets = np.empty(capacity + 1, np.int32)
        self.value_valid = np.empty(capacity, np.bool_)
        self.offsets = np.empty(capacity, np.int64)
        self.timestamps = np.empty(capacity, np.int64)
        self.headers_at = np.empty(capacity, np.int64)
        self.headers_end = np.empty(capacity, np.int64)
        self.header_counts = np.empty(capacity, np.int64)
        self.emitted = np.zeros(batches, np.int64)


def _parse(
    data: Bytes,
    headers: list[BatchHeader],
    sections: list[memoryview],
    start_offset: int,
    end_offset: int,
    columns: Sequence[str],
) -> pa.RecordBatch:
    # One kernel call for all batches: a call costs some microseconds, and a fetch may hold thousands of small batches.
    # The table passes what the kernel needs of each header.
    source, starts = _one_source(data, headers, sections)
    batches = np.array(
        [
            (
                start,
                start + len(section),
                header.records_count,
                header.base_offset,
                header.base_timestamp,
                header.max_timestamp if header.has_append_time else -1,
                header.last_offset_delta,
            )
            for header, section, start in zip(headers, sections, starts, strict=True)
        ],
        np.int64,
    ).reshape(len(headers), 7)
    rows = _Rows(sum(header.records_count for header in headers), len(headers))
    count, malformed = kernels.scan_records(
        source,
        batches,
        start_offset,
        end_offset,
        rows.key_at,
        rows.key_offsets,
        rows.key_valid,
        rows.value_at,
        rows.value_offsets,
        rows.value_valid,
        rows.offsets,
        rows.timestamps,
        rows.headers_at,
        rows.headers_end,
        rows.header_counts,
        rows.emitted,
    )
    if malformed >= 0:
        raise CorruptBatch("its records do not fit it", base_offset=headers[malformed].base_offset)
    arrays = [_column(name, source, rows, count, headers) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, _TYPES[name]) for name in columns]))


def _one_source(data: Bytes, headers: list[BatchHeader], sections: list[memoryview]) -> tuple[ByteArray, list[int]]:
    """One read-only buffer that holds all sections, and where they start: the data itself if nothing was compressed."""
    # The codec is in the lowest three bits. Uncompressed batches are parsed where they are, without a copy.
    if not any(header.attributes & 0x07 for header in headers):
        source = np.frombuffer(data, np.uint8)
        starts = [header.end - len(section) for header, section in zip(headers, sections, strict=True)]
    else:
        source = np.frombuffer(sections[0] if len(sections) == 1 else b"".join(sections), np.uint8)
        starts = [0]
        for section in sections[:-1]:
            starts.append(starts[-1] + len(section))
    source.setflags(write=False)
    return source, starts


def _column(name: str, source: ByteArray, rows: _Rows, count: int, headers: list[BatchHeader]) -> pa.Array:
    match name:
        case "key":
            return _binary(source, rows.key_at[:count], rows.key_offsets[: count + 1], rows.key_valid[:count])
        case "value":
            return _binary(source, rows.value_at[:count], rows.value_offsets[: count + 1], rows.value_valid[:count])
        case "offset":
            return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.offsets)])
        case "timestamp":
            return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.timestamps)])
        case "timestamp_type":
            # A column of a batch's attribute: repeated for each record that the batch gave.
            kinds = np.array([header.has_append_time for header in headers], np.int32)
            return pa.array(np.repeat(kinds, rows.emitted), pa.int32())
        case "headers":
            return _headers(source, rows, count)
        case "trace_context":
            return _trace_contexts(source, rows, count)
        case _:
            raise ValueError(f"{name!r} is no column of a record; there are {', '.join(_TYPES)}")


def _binary(
    source: ByteArray, at: Int64Array, offsets: Int32Array, valid: BoolArray, kind: pa.DataType | None = None
) -> pa.Array:
    """A binary column of slices of `source`."""
    # Arrow wants the values of a column side by side, in the wire's bytes keys and values alternate. So each value is
    # copied once; offsets were computed by the scan and are used as they are.
    packed = np.empty(int(offsets[-1]), np.uint8)
    kernels.copy_slices(source, at, offsets, packed)
    # Without nulls there is no bitmap at all, which readers of Arrow take as the fast case.
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(packed)]
    return pa.Array.from_buffers(kind or pa.binary(), len(valid), buffers, null_count=nulls)


def _headers(source: ByteArray, rows: _Rows, count: int) -> pa.Array:
    """Return the list of headers of each record, empty for a record without headers."""
    # Headers are scanned by a second kernel, and only if the column is asked for: few topics use them.
    counts = rows.header_counts[:count]
    list_offsets = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=list_offsets[1:])
    total = int(list_offsets[-1])
    key_at = np.empty(total, np.int64)
    key_offsets = np.empty(total + 1, np.int32)
    value_at = np.empty(total, np.int64)
    value_offsets = np.empty(total + 1, np.int32)
    value_valid = np.empty(total, np.bool_)
    malformed = kernels.scan_headers(
        source,
        rows.headers_at[:count],
        rows.headers_end[:count],
        counts,
        key_at,
        key_offsets,
        value_at,
        value_offsets,
        value_valid,
    )
    _check_headers(rows, malformed)
    names = _header_names(_binary(source, key_at, key_offsets, np.ones(total, np.bool_)))
    values = _binary(source, value_at, value_offsets, value_valid)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, pa.py_buffer(list_offsets)], children=[pairs])


def _trace_contexts(source: ByteArray, rows: _Rows, count: int) -> pa.Array:
    """Return the trace context of each record, null if it is not sampled."""
    contexts, malformed = sampled_contexts(
        source, rows.headers_at[:count], rows.headers_end[:count], rows.header_counts[:count]
    )
    _check_headers(rows, malformed)
    return contexts


def _check_headers(rows: _Rows, malformed: int) -> None:
    if malformed >= 0:
        raise CorruptBatch(f"the headers of the record at offset {rows.offsets[malformed]} are malformed")


def _header_names(raw: pa.Array) -> pa.Array:
    """Header keys as strings. Bytes that are not UTF-8 become U+FFFD, as in Java."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in raw.to_pylist()], pa.string())


def warm_up() -> None:
    """Load every kernel, or compile it where no cache is yet (seconds): before the first batch that is awaited."""
    headers = pa.array([[{"key": "k", "value": b"v"}]], HEADERS_TYPE)
    key = pa.array([b"k"], pa.binary())
    (batch,) = encode_from_arrow(key, key, timestamps_ms=0, headers=headers)
    decode_to_arrow(batch)
    warm_up_contexts()
    murmur2_partitions(key, 1)
