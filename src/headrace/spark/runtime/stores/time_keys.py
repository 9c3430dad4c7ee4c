"""Keys of stores that are in the order of event time: `01 · time · key of the group`, unsigned and big endian.

The order of their bytes is the order of time, so entries that a watermark has passed are the first ones of the store
and are found by a range scan. Rejected: a second index by time, which would double the changelog.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.spark.runtime.operators.event_time_kernels import NO_TIME
from headrace.spark.runtime.rows.row_kernels import copy_spans
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, spans_of

__all__ = [
    "DISTINCT_ENTRY",
    "ENTRY",
    "LONGEST_KEY",
    "first_key_at",
    "key_behind_time",
    "microseconds",
    "shortened_keys",
    "timed_keys",
]

ENTRY = b"\x01"
DISTINCT_ENTRY = b"\x02"  # in front of a value that a group of a window has counted (`distinct_values`)
LONGEST_KEY = 400  # longer ones are stored as digests here, since the store's own digests would lose the time in front
_TIME_BYTES = 8
_DIGEST = b"\xfe"  # begins a digest in place of a long key


def timed_keys(
    times: Positions, keys: pa.Array, key_numbers: Positions | None = None, *, kind: bytes = ENTRY
) -> pa.Array:
    """Return the store's key of each pair of a time and a key.

    Args:
        times: One per result; any number that is in the order of time.
        keys: Keys, as `shortened_keys` returns them.
        key_numbers: For each result the number of its key; None for the keys in their order.
        kind: The byte in front.
    """
    head = np.empty((len(times), len(ENTRY) + _TIME_BYTES), np.uint8)
    head[:, 0] = kind[0]
    head[:, 1:] = _sortable(times)
    data, starts, sizes = spans_of(keys)
    if key_numbers is not None:
        starts, sizes = starts[key_numbers], sizes[key_numbers]
    # Heads and keys are copied into one buffer, as in `rows.encode_rows`: no Python object per key.
    ends = np.cumsum(sizes + head.shape[1])
    begins = ends - sizes - head.shape[1]
    body: Bytes = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    heads = np.arange(len(times), dtype=np.int64) * head.shape[1]
    copy_spans(body, begins, head.reshape(-1), heads, np.full(len(times), head.shape[1], np.int64))
    copy_spans(body, begins + head.shape[1], data, starts, sizes)
    return array_of_spans(body, begins, ends - begins, pa.binary(), np.zeros(len(times), np.bool_))


def first_key_at(time: int, *, kind: bytes = ENTRY) -> bytes:
    """Return the first key that an entry at `time` could have: the end of a scan of earlier entries."""
    return kind + _sortable(np.array([time], np.int64)).tobytes()


def shortened_keys(keys: pa.Array, longest: int = LONGEST_KEY) -> pa.Array:
    """Return keys that fit a name of the store: long ones as digests, behind a byte that no key begins with."""
    if not len(keys) or pc.max(pc.binary_length(keys)).as_py() <= longest:
        return keys
    shortened = [
        # No key begins with FE: a key of text is UTF-8, null is FF alone, any other begins with its format version
        # (`rows.encode_key`).
        _DIGEST + hashlib.blake2b(key, digest_size=32).digest() if len(key) > longest else key
        for key in keys.to_pylist()
    ]
    return pa.array(shortened, pa.binary())


def key_behind_time(name: bytes) -> bytes | None:
    """Return the key in a store's key; None if that is no timed key, or has a digest in place of a long key."""
    key = name[len(ENTRY) + _TIME_BYTES :]
    return None if not name.startswith(ENTRY) or key.startswith(_DIGEST) else key


def microseconds(column: pa.ChunkedArray) -> Positions:
    """Return timestamps as numbers, `NO_TIME` for null."""
    return column.cast(pa.int64()).combine_chunks().fill_null(NO_TIME).to_numpy(zero_copy_only=False)


def _sortable(times: Positions) -> NDArray[np.uint8]:
    """Return each time as eight bytes: with the sign bit turned, negative times come before the others."""
    ordered = np.ascontiguousarray(times).view(np.uint64) ^ np.uint64(1 << 63)
    return ordered.astype(">u8").view(np.uint8).reshape(-1, _TIME_BYTES)
