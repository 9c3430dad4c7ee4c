"""Trace contexts of records as they lie in record batches (extra "client": pyarrow, numba), without decoding headers.

A sampled record has a header `traceparent` with the flag `sampled` (W3C). The headers of a record are walked by their
lengths, so bytes that look like a `traceparent` in a key, a value or another header are never taken for one. A batch
whose records have no headers costs one look at the counts of headers. `trace_context.sampled_records` is the same rule
for a decoded column of headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.protocol import context_kernels as kernels
from headrace.protocol.context_kernels import MOST_STATE_BYTES, PARENT_BYTES

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array

__all__ = ["MOST_STATE_BYTES", "PARENT_BYTES", "continued_contexts", "row_offsets", "sampled_contexts", "sampled_rows"]


def sampled_contexts(
    source: ByteArray, headers_at: Int64Array, headers_end: Int64Array, header_counts: Int64Array
) -> tuple[pa.Array, int]:
    """Return the contexts of records whose headers were located by `arrow_kernels.scan_records`.

    Of several headers of a name in one record the last one counts, as in Java's `Headers.lastHeader`.

    Args:
        source: Bytes of records, not compressed.
        headers_at: Position of the first header of each record.
        headers_end: Position behind the last one.
        header_counts: Number of headers of each record.

    Returns:
        A binary column, and the first record with malformed headers or -1. A context is a valid `traceparent`, as
        version 00, followed by the `tracestate` if any; null if the record is not sampled.
    """
    count = len(header_counts)
    most = int(np.count_nonzero(header_counts))
    if not most:
        return pa.nulls(count, pa.binary()), kernels.BAD
    rows, parent_at, state_at, state_bytes = (np.empty(most, np.int64) for _ in range(4))
    found, malformed = kernels.scan_contexts(
        source, headers_at, headers_end, header_counts, rows, parent_at, state_at, state_bytes
    )
    if malformed >= 0 or not found:
        return pa.nulls(count, pa.binary()), malformed
    offsets = row_offsets(rows[:found], PARENT_BYTES + state_bytes[:found], count)
    bits = np.zeros((count + 7) // 8, np.uint8)
    data = np.empty(int(offsets[-1]), np.uint8)
    kernels.write_contexts(source, rows[:found], parent_at, state_at, state_bytes, offsets, bits, data)
    buffers = [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers, null_count=count - found), kernels.BAD


def sampled_rows(contexts: pa.Array) -> Int64Array:
    """Return the rows of a column of contexts that are not null, ascending."""
    if contexts.null_count == len(contexts):
        return np.empty(0, np.int64)
    bitmap, offsets, _ = _buffers(contexts)
    rows = np.empty(len(contexts) - contexts.null_count, np.int64)
    return rows[: kernels.find_valid_rows(bitmap, contexts.offset, offsets, rows)]


class TraceSet:
    """The first traces of a task that were met, up to a limit. Mutable."""

    def __init__(self, most: int) -> None:
        """`most` is the limit."""
        self._most = most
        self._parents = np.empty((most, PARENT_BYTES), np.uint8)
        self._known = 0

    def add(self, contexts: pa.Array, rows: Int64Array) -> tuple[BoolArray, Int64Array, Int64Array]:
        """Add the traces of rows of a column of contexts.

        Args:
            contexts: As `sampled_contexts` returns them.
            rows: Not null.

        Returns:
            Whether the trace of each of the rows is in the set; the first row of each trace that the rows have of the
            set; and its number of rows.
        """
        is_followed = np.zeros(len(rows), np.bool_)
        if not self._most:
            return is_followed, np.empty(0, np.int64), np.empty(0, np.int64)
        counts, first = np.zeros(self._most, np.int64), np.empty(self._most, np.int64)
        _, offsets, data = _buffers(contexts)
        self._known = kernels.follow_traces(
            data, offsets, rows, self._parents, self._known, self._most, counts, first, is_followed
        )
        found = np.flatnonzero(counts)
        return is_followed, first[found], counts[found]


def context_headers(contexts: pa.Array, rows: Int64Array) -> tuple[Int32Array, pa.Array, pa.Array]:
    """Return the headers of these contexts: the offsets of a column of lists, and names and values of its items."""
    _, offsets, data = _buffers(contexts)
    most = 2 * len(rows)
    size = int(offsets[-1]) - int(offsets[0])
    names, values = np.empty(11 * most, np.uint8), np.empty(size, np.uint8)
    name_offsets, value_offsets = np.empty(most + 1, np.int32), np.empty(most + 1, np.int32)
    pairs = np.empty(len(rows), np.int64)
    count = kernels.write_pairs(offsets, rows, data, pairs, names, name_offsets, values, value_offsets)
    return (
        row_offsets(rows, pairs, len(contexts)),
        pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(name_offsets), pa.py_buffer(names)]),
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(value_offsets), pa.py_buffer(values)]),
    )


def _buffers(contexts: pa.Array) -> tuple[ByteArray, Int32Array, ByteArray]:
    """Return the buffers of a binary column, read-only; the offsets begin at its first row."""
    bitmap, offsets, data = contexts.buffers()
    arrays = (
        np.empty(0, np.uint8) if bitmap is None else np.frombuffer(bitmap, np.uint8),
        np.frombuffer(offsets, np.int32)[contexts.offset : contexts.offset + len(contexts) + 1],
        np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
    )
    for array in arrays:
        array.setflags(write=False)
    return arrays


def continued_contexts(contexts: pa.Array, rows: Int64Array, salt: int) -> pa.Array:
    """Return the contexts of the spans that go on with these traces: in place of each span id, that id XOR `salt`.

    Two sides that know the salt therefore agree on the id of a span without exchanging it, and records of one span
    continue in one span. Span ids are random, so the result is one that no other span has.

    Args:
        contexts: As `sampled_contexts` returns them.
        rows: The rows to change; none of them null.
        salt: 64 bits.
    """
    if not len(rows):
        return contexts
    bitmap, offsets, _ = contexts.buffers()
    _, starts, data = _buffers(contexts)
    changed = data.copy()
    digits = np.array([int(digit, 16) for digit in f"{salt & (1 << 64) - 1:016x}"], np.uint8)
    kernels.xor_span_ids(changed, starts, rows, digits)
    buffers = [bitmap, offsets, pa.py_buffer(changed)]
    return pa.Array.from_buffers(
        pa.binary(), len(contexts), buffers, null_count=contexts.null_count, offset=contexts.offset
    )


def row_offsets(rows: Int64Array, sizes: Int64Array, length: int) -> Int32Array:
    """Return Arrow's offsets of a column of `length` rows in which only `rows`, ascending, have a size."""
    offsets = np.empty(length + 1, np.int32)
    kernels.fill_offsets(rows, sizes, offsets)
    return offsets


def warm_up() -> None:
    """Load every kernel, or compile it where no cache is yet."""
    header = b"\x16traceparent\x6e00-%032x-%016x-01" % (1, 1)
    at, end, counts = (np.array([number], np.int64) for number in (0, len(header), 1))
    contexts, _ = sampled_contexts(np.frombuffer(header, np.uint8), at, end, counts)
    rows = sampled_rows(contexts)
    TraceSet(1).add(contexts, rows)
    context_headers(continued_contexts(contexts, rows, 1), rows)
