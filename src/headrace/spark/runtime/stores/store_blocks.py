"""The entries of a store, many to a block: what LMDB keeps is blocks, so nothing here costs a Python object per key.

A block holds the entries of a range of names in their order (`block_kernels`), sealed with a checksum, under the first
name of its range; the first range of all begins at `FIRST`, which is below every name. Four full blocks fill a page of
LMDB. One that grows beyond is cut, one that is empty goes away and the range before it grows. Names and values come and
go as Arrow arrays, sorted; the work is one merge over the blocks touched.

Names keep their order, so what belongs together by name (a window, a day, one customer) lies in few blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateError
from headrace.spark.runtime.stores import block_kernels as kernels
from headrace.spark.runtime.stores.byte_spans import Bytes, Positions, array_of_spans, spans_of
from headrace.spark.runtime.stores.store_records import SEAL_BYTES, seal_of, unseal

if TYPE_CHECKING:
    import lmdb

__all__ = ["FIRST", "Found", "entries", "entries_under", "find", "names_between", "put", "values_under"]

# Names begin with `k` or `h` (`bulk_load.name_of_key`), so no name sorts before it.
FIRST = b"\0"
# Measured with a million keys and 10-byte values against 4 KB and 500 bytes: docs/internals/spark.md, "Blocks".
LIMIT = 950  # bytes: larger blocks are faster where a micro-batch touches most keys, smaller ones where it touches few
# A block that is full again after one insertion would be cut at once, so a cut leaves a quarter free.
FILLED = LIMIT * 3 // 4  # of a block that was cut, so that it has room
_BEYOND = b"\xff" * 512  # behind a prefix: greater than any name that begins with the prefix
FEW = 4  # names are sought one by one where blocks are so many times more


@dataclass(frozen=True, slots=True)
class Found:
    """The blocks that some names fall into, as a transaction saw them. `blocks[bounds[i]:bounds[i + 1]]` is one."""

    names: pa.Array
    firsts: Sequence[bytes]  # under which each block is kept
    block_at: Positions  # for each name, which of these blocks
    blocks: Bytes
    bounds: Positions

    def values(self) -> pa.Array:
        """Return the value of each name, null if there is none. Raises StateError("state-corrupt")."""
        try:
            at, sizes = kernels.look_up(*spans_of(self.names), self.block_at, self.blocks, self.bounds)
        except ValueError as error:
            raise StateError("state-corrupt", str(error)) from error
        return array_of_spans(self.blocks, at, np.maximum(sizes, 0), pa.binary(), sizes < 0)


def find(transaction: lmdb.Transaction[bytes], database: Any, names: pa.Array) -> Found:
    """Return the blocks of `names`, which are sorted and distinct. Raises StateError("state-corrupt")."""
    with transaction.cursor(database) as cursor:
        # 1. Few names: a search in LMDB's tree for each. Many: list the first names of all blocks once and gallop
        #    through them, which touches each branch page once.
        if len(names) * FEW < transaction.stat(database)["entries"]:
            firsts, block_at = _sought(cursor, names.to_pylist())
        else:
            firsts, block_at = _among_all(cursor, names)
        # 2. Only the blocks that names fall into are read, in their order. The checksum is verified here; the kernels
        #    check lengths again, since numba checks no bounds.
        bodies = [unseal(body) for _, body in cursor.getmulti(firsts)]
    # 3. `getmulti` leaves out what does not exist, and only the range of `FIRST` may have no block: every other first
    #    name came from LMDB in this transaction.
    if len(bodies) < len(firsts):
        bodies.insert(0, b"")  # the first range has no block
    bounds = np.zeros(len(bodies) + 1, np.int64)
    bounds[1:] = np.cumsum([len(body) for body in bodies])
    return Found(names, firsts, block_at, np.frombuffer(b"".join(bodies) or b"\0", np.uint8), bounds)


def put(transaction: lmdb.Transaction[bytes], database: Any, found: Found, values: pa.Array) -> int:
    """Write a value for each name found, null to delete. Return the change of the entry count. Raises StateError."""
    value_data, value_starts, value_sizes = spans_of(values)
    if values.null_count:
        # -1 marks a deletion. The kernels take one array less than with a mask.
        value_sizes = np.where(values.is_null().to_numpy(zero_copy_only=False), -1, value_sizes)
    try:
        # 1. New contents of the blocks, of any length. 2. Cut into pieces that fit.
        written, bounds, after, before = kernels.rewrite(
            *spans_of(found.names),
            found.block_at,
            value_data,
            value_starts,
            value_sizes,
            found.blocks,
            found.bounds,
        )
        pieces, begins, owners = kernels.cut(written, bounds, after, LIMIT, FILLED, SEAL_BYTES)
    except ValueError as error:
        raise StateError("state-corrupt", str(error)) from error
    with transaction.cursor(database) as cursor:
        # 3. Pieces come in the order of their names, so each insertion lands on the page of the last one or the next.
        cursor.putmulti(_sealed(found.firsts, pieces.data, begins.tolist(), owners.tolist()))
    # 4. A block without a piece lost all its entries. Its range falls to the block before it, since a range ends where
    #    the next block begins.
    for block in np.setdiff1d(np.arange(len(found.firsts)), owners).tolist():
        transaction.delete(found.firsts[block], db=database)
    return int(after - before)


def names_between(
    transaction: lmdb.Transaction[bytes], database: Any, first: bytes, end: bytes, limit: int, *, without: int = 0
) -> pa.Array:
    """Return the names from `first` to before `end`, in order, at most the first `limit`. Raises StateError.

    `without`: bytes to leave out at the start of each name.
    """
    low, high = np.frombuffer(first, np.uint8), np.frombuffer(end, np.uint8)
    bodies: list[bytes] = []
    pieces: list[tuple[Positions, Positions]] = []
    base = found = 0
    with transaction.cursor(database) as cursor:
        # The range that `first` falls into begins at or before it.
        there = cursor.set_range(first)
        if not there or cursor.key() != first:
            there = cursor.prev() if there else cursor.last()
            # No block begins at or before `first`: the range of `FIRST` has no block, so the names begin with the first
            # block of all.
            there = there or cursor.first()
        while there and found < limit and cursor.key() < end:
            body = unseal(cursor.value())
            try:
                starts, sizes = kernels.list_names(np.frombuffer(body, np.uint8), low, high)
            except ValueError as error:
                raise StateError("state-corrupt", str(error)) from error
            if len(starts):
                bodies.append(body)
                pieces.append((starts + base, sizes))
                base += len(body)
                found += len(starts)
            there = cursor.next()
    if not pieces:
        return pa.array([], pa.binary())
    starts = np.concatenate([piece for piece, _ in pieces])[:limit]
    sizes = np.concatenate([piece for _, piece in pieces])[:limit]
    data = np.frombuffer(b"".join(bodies), np.uint8)
    return array_of_spans(data, starts + without, sizes - without, pa.binary(), np.zeros(len(starts), np.bool_))


def values_under(transaction: lmdb.Transaction[bytes], database: Any, prefixes: pa.Array) -> tuple[Positions, pa.Array]:
    """Return the values of all names that begin with one of the prefixes, and the number of the prefix of each.

    Prefixes are sorted, and none begins with another one. Raises StateError("state-corrupt").
    """
    found, _, values = entries_under(transaction, database, prefixes)
    return found, values


def entries_under(
    transaction: lmdb.Transaction[bytes], database: Any, prefixes: pa.Array, *, without: int = 0
) -> tuple[Positions, pa.Array, pa.Array]:
    """Return for each name that begins with one of the prefixes the number of the prefix, the name, and the value.

    `without`: bytes to leave out at the start of each name. Otherwise as `values_under`.
    """
    with transaction.cursor(database) as cursor:
        if len(prefixes) * FEW < transaction.stat(database)["entries"]:
            firsts = _sought_under(cursor, prefixes.to_pylist())
        else:
            firsts = _among_all_under(cursor, prefixes)
        blocks = np.frombuffer(b"".join(unseal(body) for _, body in cursor.getmulti(firsts)), np.uint8)
    try:
        found, starts, name_sizes, sizes = kernels.entries_under(*spans_of(prefixes), blocks)
    except ValueError as error:
        raise StateError("state-corrupt", str(error)) from error
    none = np.zeros(len(starts), np.bool_)
    names = array_of_spans(blocks, starts - name_sizes + without, name_sizes - without, pa.binary(), none)
    return found, names, array_of_spans(blocks, starts, sizes, pa.binary(), none)


def entries(transaction: lmdb.Transaction[bytes], database: Any) -> Iterator[tuple[bytes, bytes]]:
    """(name, value) of all, in the order of names; for tests and tools."""
    with transaction.cursor(database) as cursor:
        for sealed in cursor.iternext(keys=False, values=True):
            body = unseal(sealed)
            at = 0
            while at < len(body):
                value_at = at + kernels.ENTRY_HEADER + int.from_bytes(body[at : at + 2], "little")
                end = value_at + int.from_bytes(body[at + 2 : at + kernels.ENTRY_HEADER], "little")
                yield body[at + kernels.ENTRY_HEADER : value_at], body[value_at:end]
                at = end


def _sealed(
    firsts: Sequence[bytes], pieces: memoryview, begins: list[int], owners: list[int]
) -> list[tuple[bytes, memoryview]]:
    """Return the pieces, each sealed, under its first name. The first piece of a block keeps the block's name."""
    pairs, before = [], -1
    for at, end, owner in zip(begins, begins[1:], owners, strict=False):
        body = at + SEAL_BYTES
        first = firsts[owner]
        # The second piece and those after it need a first name of their own. The first one keeps the block's: the names
        # of the range that lie before its first entry still have to find it.
        if owner == before:
            name_at = body + kernels.ENTRY_HEADER
            first = bytes(pieces[name_at : name_at + int.from_bytes(pieces[body : body + 2], "little")])
        # The gap that `cut` left in front of each piece takes the checksum, so that bodies are not copied once more.
        pieces[at:body] = seal_of(pieces[body:end])
        pairs.append((first, pieces[at:end]))
        before = owner
    return pairs


def _among_all(cursor: lmdb.Cursor[bytes], names: pa.Array) -> tuple[list[bytes], Positions]:
    """Find blocks from a list of all first names: (first names of the touched blocks, which of them each name falls
    into).
    """
    firsts = list(cursor.iternext(keys=True, values=False))
    if not firsts or firsts[0] != FIRST:
        firsts.insert(0, FIRST)
    numbers = kernels.block_of_each(*spans_of(names), *spans_of(pa.array(firsts, pa.binary())))
    # Numbers among all blocks become numbers among the touched ones.
    touched, block_at = np.unique(numbers, return_inverse=True)
    return [firsts[block] for block in touched.tolist()], block_at


def _sought(cursor: lmdb.Cursor[bytes], names: list[bytes]) -> tuple[list[bytes], Positions]:
    """Find blocks as `_among_all` does, by a search in LMDB's tree for each name."""
    firsts: list[bytes] = []
    block_at = np.empty(len(names), np.int64)
    for row, name in enumerate(names):
        found = cursor.set_range(name)
        if not found or cursor.key() != name:
            # `set_range` finds the first block at or behind the name. Unless it begins exactly there, the name belongs
            # to the block before it; behind the last block, to the last one.
            found = cursor.prev() if found else cursor.last()
        first = cursor.key() if found else FIRST
        if not firsts or firsts[-1] != first:
            firsts.append(first)
        block_at[row] = len(firsts) - 1
    return firsts, block_at


def _sought_under(cursor: lmdb.Cursor[bytes], prefixes: list[bytes]) -> list[bytes]:
    """First names of the blocks that may hold names under the prefixes, by a search in LMDB's tree for each prefix."""
    firsts: list[bytes] = []
    for prefix in prefixes:
        there = cursor.set_range(prefix)
        if not there or cursor.key() != prefix:
            # The range that the prefix falls into begins at or before it.
            there = (cursor.prev() if there else cursor.last()) or cursor.first()
        while there:
            first = cursor.key()
            if first > prefix and not first.startswith(prefix):
                break
            if not firsts or firsts[-1] < first:
                firsts.append(first)
            there = cursor.next()
    return firsts


def _among_all_under(cursor: lmdb.Cursor[bytes], prefixes: pa.Array) -> list[bytes]:
    """The same, from a list of all blocks."""
    firsts = list(cursor.iternext(keys=True, values=False))
    if not firsts:
        return []
    if firsts[0] != FIRST:
        firsts.insert(0, FIRST)
    first_spans = spans_of(pa.array(firsts, pa.binary()))
    beyond = pc.binary_join_element_wise(prefixes, pa.scalar(_BEYOND, pa.binary()), pa.scalar(b"", pa.binary()))
    lows, highs = (kernels.block_of_each(*spans_of(names), *first_spans) for names in (prefixes, beyond))
    steps = np.zeros(len(firsts) + 1, np.int64)
    np.add.at(steps, lows, 1)
    np.add.at(steps, highs + 1, -1)
    return [firsts[block] for block in np.flatnonzero(np.cumsum(steps[:-1])).tolist()]
