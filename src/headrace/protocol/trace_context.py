"""W3C trace contexts in columns of record headers (extra "client": pyarrow, numpy): which rows are sampled, and headers
for the contexts of rows.

`traceparent` and `tracestate` are headers of plain ASCII bytes, as OpenTelemetry's clients for Java, Go and Python
write them. Work is done for sampled rows only, and for all of them at once. `sampled_contexts` finds the contexts where
no other header is needed, without decoding any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.arrow_batches import HEADERS_TYPE
from headrace.protocol.sampled_contexts import (
    MOST_STATE_BYTES,
    PARENT_BYTES,
    context_headers,
    row_offsets,
    sampled_rows,
)

if TYPE_CHECKING:
    from headrace.array_types import ByteArray, Int64Array, IntegerArray

__all__ = [
    "TRACEPARENT",
    "TRACESTATE",
    "SampledRecords",
    "headers_with_contexts",
    "headers_with_one_context",
    "sampled_records",
]

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_TRACE_ID, _SPAN_ID = slice(3, 35), slice(36, 52)
_DASHES: Final = (2, 35, 52)
_SAMPLED, _KNOWN_FLAGS = 0x01, 0x03  # 0x02: the trace id is random (level 2); other flags are not passed on
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_NO_DIGIT: Final = 255
_VALUES: Final = np.full(256, _NO_DIGIT, np.uint8)  # of a lower-case digit; upper case is invalid
_VALUES[_DIGITS] = np.arange(16, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRecords:
    """The sampled rows of a column of headers. A context is a `traceparent`, followed by the `tracestate` if any.

    Attributes:
        rows: Indexes, ascending.
        parents: A row of 55 characters each: the `traceparent`, of version 00.
        states: The `tracestate` of each, null without one.
    """

    rows: Int64Array
    parents: ByteArray
    states: pa.Array

    def __len__(self) -> int:
        return len(self.rows)

    def contexts(self) -> pa.Array:
        """Return the contexts of these rows, as binary."""
        states = self.states.fill_null(b"")
        return pc.binary_join_element_wise(_rows_as_binary(self.parents), states, pa.scalar(b"", pa.binary()))


def sampled_records(headers: pa.Array | pa.ChunkedArray) -> SampledRecords | None:
    """Return the rows with a valid `traceparent` whose flag `sampled` is set; None if there are none.

    Of several headers of a name in one record the last one counts, as in Java's `Headers.lastHeader`.

    Args:
        headers: A column of list<struct<key, value>>.
    """
    headers = _one_array(headers)
    pairs = headers.flatten()
    if not len(pairs):
        return None
    names, values = pairs.flatten()
    ends = _ends(headers)
    rows, found = _last_of_each_row(TRACEPARENT, names, values, ends)
    if not len(rows):
        return None
    rows, parents = _valid(rows, found)
    if not len(rows):
        return None
    return SampledRecords(rows=rows, parents=parents, states=_states_of(rows, names, values, ends))


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies


def _ends(headers: pa.Array) -> IntegerArray:
    """Return the index behind the last pair of each row, among the pairs that `flatten` returns."""
    if headers.null_count:  # a null may span pairs, which `flatten` leaves out
        return np.cumsum(headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    # As they are, without a look at each row: most rows have no headers.
    offsets = np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + len(headers) + 1]
    return offsets[1:] if not offsets[0] else offsets[1:] - offsets[0]


def headers_with_contexts(contexts: pa.Array | pa.ChunkedArray, headers: pa.Array | None = None) -> pa.Array | None:
    """Return a column of headers with these contexts, behind the `headers` that rows have already.

    Args:
        contexts: As `sampled_contexts` returns them.
        headers: list<struct<key, value>>, or None.

    Returns:
        The column; `headers` itself if no row has a context.
    """
    contexts = _one_array(contexts)
    rows = sampled_rows(contexts)
    if not len(rows):
        return headers
    offsets, names, values = context_headers(contexts, rows)
    if headers is not None:
        # All pairs in one array, those of the rows so far in front. One stable sort by row brings them in order; rows
        # without a context keep what they have.
        pairs, owners = _pairs_of(headers)
        of_rows = np.concatenate([owners, np.repeat(rows, np.diff(offsets)[rows])])
        order = pa.array(np.argsort(of_rows, kind="stable"))
        names = pa.concat_arrays([pairs.field("key"), names]).take(order)
        values = pa.concat_arrays([pairs.field("value"), values]).take(order)
        offsets = row_offsets(*np.unique(of_rows, return_counts=True), len(contexts))
    children = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    return pa.Array.from_buffers(HEADERS_TYPE, len(contexts), [None, pa.py_buffer(offsets)], children=[children])


def headers_with_one_context(context: bytes, length: int, headers: pa.Array | None = None) -> pa.Array:
    """Return a column of headers with this context in every row that has no `traceparent` of its own.

    Args:
        context: A `traceparent`, followed by the `tracestate` if any.
        length: The number of rows.
        headers: list<struct<key, value>>, or None.
    """
    contexts = pa.repeat(pa.scalar(context, pa.binary()), length)
    pairs, rows = _pairs_of(headers)
    stated = rows[pc.equal(pairs.field("key"), TRACEPARENT).to_numpy(zero_copy_only=False)]
    if len(stated):
        has_own = np.zeros(length, np.bool_)
        has_own[stated] = True
        contexts = pc.if_else(pa.array(has_own), pa.scalar(None, pa.binary()), contexts)
    found = headers_with_contexts(contexts, headers)
    assert found is not None
    return found


def _pairs_of(headers: pa.Array | None) -> tuple[pa.StructArray, Int64Array]:
    """Return all pairs of a column of headers, and the row of each."""
    if headers is None:
        return pa.array([], HEADERS_TYPE.value_type), np.empty(0, np.int64)
    headers = _one_array(headers)
    lengths = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    names, values = headers.flatten().flatten()
    pairs = pa.StructArray.from_arrays([names.cast(pa.string()), values.cast(pa.binary())], names=["key", "value"])
    return pairs, np.repeat(np.arange(len(headers), dtype=np.int64), lengths)


def _last_of_each_row(name: str, names: pa.Array, values: pa.Array, ends: IntegerArray) -> tuple[Int64Array, pa.Array]:
    """Return the rows that have a header of this name, ascending, and the last value of each."""
    at = np.flatnonzero(pc.equal(names, name).fill_null(False).to_numpy(zero_copy_only=False))
    rows = np.searchsorted(ends, at, side="right")
    last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    return rows[last], values.take(pa.array(at[last]))


def _valid(rows: Int64Array, found: pa.Array) -> tuple[Int64Array, ByteArray]:
    """Return the rows with a valid context that is sampled, and the contexts as version 00."""
    # 1. Lengths. A later version may append fields behind another dash; the first 55 characters are the same.
    lengths = pc.binary_length(found).fill_null(0).to_numpy(zero_copy_only=False)
    long_enough = np.flatnonzero(lengths >= PARENT_BYTES)
    found, lengths = found.take(pa.array(long_enough)), lengths[long_enough]
    parents = _matrix(pc.binary_slice(found, 0, PARENT_BYTES))
    longer = lengths > PARENT_BYTES
    behind = _matrix(pc.binary_slice(found.filter(pa.array(longer)), PARENT_BYTES, PARENT_BYTES + 1), 1)
    # 2. Characters.
    digits = _VALUES[parents]
    is_digit = digits != _NO_DIGIT
    is_digit[:, _DASHES] = parents[:, _DASHES] == ord("-")
    good = is_digit.all(axis=1)
    # 3. Version ff is invalid; only a later version than 00 may be longer. Ids of zeros are invalid.
    version = digits[:, 0] * 16 + digits[:, 1]
    good &= (version != 0xFF) & (~longer | (version != 0))
    good[longer] &= behind[:, 0] == ord("-")
    good &= digits[:, _TRACE_ID].any(axis=1) & digits[:, _SPAN_ID].any(axis=1)
    # 4. Not sampled: its trace is recorded nowhere.
    good &= (digits[:, 54] & _SAMPLED) != 0
    parents = parents[good].copy()
    parents[:, :2] = ord("0")
    parents[:, 53] = ord("0")
    parents[:, 54] = _DIGITS[digits[good, 54] & _KNOWN_FLAGS]
    return rows[long_enough[good]], parents


def _states_of(rows: Int64Array, names: pa.Array, values: pa.Array, ends: IntegerArray) -> pa.Array:
    """Return the `tracestate` of these rows, null without one."""
    stated, states = _last_of_each_row(TRACESTATE, names, values, ends)
    if not len(stated):
        return pa.nulls(len(rows), pa.binary())
    sizes = pc.binary_length(states).fill_null(0).to_numpy(zero_copy_only=False)
    usable = (sizes > 0) & (sizes <= MOST_STATE_BYTES)
    stated, states = stated[usable], states.filter(pa.array(usable))
    if not len(stated):
        return pa.nulls(len(rows), pa.binary())
    places = np.minimum(np.searchsorted(stated, rows), len(stated) - 1)
    return states.take(pa.array(places, mask=stated[places] != rows)).cast(pa.binary())


def _matrix(column: pa.Array, width: int = PARENT_BYTES) -> ByteArray:
    """Return a binary column without nulls whose values all have this width, as a row of bytes each."""
    if not len(column):
        return np.empty((0, width), np.uint8)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return data.reshape(len(column), width)


def _rows_as_binary(matrix: ByteArray) -> pa.Array:
    length, width = matrix.shape
    offsets = np.arange(0, (length + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(pa.binary(), length, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
