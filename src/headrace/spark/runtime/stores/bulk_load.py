"""Bulk loading of a changelog into a store: names and order of keys, and the newest value of each.

Compiled and vectorised, because restore speed is measured in records per second. One backward pass over the keys finds
the newest record of each (a hash table). The eight bytes behind the common prefix determine the order, unless some of
them are equal.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.njit import njit
from headrace.spark.runtime.stores import block_kernels
from headrace.spark.runtime.stores.block_kernels import is_in_order
from headrace.spark.runtime.stores.byte_spans import spans_of

__all__ = ["name_of_key", "names_of_keys", "newest_values", "order_of_keys", "warm_up"]

LONGEST_PLAIN_KEY = 480  # LMDB takes 511 bytes


def name_of_key(key: bytes) -> bytes:
    """Return the LMDB key of a record key: itself, or a digest if it exceeds LMDB's limit of 511 bytes."""
    if len(key) <= LONGEST_PLAIN_KEY:
        return b"k" + key
    # Such keys lose their order and cannot be listed (`StoreReader.keys_between`), but they are found. 32 bytes make
    # two keys with one digest as unlikely as with SHA-256.
    return b"h" + hashlib.blake2b(key, digest_size=32).digest()


def names_of_keys(keys: pa.Array) -> pa.Array:
    """Return `name_of_key` of each key. No key is null."""
    if not len(keys) or pc.max(pc.binary_length(keys)).as_py() <= LONGEST_PLAIN_KEY:
        return pc.binary_join_element_wise(pa.scalar(b"k", pa.binary()), _binary(keys), pa.scalar(b"", pa.binary()))
    return pa.array([name_of_key(key) for key in keys.to_pylist()], pa.binary())


def order_of_keys(keys: pa.Array) -> pa.Array | None:
    """Return row numbers in byte order of their keys, in which the store reads and writes; None if already sorted."""
    data, starts, sizes = spans_of(_binary(keys))
    if is_in_order(data, starts, sizes):
        return None
    # Sort eight bytes as numbers instead of comparing whole keys, then check the result: it is right unless keys have
    # equal bytes there.
    order = np.argsort(_words(data, starts, sizes))
    if is_in_order(data, starts[order], sizes[order]):
        return pa.array(order)
    return pc.array_sort_indices(keys)  # some are alike in those eight bytes


def newest_values(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Reduce records to the newest value of each key: (names in order, their values). Input is in the order of the log.
    A null value deletes.

    Records without a key are no changes, and are passed over.
    """
    if keys.null_count:
        has_key = keys.is_valid()
        keys, values = keys.filter(has_key), values.filter(has_key)
    kept = pa.array(_newest(*spans_of(_binary(keys))))
    names = names_of_keys(keys.take(kept))
    order = order_of_keys(names)
    if order is not None:
        names, kept = names.take(order), kept.take(order)
    return names, _binary(values).take(kept)


def warm_up() -> None:
    """Compile, or load from the cache, what writing a store needs."""
    data, starts, sizes = spans_of(pa.array([b"k"], pa.binary()))
    _newest(data, starts, sizes)
    _words(data, starts, sizes)
    block_kernels.warm_up()


def _binary(array: pa.Array) -> pa.Array:
    """With offsets of 32 bits, as compiled loops take them."""
    return array.cast(pa.binary()) if pa.types.is_large_binary(array.type) else array


@njit(cache=True, nogil=True)
def _common_prefix(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Bytes that all keys begin with."""
    common = sizes[0]
    for row in range(1, len(starts)):
        limit = min(common, sizes[row])
        # Compared with the first key only: a prefix that all keys share with the first one they share with each other.
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
    # Big endian, so that numbers sort as the bytes do. Behind the end of a short key there are zeros, which a key may
    # contain as well: then the words are equal, and `order_of_keys` notices.
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
def _newest(data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of the newest record of each key."""
    # 1. Open addressing with at most half of the slots used, so probe sequences stay short. A dict of bytes would
    #    need a Python object per record.
    count = len(starts)
    room = 16
    while room < 2 * count:
        room *= 2
    mask = np.uint64(room - 1)
    table = np.full(room, -1, np.int32)  # open addressing: rows, by the hash of their keys
    kept, found = np.empty(count, np.int64), 0
    # 2. Backwards: the first record met of a key is its newest one, and earlier ones need no write to the table.
    for row in range(count - 1, -1, -1):
        start, size = starts[row], sizes[row]
        # 3. FNV-1a. Its high bits mix better than its low ones, which are used as the slot, hence the shift below.
        hashed = np.uint64(1469598103934665603)
        for at in range(size):
            hashed = (hashed ^ np.uint64(data[start + at])) * np.uint64(1099511628211)
        slot = (hashed ^ (hashed >> np.uint64(29))) & mask
        # 4. Linear probing. Bytes are compared only for equal sizes; a collision may never merge two keys.
        while table[slot] >= 0 and not (sizes[table[slot]] == size and _equal(data, starts[table[slot]], start, size)):
            slot = (slot + np.uint64(1)) & mask
        if table[slot] >= 0:
            continue
        table[slot] = row
        kept[found] = row
        found += 1
    return kept[:found]
