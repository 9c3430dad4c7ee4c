"""Committed values of a store, read while micro-batches write to it: what queries into state return.

A store holds the values after the last micro-batch, committed or not, and beside an undecided micro-batch the undo
record of the values that it replaced (`store`). A read transaction of LMDB sees one moment of all of that. So the
committed values follow from one transaction and from the name of the last committed micro-batch, without a lock and
without a write:

- Nothing is prepared, or what is prepared is the committed micro-batch: the values as they are.
- Anything else is prepared: the values under the undo record. They are those of the store's position, which only moves
  to micro-batches that the driver named as committed. A caller that names an older micro-batch, because another one was
  committed in this moment, gets older values, never uncommitted ones.

Rejected: refusing queries while a micro-batch is undecided. Under load one is undecided nearly all of the time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateError
from headrace.spark.runtime.stores import block_kernels as kernels
from headrace.spark.runtime.stores import store_blocks
from headrace.spark.runtime.stores.bulk_load import names_of_keys, order_of_keys
from headrace.spark.runtime.stores.byte_spans import array_of_spans, spans_of
from headrace.spark.runtime.stores.store_records import (
    IDENTITY,
    POSITION,
    PREPARED,
    UNDO,
    BatchKey,
    StoreIdentity,
    StorePosition,
    unpack_undo,
    unseal,
)

if TYPE_CHECKING:
    import lmdb

__all__ = ["END_OF_KEYS", "LONG_KEYS", "CommittedView"]

# Bytes of blocks that are decoded at a time: few at first, since a range may end after some rows.
FIRST_PIECE_BYTES, LARGEST_PIECE_BYTES = 1 << 13, 1 << 20
# Names of keys begin with `k`, those of long keys, which are digests, with `h` (`bulk_load.name_of_key`).
_PREFIXES = pa.array([b"h", b"k"], pa.binary())
LONG_KEYS = b"h", b"i"
END_OF_KEYS = b"l"
_NOTHING = pa.array([], pa.binary())


@dataclass(frozen=True, slots=True)
class _Undo:
    """Old values of an undecided micro-batch, in the order of their names; null where there was none."""

    names: pa.Array
    values: pa.Array

    def between(self, first: bytes, end: bytes | None) -> _Undo:
        names = _Names(self.names)
        low = bisect.bisect_left(names, first)
        high = len(names) if end is None else bisect.bisect_left(names, end)
        return _Undo(self.names.slice(low, high - low), self.values.slice(low, high - low))


class CommittedView:
    """Committed values of a store, as of the moment at which its transaction began. Ends with the transaction."""

    def __init__(
        self, transaction: lmdb.Transaction[bytes], meta: Any, blocks: Any, committed: BatchKey | None
    ) -> None:
        """Look at a store.

        Args:
            transaction: A read transaction of its environment.
            meta: The environment's database of that name.
            blocks: Likewise.
            committed: The last committed micro-batch that the caller knows of; None trusts the store's position alone.

        Raises:
            StateError: state-corrupt.
        """
        self._transaction, self._meta, self._blocks = transaction, meta, blocks
        prepared = self._position_in(PREPARED)
        is_undecided = prepared is not None and prepared.batch != committed
        self.position = prepared if prepared is not None and not is_undecided else self._position_in(POSITION)
        """Position of these values; None for a store without any committed micro-batch."""
        self._undo = _Undo(_NOTHING, _NOTHING)
        if is_undecided:
            self._undo = _Undo(*unpack_undo(unseal(self._record(UNDO))))

    def difference(self, identity: StoreIdentity) -> str | None:
        """Return why the store is not the one of this identity, in words; None if it is. Raises StateError."""
        found = self._transaction.get(IDENTITY, db=self._meta)
        return "it is empty" if found is None else identity.difference(bytes(found))

    def values(self, keys: pa.Array) -> pa.Array:
        """Return the committed value of each of these distinct keys, null if there is none."""
        names = names_of_keys(keys)
        order = order_of_keys(names)  # sorted keys are no sorted names where some are long
        if order is not None:
            names = names.take(order)
        values = store_blocks.find(self._transaction, self._blocks, names).values()
        if len(self._undo.names):
            at = pc.index_in(names, value_set=self._undo.names)
            values = pc.if_else(at.is_valid(), self._undo.values.take(at), values)
        return values if order is None else values.take(pa.array(np.argsort(order)))

    def entries(self, first: bytes, end: bytes) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield the entries with names from `first` to before `end`, in order, in pieces: (names, values).

        Raises StateError: state-corrupt.
        """
        if first >= end:
            return
        with self._transaction.cursor(self._blocks) as cursor:
            # The range that `first` falls into begins at or before it; without such a block, at the first one of all.
            there = cursor.set_range(first)
            if not there or cursor.key() != first:
                there = (cursor.prev() if there else cursor.last()) or cursor.first()
            low: bytes = first
            most = FIRST_PIECE_BYTES
            while True:
                bodies: list[bytes] = []
                size = 0
                while there and cursor.key() < end and size < most:
                    bodies.append(unseal(cursor.value()))
                    size += len(bodies[-1])
                    there = cursor.next()
                # A piece ends where the next block begins: an old value of the undo record, whose name has no entry any
                # more, belongs to exactly one piece.
                high = bytes(cursor.key()) if there and cursor.key() < end else end
                names, values = self._overlaid(*_entries_of(b"".join(bodies), low, high), low, high)
                if len(names):
                    yield names, values
                if high == end:
                    return
                low, most = high, min(2 * most, LARGEST_PIECE_BYTES)

    def has_entries(self, first: bytes, end: bytes) -> bool:
        """Whether a name lies in this range."""
        return next(self.entries(first, end), None) is not None

    def _overlaid(self, names: pa.Array, values: pa.Array, low: bytes, high: bytes) -> tuple[pa.Array, pa.Array]:
        undo = self._undo.between(low, high)
        if not len(undo.names):
            return names, values
        stays = pc.invert(pc.is_in(names, value_set=undo.names))
        was = undo.values.is_valid()
        names = pa.concat_arrays([names.filter(stays), undo.names.filter(was)])
        values = pa.concat_arrays([values.filter(stays), undo.values.filter(was)])
        order = order_of_keys(names)
        return (names, values) if order is None else (names.take(order), values.take(order))

    def _position_in(self, name: bytes) -> StorePosition | None:
        data = self._transaction.get(name, db=self._meta)
        return StorePosition.from_bytes(unseal(bytes(data))) if data is not None else None

    def _record(self, name: bytes) -> bytes:
        data = self._transaction.get(name, db=self._meta)
        if data is None:
            raise StateError(
                "state-corrupt", f"the store has no record {name.decode()} beside an undecided micro-batch"
            )
        return bytes(data)


class _Names(Sequence[bytes]):
    """Binary values of an array as a sequence, for a search by bisection: few of them become Python objects."""

    def __init__(self, names: pa.Array) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, at: Any) -> Any:
        return self._names[at].as_py()


def _entries_of(blocks: bytes, low: bytes, high: bytes) -> tuple[pa.Array, pa.Array]:
    """Return names and values of the entries from `low` to before `high`."""
    if not blocks:
        return _NOTHING, _NOTHING
    data = np.frombuffer(blocks, np.uint8)
    try:
        _, starts, name_sizes, sizes = kernels.entries_under(*spans_of(_PREFIXES), data)
    except ValueError as error:
        raise StateError("state-corrupt", str(error)) from error
    none = np.zeros(len(starts), np.bool_)
    names = array_of_spans(data, starts - name_sizes, name_sizes, pa.binary(), none)
    values = array_of_spans(data, starts, sizes, pa.binary(), none)
    inside = pc.and_(pc.greater_equal(names, pa.scalar(low, pa.binary())), pc.less(names, pa.scalar(high, pa.binary())))
    return (names, values) if pc.all(inside, min_count=0).as_py() else (names.filter(inside), values.filter(inside))
