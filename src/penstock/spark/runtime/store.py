"""One store of one task: an LMDB environment that is a cache of its changelog topic.

A commit of LMDB is atomic, so values and the position they stand for never part. A micro-batch is *prepared*: the new
values, the batch's position and an undo record of the old values go in together. Only a later call that names the
batch as committed drops the undo; any other call rolls back by it. So a failed, cancelled or truncated Spark job
leaves nothing behind, and what a straggler of a failed job prepares is refused by batch id and attempt.

A *replay* of the changelog takes the store over first (`begin_replay`): each piece of it is written only while the
store still belongs to that replay, so a standby's and an active task's writes cannot mix, whoever is late.

LMDB runs without fsync: a crash of the process loses nothing, a crash of the machine may, therefore the boot id is
part of the identity. A store of another boot, another topic (id, not name) or another schema is emptied, in place,
because other worker processes may have the same files open; one that is corrupt is set aside (`store_files`). Several
processes of one host may open a store at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from penstock.errors import StateError
from penstock.spark.runtime.bulk_load import names_of_keys, newest_values
from penstock.spark.runtime.store_files import (
    CORRUPTIONS,
    condemn,
    disk_full,
    file_bytes,
    file_id,
    open_environment,
    open_to_look,
)
from penstock.spark.runtime.store_records import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    boot_id,
    is_format_1,
    pack_undo,
    seal,
    unpack_undo,
    unseal,
)

__all__ = ["BatchKey", "StoreIdentity", "StorePosition", "TaskStore", "boot_id", "position_on_disk"]

_POSITION, _PREPARED, _UNDO, _IDENTITY = b"position", b"prepared", b"undo", b"identity"


class TaskStore:
    """The values of one aggregate of one task."""

    def __init__(self, path: Path, identity: StoreIdentity) -> None:
        """`rebuilt`: why what was here before is of no use, in words; None when it is there, or nothing was."""
        self.path = path
        self.rebuilt: str | None = None
        try:
            self._open(identity)
        except StateError as error:
            if error.code != "state-corrupt":
                raise
            self._open(identity)  # condemned by now, hence set aside

    def _open(self, identity: StoreIdentity) -> None:
        self._environment, self.rebuilt = open_environment(self.path)
        self._file = file_id(self.path)
        try:
            self._meta = self._environment.open_db(b"meta")
            self._values = self._environment.open_db(b"values")
            self._write(lambda transaction: self._take_identity(transaction, identity))
        except BaseException:
            self._environment.close()
            raise

    def _take_identity(self, transaction: Any, identity: StoreIdentity) -> None:
        found = transaction.get(_IDENTITY, db=self._meta)
        if found is not None:
            older = is_format_1(found)
            difference = identity.difference(bytes(found) if older else unseal(found))
            if difference is None and older:
                self._seal_all(transaction)
            elif difference is not None:
                self.rebuilt = difference
                self._empty(transaction)
        transaction.put(_IDENTITY, seal(identity.to_bytes()), db=self._meta)

    def _seal_all(self, transaction: Any) -> None:
        """From format 1 to 2, in place and in one transaction."""
        for name in (_POSITION, _PREPARED, _UNDO):
            body = transaction.get(name, db=self._meta)
            if body is not None:
                transaction.put(name, seal(bytes(body)), db=self._meta)

    @property
    def is_current(self) -> bool:
        """Whether the files behind the path are still the ones that are open here."""
        return file_id(self.path) == self._file

    def close(self) -> None:
        self._environment.close()

    def position(self) -> StorePosition | None:
        """Where the last committed batch left the values; None for an empty store."""
        return self._read_position(_POSITION)

    def prepared(self) -> StorePosition | None:
        """Where an undecided batch left them."""
        return self._read_position(_PREPARED)

    def count(self) -> int:
        """Keys, those of an undecided batch included."""
        with self._reading() as transaction:
            return int(transaction.stat(self._values)["entries"])

    def size_bytes(self) -> int:
        """Bytes of the pages in use by values."""
        with self._reading() as transaction:
            stat = transaction.stat(self._values)
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return int(pages * stat["psize"])

    def disk_bytes(self) -> int:
        """What its files take on disk; LMDB keeps freed pages for later."""
        return file_bytes(self.path)

    def values(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) of every short key, in key order; for tests and tools."""
        with self._reading() as transaction:
            for key, value in transaction.cursor(self._values):
                if key[:1] == b"k":
                    yield bytes(key[1:]), bytes(value)

    def settle(self, committed: BatchKey | None) -> StorePosition | None:
        """Decide about a prepared batch: keep it when it is `committed`, else undo it. The position after that."""

        def decide(transaction: Any) -> StorePosition | None:
            return self._settle(transaction, committed)

        return self._write(decide)

    def prepare(
        self,
        after: BatchKey | None,
        position: StorePosition,
        keys: Sequence[bytes] | pa.Array,
        merge: Callable[[list[bytes | None]], Sequence[bytes | None]],
        publish: Callable[[], int],
    ) -> None:
        """Merge a micro-batch into the values, revocably.

        `after` is the batch the driver knows as committed: the values must stand there. `merge` gets the old value of
        each key and returns the new ones (None deletes); `publish` sends them to the changelog and returns its next
        offset. Raises StateError("store-behind") when the values stand elsewhere, StateError("stale-attempt") when a
        newer attempt has been here. Keys in order are read and written fastest (`bulk_load.order_of_keys`).
        """
        names = names_of_keys(keys)

        def put(transaction: Any) -> None:
            self._refuse_stragglers(transaction, position.batch)
            base = self._settle(transaction, after)
            if (base.batch if base else None) != after or (base is not None and base.restoring):
                raise StateError(
                    "store-behind", f"the store {self.path} stands at {base and base.batch}, not at {after}"
                )
            old = _values_of(transaction.cursor(self._values), names)
            new = merge(old)
            _apply(transaction, self._values, names, new)
            self._put(transaction, _UNDO, pack_undo(names, old))
            placed = replace(position, changelog_offset=publish())
            self._put(transaction, _PREPARED, placed.to_bytes())

        self._write(put)

    def begin_replay(self, writer: BatchKey, first: int, end: int) -> int:
        """Take the store over for a replay of the changelog, which now begins at `first` and ends at `end`.

        Undoes what was prepared. Returns the offset to replay from: where the values stand, or `first` when the log
        does not hold that place any more (the store is emptied then, and `rebuilt` says why).
        """

        def take(transaction: Any) -> int:
            base = self._settle(transaction, None)
            start = base.changelog_offset if base is not None else first
            if not first <= start <= end:
                self.rebuilt = f"it stands at {start}, the changelog holds {first} to {end}"
                self._empty_values(transaction)
                start = first
            taken = StorePosition(batch=writer, input_offsets={}, changelog_offset=start, restoring=True)
            self._put(transaction, _POSITION, taken.to_bytes())
            return start

        return int(self._write(take))

    def load(self, writer: BatchKey, keys: pa.Array, values: pa.Array, next_offset: int) -> None:
        """Write a piece of the changelog, in the order of the log; a null value deletes.

        Raises StateError("store-taken") when the store does not belong to the replay `writer` any more.
        """
        pairs, deleted = newest_values(keys, values)

        def put(transaction: Any) -> None:
            stands = self._position_in(transaction, _POSITION)
            if stands is None or not stands.restoring or stands.batch != writer:
                raise StateError("store-taken", f"the store {self.path} belongs to {stands and stands.batch} now")
            transaction.cursor(self._values).putmulti(pairs)
            for name in deleted:
                transaction.delete(name, db=self._values)
            self._put(transaction, _POSITION, replace(stands, changelog_offset=next_offset).to_bytes())

        self._write(put)

    def place(self, batch: BatchKey, input_offsets: Mapping[str, int], *, over: StorePosition) -> None:
        """Say whose the values are now and for which input they stand. `over`: where they stood when that was judged.

        Their place in the changelog stays: what the group told may be old, and a later place would claim changes of the
        next owner that are not in here. Raises StateError("store-taken") when somebody has been here since.
        """
        placed = replace(over, batch=batch, input_offsets=dict(input_offsets), restoring=False)

        def put(transaction: Any) -> None:
            stands = self._position_in(transaction, _POSITION)
            if stands != over:
                raise StateError("store-taken", f"the store {self.path} stands at {stands} now, not at {over}")
            self._put(transaction, _POSITION, placed.to_bytes())

        self._write(put)

    def condemn(self, reason: str) -> None:
        """What is in here is no state: whoever opens the store next sets it aside, and it is rebuilt."""
        condemn(self.path, reason)
        self._file = (-1, -1)

    def _refuse_stragglers(self, transaction: Any, batch: BatchKey) -> None:
        for name in (_PREPARED, _POSITION):
            stands = self._position_in(transaction, name)
            seen = stands.batch if stands else None
            if seen and seen.incarnation == batch.incarnation and seen > batch:
                raise StateError("stale-attempt", f"{self.path} has seen {seen}, newer than {batch}")

    def _settle(self, transaction: Any, committed: BatchKey | None) -> StorePosition | None:
        prepared = self._position_in(transaction, _PREPARED)
        if prepared is not None:
            if prepared.batch == committed:
                self._put(transaction, _POSITION, prepared.to_bytes())
            else:
                names, old = unpack_undo(unseal(transaction.get(_UNDO, db=self._meta)))
                _apply(transaction, self._values, names, old)
            transaction.delete(_PREPARED, db=self._meta)
            transaction.delete(_UNDO, db=self._meta)
        return self._position_in(transaction, _POSITION)

    def _empty(self, transaction: Any) -> None:
        transaction.drop(self._values, delete=False)
        transaction.drop(self._meta, delete=False)

    def _empty_values(self, transaction: Any) -> None:
        """All but the identity."""
        identity = transaction.get(_IDENTITY, db=self._meta)
        self._empty(transaction)
        transaction.put(_IDENTITY, identity, db=self._meta)

    def _put(self, transaction: Any, name: bytes, body: bytes) -> None:
        transaction.put(name, seal(body), db=self._meta)

    def _position_in(self, transaction: Any, name: bytes) -> StorePosition | None:
        data = transaction.get(name, db=self._meta)
        return StorePosition.from_bytes(unseal(data)) if data is not None else None

    def _read_position(self, name: bytes) -> StorePosition | None:
        with self._reading() as transaction:
            return self._position_in(transaction, name)

    def _write(self, work: Callable[[Any], Any]) -> Any:
        """Run `work` in a write transaction; a full map is doubled and the work done again."""
        while True:
            try:
                with self._watched(), self._begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)
            except lmdb.DiskError as error:
                raise disk_full(self.path) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._watched(), self._begin(write=False) as transaction:
            yield transaction

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Corruption that LMDB or a checksum finds condemns the files."""
        try:
            yield
        except CORRUPTIONS as error:
            self.condemn(str(error))
            raise StateError("state-corrupt", f"the store {self.path} is corrupt ({error})") from error
        except StateError as error:
            if error.code == "state-corrupt":
                self.condemn(error.message)
            raise

    def _begin(self, *, write: bool) -> Any:
        try:
            return self._environment.begin(write=write)
        except lmdb.MapResizedError:  # another process made the map larger
            self._environment.set_mapsize(0)
            return self._environment.begin(write=write)


def _values_of(cursor: Any, names: list[bytes]) -> list[bytes | None]:
    found = cursor.getmulti(names)
    if len(found) == len(names):
        return [value for _name, value in found]
    values = dict(found)
    return [values.get(name) for name in names]


def _apply(transaction: Any, database: Any, names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    kept = [pair for pair in zip(names, values, strict=True) if pair[1] is not None]
    kept.sort()  # nothing to do where keys came in order
    transaction.cursor(database).putmulti(kept)
    if len(kept) < len(names):
        for name, value in zip(names, values, strict=True):
            if value is None:
                transaction.delete(name, db=database)


def position_on_disk(path: Path, identity: StoreIdentity) -> StorePosition | None:
    """Where a store stands that nobody need have open; nothing is changed. None: it is of no use, or there is none."""
    environment = open_to_look(path)
    if environment is None:
        return None
    try:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin(db=meta) as transaction:
            found = transaction.get(_IDENTITY)
            stands = transaction.get(_POSITION)
        if found is None or stands is None or is_format_1(found) or identity.difference(unseal(found)) is not None:
            return None
        return StorePosition.from_bytes(unseal(stands))
    except (lmdb.Error, StateError):
        return None
    finally:
        environment.close()
