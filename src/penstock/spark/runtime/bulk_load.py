"""A piece of a changelog as what it leaves behind: the newest value of each key, in the order LMDB writes fastest.

Compiled and vectorised, since a restore is measured in records per second: one pass over the keys from the back finds
the newest of each (a hash table), the eight bytes behind the common prefix give the order. That order is not exact,
and need not be: sorted puts are faster, unsorted ones are right as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    def njit(**_options: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...

else:
    from numba import njit

__all__ = ["name_of_key", "names_of_keys", "newest_values", "order_of_keys", "warm_up"]

LONGEST_PLAIN_KEY = 480  # LMDB takes 511 bytes


def name_of_key(key: bytes) -> bytes:
    """The key under which LMDB keeps it: itself, or a digest where LMDB's 511 bytes do not suffice."""
    if len(key) <= LONGEST_PLAIN_KEY:
        return b"k" + key
    return b"h" + hashlib.blake2b(key, digest_size=32).digest()


def names_of_keys(keys: pa.Array | Sequence[bytes]) -> list[bytes]:
    """`name_of_key` of each, none of which is null."""
    if isinstance(keys, pa.Array) and len(keys) and pc.max(pc.binary_length(keys)).as_py() <= LONGEST_PLAIN_KEY:
        named = pc.binary_join_element_wise(pa.scalar(b"k", keys.type), keys, pa.scalar(b"", keys.type))
        return list(named.to_numpy(zero_copy_only=False))
    return [name_of_key(key) for key in (keys.to_pylist() if isinstance(keys, pa.Array) else keys)]


def order_of_keys(keys: pa.Array) -> pa.Array:
    """Rows in the order in which LMDB reads and writes fastest; none is null."""
    if not len(keys):
        return pa.array([], pa.int64())
    return pa.array(np.argsort(_words(*_spans(keys))))


def newest_values(keys: pa.Array, values: pa.Array) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """([(name, value)] to put, [name] to delete) of records in the order of the log. A null value deletes.

    Records without a key are no changes, and are passed over.
    """
    if keys.null_count:
        has_key = keys.is_valid()
        keys, values = keys.filter(has_key), values.filter(has_key)
    if not len(keys):
        return [], []
    kept, words = _newest(*_spans(keys))
    order = pa.array(kept[np.argsort(words)])
    names = [name_of_key(key) for key in keys.take(order).to_numpy(zero_copy_only=False)]
    pairs = list(zip(names, values.take(order).to_numpy(zero_copy_only=False), strict=True))
    if not values.null_count:
        return pairs, []
    return [pair for pair in pairs if pair[1] is not None], [name for name, value in pairs if value is None]


def warm_up() -> None:
    """Compile, or load from the cache."""
    _newest(np.zeros(1, np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64))
    _words(np.zeros(1, np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64))


def _spans(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    if pa.types.is_large_binary(array.type):
        array = array.cast(pa.binary())
    _, offset_buffer, body = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    return data, offsets[:-1], np.diff(offsets)


@njit(cache=True, nogil=True)
def _common_prefix(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Bytes that all keys begin with."""
    common = sizes[0]
    for row in range(1, len(starts)):
        limit = min(common, sizes[row])
        same = 0
        while same < limit and data[starts[0] + same] == data[starts[row] + same]:
            same += 1
        common = same
    return int(common)


@njit(cache=True, nogil=True)
def _equal(data: NDArray[np.uint8], first: int, second: int, size: int) -> bool:
    for at in range(size):  # noqa: SIM110 - compiled
        if data[first + at] != data[second + at]:
            return False
    return True


@njit(cache=True, nogil=True)
def _word(data: NDArray[np.uint8], start: int, size: int, common: int) -> Any:
    """Eight bytes behind the common prefix as a number."""
    word = np.uint64(0)
    for at in range(8):
        word = word << np.uint64(8)
        if common + at < size:
            word |= np.uint64(data[start + common + at])
    return word


@njit(cache=True, nogil=True)
def _words(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    words = np.empty(len(starts), np.uint64)
    common = _common_prefix(data, starts, sizes)
    for row in range(len(starts)):
        words[row] = _word(data, starts[row], sizes[row], common)
    return words


@njit(cache=True, nogil=True)
def _newest(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """(row of the newest record of each key, eight bytes by which to sort them)."""
    count = len(starts)
    common = _common_prefix(data, starts, sizes)
    room = 16
    while room < 2 * count:
        room *= 2
    mask = np.uint64(room - 1)
    table = np.full(room, -1, np.int32)  # open addressing: rows, by the hash of their keys
    kept, words, found = np.empty(count, np.int64), np.empty(count, np.uint64), 0
    for row in range(count - 1, -1, -1):
        start, size = starts[row], sizes[row]
        hashed = np.uint64(1469598103934665603)
        for at in range(size):
            hashed = (hashed ^ np.uint64(data[start + at])) * np.uint64(1099511628211)
        slot = (hashed ^ (hashed >> np.uint64(29))) & mask
        while table[slot] >= 0 and not (sizes[table[slot]] == size and _equal(data, starts[table[slot]], start, size)):
            slot = (slot + np.uint64(1)) & mask
        if table[slot] >= 0:
            continue
        table[slot] = row
        words[found], kept[found] = _word(data, start, size, common), row
        found += 1
    return kept[:found], words[:found]
