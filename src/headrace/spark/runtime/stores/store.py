"""One store of one task: an LMDB environment that is a cache of its changelog topic.

Values lie in blocks, many to one entry of LMDB (`store_blocks`). A commit of LMDB is atomic, so values and the position
they stand for never part. A micro-batch is *prepared*: the new values, the batch's position and an undo record of the
old values go in together (`store_transaction`). Only a later call that names the batch as committed drops the undo; any
other call rolls back by it. So a failed, cancelled or truncated Spark job leaves nothing behind, and what a straggler
of a failed job prepares is refused by batch id and attempt.

A *replay* of the changelog takes the store over first (`begin_replay`): each piece of it is written only while the
store still belongs to that replay, so late writes of a standby or of an active task cannot mix with the other's.

LMDB runs without fsync: a crash of the process loses nothing, a crash of the machine may, therefore the boot id is
part of the identity. A store of another boot, another topic (id, not name) or another schema is emptied, in place,
because other worker processes may have the same files open; one that is corrupt is set aside (`store_files`). Several
processes of one host may open a store at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa

from headrace.errors import StateError
from headrace.spark.runtime.operators.out_of_time import DeadRecords
from headrace.spark.runtime.stores import store_blocks
from headrace.spark.runtime.stores.bulk_load import name_of_key, names_of_keys, newest_values, order_of_keys
from headrace.spark.runtime.stores.byte_spans import Positions
from headrace.spark.runtime.stores.store_environment import StoreEnvironment
from headrace.spark.runtime.stores.store_files import file_bytes, open_read_only
from headrace.spark.runtime.stores.store_records import (
    COUNT,
    IDENTITY,
    POSITION,
    PREPARED,
    UNDO,
    BatchKey,
    StoreIdentity,
    StorePosition,
    boot_id,
    pack_undo,
    seal,
    unpack_undo,
    unseal,
)
from headrace.spark.runtime.stores.store_transaction import StoreTransaction

__all__ = [
    "BatchKey",
    "StoreIdentity",
    "StorePosition",
    "StoreReader",
    "StoreWrites",
    "TaskStore",
    "boot_id",
    "position_on_disk",
]


class TaskStore:
    """Values of one aggregate of one task."""

    def __init__(self, path: Path, identity: StoreIdentity) -> None:
        """Open or create the store. `rebuilt` is the reason why earlier content was dropped; None if it was kept or
        empty.
        """
        self.path = path
        self.rebuilt: str | None = None
        try:
            self._open(identity)
        except StateError as error:
            if error.code != "state-corrupt":
                raise
            # The failed opening has condemned the files, so this one sets them aside and creates an empty store.
            self._open(identity)  # condemned by now, hence set aside

    def _open(self, identity: StoreIdentity) -> None:
        self._environment = StoreEnvironment(self.path)
        self.rebuilt = self._environment.rebuilt
        try:
            self._meta = self._environment.lmdb.open_db(b"meta")
            self._blocks = self._environment.lmdb.open_db(b"blocks")
            self._environment.write(lambda transaction: self._take_identity(transaction, identity))
        except BaseException:
            self._environment.close()
            raise

    def _take_identity(self, transaction: Any, identity: StoreIdentity) -> None:
        found = transaction.get(IDENTITY, db=self._meta)
        if found is not None:
            # Emptied in place and not set aside: the file is sound, and other worker processes may have it mapped.
            difference = identity.difference(bytes(found))
            if difference is not None:
                self.rebuilt = difference
                self._empty(transaction)
        transaction.put(IDENTITY, seal(identity.to_bytes()), db=self._meta)

    @property
    def is_current(self) -> bool:
        """Whether the files behind the path are still the ones that are open here."""
        return self._environment.is_current

    def close(self) -> None:
        self._environment.close()

    def position(self) -> StorePosition | None:
        """Position of the values after the last committed batch; None for an empty store."""
        return self._read_position(POSITION)

    def prepared(self) -> StorePosition | None:
        """Position of the values after an undecided batch; None without one."""
        return self._read_position(PREPARED)

    def count(self) -> int:
        """Number of keys, those of an undecided batch included."""
        with self._environment.reading() as transaction:
            return self._count_in(transaction)

    def size_bytes(self) -> int:
        """Bytes of the pages in use by values."""
        with self._environment.reading() as transaction:
            return self._bytes_in(transaction)

    def disk_bytes(self) -> int:
        """Disk usage of the store's files. LMDB keeps freed pages for reuse."""
        return file_bytes(self.path)

    def values(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of every short key, in key order; for tests and tools."""
        with self._environment.reading() as transaction:
            for name, value in store_blocks.entries(transaction, self._blocks):
                if name[:1] == b"k":
                    yield name[1:], value

    def lookup(self, keys: pa.Array) -> pa.Array:
        """Return the value of each of these distinct keys, null if there is none."""
        names = names_of_keys(keys)
        order = order_of_keys(names)  # of names: a long key's begins with a digest
        with self._environment.reading() as transaction:
            found = store_blocks.find(transaction, self._blocks, names if order is None else names.take(order))
            values = found.values()
        return values if order is None else values.take(pa.array(np.argsort(order)))

    def resolve_prepared(self, committed: BatchKey | None) -> StorePosition | None:
        """Keep a prepared batch if it is `committed`, else roll it back. Return the position after that."""

        def decide(transaction: Any) -> StorePosition | None:
            return self._resolve_prepared(transaction, committed)

        return self._environment.write(decide)

    def merge(
        self,
        after: BatchKey | None,
        position: StorePosition,
        keys: pa.Array,
        merge: Callable[[pa.Array], pa.Array],
    ) -> StoreTransaction:
        """Merge a micro-batch into the values, revocably.

        Args:
            after: The batch that the driver knows as committed; the values must be at its position.
            position: Position of the values after this batch. Its changelog offset is ignored.
            keys: Distinct keys. Sorted keys (`bulk_load.order_of_keys`) are fastest.
            merge: Called with the old value of each key, null if there is none; returns the new ones, null to delete.
                Called again if the map was full.

        Returns:
            The open write transaction, to be prepared or abandoned.

        Raises:
            StateError: store-behind if the values are at another position; stale-attempt after a newer attempt's write.
        """
        names = names_of_keys(keys)
        return self._open_batch(after, position, lambda transaction: self._merge(transaction, names, merge))

    def update(
        self, after: BatchKey | None, position: StorePosition, update: Callable[[StoreReader], StoreWrites]
    ) -> StoreTransaction:
        """Write a micro-batch's changes, revocably, where keys to read depend on values that were read.

        Args:
            after: As for `merge`.
            position: As for `merge`.
            update: Called with a reader of the values after the batch `after`. Returns what changes. Called again if
                the map was full.

        Returns:
            As `merge`.

        Raises:
            StateError: as `merge`.
        """

        def write(transaction: Any) -> bytes:
            writes = update(StoreReader(transaction, self._blocks))
            return self._merge(transaction, names_of_keys(writes.keys), lambda _: writes.values)

        return self._open_batch(after, position, write)

    def _open_batch(
        self, after: BatchKey | None, position: StorePosition, write: Callable[[Any], bytes]
    ) -> StoreTransaction:
        """Open a batch. `write` changes values in a transaction and returns the undo record."""

        def put(transaction: Any) -> StorePosition | None:
            # 1. A slow attempt of an earlier run must not overwrite a newer one: Spark may start a task again while
            #    the first process still runs (speculation, lost executor).
            self._refuse_late_attempts(transaction, position.batch)
            # 2. Decide about the previous batch. Only the driver knows whether it was committed, and the plan names
            #    the last committed batch. Any other prepared batch is rolled back by its undo record.
            base = self._resolve_prepared(transaction, after)
            # 3. The values must be exactly at the committed batch. Otherwise another host has processed the task
            #    meanwhile, or a replay is under way, and a merge would count records twice or lose them.
            if (base.batch if base else None) != after or (base is not None and base.restoring):
                raise StateError(
                    "store-behind", f"the store {self.path} stands at {base and base.batch}, not at {after}"
                )
            # 4. Undo record and new values in one LMDB transaction: a crash leaves both or neither. Rejected: new
            #    values in a side table that is copied on commit, which writes every page twice.
            self._put(transaction, UNDO, write(transaction))
            return base

        def place(transaction: Any, changelog_offset: int) -> tuple[int, int]:
            placed = replace(position, changelog_offset=changelog_offset)
            self._put(transaction, PREPARED, placed.to_bytes())
            return self._count_in(transaction), self._bytes_in(transaction)

        return StoreTransaction(self._environment, put, place)

    def begin_replay(self, writer: BatchKey, first: int, end: int) -> int:
        """Take the store over for a replay of the changelog, which now begins at `first` and ends at `end`.

        Undoes what was prepared. Returns the offset to replay from: where the values stand, or `first` when the log
        does not hold that place any more (the store is emptied then, and `rebuilt` says why).
        """

        def take(transaction: Any) -> int:
            # 1. A replay rebuilds committed state only, so a prepared batch is rolled back whatever its outcome: if it
            #    was committed, its changes are in the changelog.
            base = self._resolve_prepared(transaction, None)
            start = base.changelog_offset if base is not None else first
            # 2. Outside of the log: compaction or deletion removed records that the store lacks (`start < first`), or
            #    the log was truncated or created again (`start > end`). No incremental replay is correct then.
            if not first <= start <= end:
                self.rebuilt = f"it stands at {start}, the changelog holds {first} to {end}"
                self._empty_values(transaction)
                start = first
            # 3. Take ownership: `load` of any other replay, and `merge` of a stage, are refused from here on.
            taken = StorePosition(batch=writer, input_offsets={}, changelog_offset=start, restoring=True)
            self._put(transaction, POSITION, taken.to_bytes())
            return start

        return int(self._environment.write(take))

    def load(self, writer: BatchKey, keys: pa.Array, values: pa.Array, next_offset: int) -> None:
        """Write a piece of the changelog, in the order of the log; a null value deletes.

        Raises StateError("store-taken") when the store does not belong to the replay `writer` any more.
        """
        names, newest = newest_values(keys, values)

        def put(transaction: Any) -> None:
            current = self._position_in(transaction, POSITION)
            if current is None or not current.restoring or current.batch != writer:
                raise StateError("store-taken", f"the store {self.path} belongs to {current and current.batch} now")
            self._apply(transaction, names, newest)
            self._put(transaction, POSITION, replace(current, changelog_offset=next_offset).to_bytes())

        self._environment.write(put)

    def assign_position(self, batch: BatchKey, input_offsets: Mapping[str, int], *, over: StorePosition) -> None:
        """Assign the values to a batch and to input offsets. `over`: the store's position when this was decided.

        The changelog position stays: the group's answer may be old, and a later position would claim changes of the
        next owner that are not in this store. Raises StateError("store-taken") after a write by another process.
        """
        placed = replace(over, batch=batch, input_offsets=dict(input_offsets), restoring=False)

        def put(transaction: Any) -> None:
            current = self._position_in(transaction, POSITION)
            if current != over:
                raise StateError("store-taken", f"the store {self.path} stands at {current} now, not at {over}")
            self._put(transaction, POSITION, placed.to_bytes())

        self._environment.write(put)

    def condemn(self, reason: str) -> None:
        """Mark the store as unusable. The next opening sets it aside, and it is rebuilt from the changelog."""
        self._environment.condemn(reason)

    def _refuse_late_attempts(self, transaction: Any, batch: BatchKey) -> None:
        for name in (PREPARED, POSITION):
            current = self._position_in(transaction, name)
            seen = current.batch if current else None
            if seen and seen.incarnation == batch.incarnation and seen > batch:
                raise StateError("stale-attempt", f"{self.path} has seen {seen}, newer than {batch}")

    def _resolve_prepared(self, transaction: Any, committed: BatchKey | None) -> StorePosition | None:
        # 1. Nothing prepared: the values are those of the last committed batch.
        # 2. Prepared and committed: the values are in place already, so only the position moves. Committing never
        #    copies values.
        # 3. Prepared and not committed: write the old values back. This is one LMDB transaction with the write that
        #    follows in the caller, so a crash in between rolls both back, and undo is never seen half done.
        prepared = self._position_in(transaction, PREPARED)
        if prepared is not None:
            if prepared.batch == committed:
                self._put(transaction, POSITION, prepared.to_bytes())
            else:
                self._apply(transaction, *unpack_undo(unseal(transaction.get(UNDO, db=self._meta))))
            transaction.delete(PREPARED, db=self._meta)
            transaction.delete(UNDO, db=self._meta)
        return self._position_in(transaction, POSITION)

    def _merge(self, transaction: Any, names: pa.Array, merge: Callable[[pa.Array], pa.Array]) -> bytes:
        """Apply `merge` to the old values, and return the undo record."""
        # The blocks need sorted names, `merge` gets the old values in the caller's order: `argsort(order)` is the
        # inverse permutation.
        order = order_of_keys(names)
        found = store_blocks.find(transaction, self._blocks, names if order is None else names.take(order))
        old = found.values()
        new = merge(old) if order is None else merge(old.take(pa.array(np.argsort(order)))).take(order)
        self._written(transaction, found, new)
        # The undo record holds old values of touched keys only, null where there was none: its size follows the
        # micro-batch, not the store.
        return pack_undo(found.names, old)

    def _apply(self, transaction: Any, names: pa.Array, values: pa.Array) -> None:
        order = order_of_keys(names)
        if order is not None:
            names, values = names.take(order), values.take(order)
        self._written(transaction, store_blocks.find(transaction, self._blocks, names), values)

    def _written(self, transaction: Any, found: store_blocks.Found, values: pa.Array) -> None:
        # The number of keys is kept as a record: LMDB counts blocks, not the entries in them.
        count = self._count_in(transaction) + store_blocks.put(transaction, self._blocks, found, values)
        transaction.put(COUNT, count.to_bytes(8, "little"), db=self._meta)

    def _count_in(self, transaction: Any) -> int:
        return int.from_bytes(transaction.get(COUNT, b"", db=self._meta), "little")

    def _bytes_in(self, transaction: Any) -> int:
        stat = transaction.stat(self._blocks)
        return int((stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"])

    def _empty(self, transaction: Any) -> None:
        # `delete=False` removes the entries and keeps the database, so its handle stays valid.
        for database in (self._blocks, self._meta):
            transaction.drop(database, delete=False)

    def _empty_values(self, transaction: Any) -> None:
        """Delete everything except the identity."""
        # Emptying drops the whole `meta` database, so the identity is carried over.
        identity = transaction.get(IDENTITY, db=self._meta)
        self._empty(transaction)
        transaction.put(IDENTITY, identity, db=self._meta)

    def _put(self, transaction: Any, name: bytes, body: bytes) -> None:
        transaction.put(name, seal(body), db=self._meta)

    def _position_in(self, transaction: Any, name: bytes) -> StorePosition | None:
        data = transaction.get(name, db=self._meta)
        return StorePosition.from_bytes(unseal(data)) if data is not None else None

    def _read_position(self, name: bytes) -> StorePosition | None:
        with self._environment.reading() as transaction:
            return self._position_in(transaction, name)


class StoreReader:
    """Values of a store as a write transaction sees them, with its own position decided and nothing yet written."""

    def __init__(self, transaction: Any, blocks: Any) -> None:
        self._transaction, self._blocks = transaction, blocks

    def values(self, keys: pa.Array) -> pa.Array:
        """Return the value of each key, null if there is none. Keys are distinct; sorted ones are fastest."""
        names = names_of_keys(keys)
        order = order_of_keys(names)  # sorted keys are no sorted names where some are long: those are digests
        if order is None:
            return store_blocks.find(self._transaction, self._blocks, names).values()
        found = store_blocks.find(self._transaction, self._blocks, names.take(order)).values()
        return found.take(pa.array(np.argsort(order)))

    def keys_between(self, first: bytes, end: bytes, limit: int) -> pa.Array:
        """Return the keys from `first` to before `end`, in byte order, at most the first `limit`.

        Keys longer than `bulk_load.LONGEST_PLAIN_KEY` are stored under a digest and are not found.
        """
        low, high = name_of_key(first), name_of_key(end)
        return store_blocks.names_between(self._transaction, self._blocks, low, high, limit, without=1)

    def values_under(self, prefixes: pa.Array) -> tuple[Positions, pa.Array]:
        """Return the values of all keys that begin with one of the prefixes, and the number of the prefix of each.

        Prefixes are distinct and in byte order, and none begins with another one. Values are in the order of their
        keys. Keys longer than `bulk_load.LONGEST_PLAIN_KEY` are not found.
        """
        return store_blocks.values_under(self._transaction, self._blocks, names_of_keys(prefixes))

    def entries_under(self, prefixes: pa.Array) -> tuple[Positions, pa.Array, pa.Array]:
        """As `values_under`, with the keys between the two."""
        return store_blocks.entries_under(self._transaction, self._blocks, names_of_keys(prefixes), without=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWrites:
    """Changes of a store: distinct keys in byte order, and the new value of each, null to delete.

    The other fields are figures for the report of the micro-batch.
    """

    keys: pa.Array
    values: pa.Array
    late_rows: int = 0
    watermark_ms: int | None = None
    announced_us: int | None = None  # watermark that the next step sends on
    silent: tuple[tuple[str, int, int], ...] = ()  # (source, upstream task, ms): those that hold back windows
    next_due_ms: int | None = None  # when the next timer of processing time is due
    dead_letters: tuple[DeadRecords, ...] = ()

    @classmethod
    def ordered(cls, keys: pa.Array, values: pa.Array) -> StoreWrites:
        """Return changes without figures; `keys` are distinct, in any order."""
        order = order_of_keys(keys)
        if order is not None:
            keys, values = keys.take(order), values.take(order)
        return cls(keys=keys, values=values)


def position_on_disk(path: Path, identity: StoreIdentity) -> StorePosition | None:
    """Return the position of a closed store without changing it; None if it is unusable or does not exist."""
    environment = open_read_only(path)
    if environment is None:
        return None
    try:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin(db=meta) as transaction:
            # Both are read in one transaction: a store that is emptied meanwhile must not lend its old position to a
            # new identity.
            found = transaction.get(IDENTITY)
            current = transaction.get(POSITION)
        if found is None or current is None or identity.difference(bytes(found)) is not None:
            return None
        return StorePosition.from_bytes(unseal(current))
    except (lmdb.Error, StateError):
        return None
    finally:
        environment.close()
