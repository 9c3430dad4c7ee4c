"""One store of one task: an LMDB environment that is a cache of its changelog topic.

A commit of LMDB is atomic, so values and the position they stand for never part. A micro-batch is *prepared*: the new
values, the batch's position and an undo record of the old values go in together. Only a later call that names the
batch as committed drops the undo; any other call rolls back by it. So a failed, cancelled or truncated Spark job
leaves nothing behind, and what a straggler of a failed job prepares is refused by batch id and attempt.

LMDB runs without fsync: a crash of the process loses nothing, a crash of the machine may, therefore the boot id is
part of the identity. A store of another boot, another topic (id, not name) or another schema is emptied, in place,
because other worker processes may have the same files open. Several processes of one host may open a store at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

from penstock.errors import StateError

__all__ = ["BatchKey", "StoreIdentity", "StorePosition", "TaskStore", "boot_id"]

STORE_FORMAT = 1
FIRST_MAP_BYTES = 64 * 1024 * 1024
LONGEST_PLAIN_KEY = 480  # LMDB takes 511 bytes
_POSITION, _PREPARED, _UNDO, _IDENTITY = b"position", b"prepared", b"undo", b"identity"


def boot_id() -> str:
    """What changes when the machine starts anew: files written without fsync before that are not trusted."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import subprocess

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True)
        return found.stdout.strip()
    return platform.node()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """Which attempt of which micro-batch, of which run of the application."""

    incarnation: str
    batch_id: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """What the content of a store depends on; any difference empties it."""

    changelog_topic_id: str
    schema_hash: str
    boot_id: str
    format: int = STORE_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePosition:
    """What the values stand for: input up to `input_offsets`, changelog up to `changelog_offset` (both exclusive)."""

    batch: BatchKey
    input_offsets: Mapping[str, int]  # "topic-partition" → next offset
    changelog_offset: int
    restoring: bool = False  # a replay is under way: no input position belongs to these values yet

    def to_bytes(self) -> bytes:
        return json.dumps({**asdict(self), "batch": asdict(self.batch)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StorePosition:
        facts = json.loads(data)
        return cls(**{**facts, "batch": BatchKey(**facts["batch"])})


class TaskStore:
    """The values of one aggregate of one task."""

    def __init__(self, path: Path, identity: StoreIdentity) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._environment = lmdb.open(
            str(path), map_size=FIRST_MAP_BYTES, max_dbs=2, sync=False, metasync=False, readahead=False, max_readers=512
        )
        self._environment.reader_check()  # readers that were killed would pin pages for ever
        self._file = _file_id(path)
        with self._writing() as transaction:
            self._meta = self._environment.open_db(b"meta", transaction)
            self._values = self._environment.open_db(b"values", transaction)
            wanted = json.dumps(asdict(identity), sort_keys=True).encode()
            found = transaction.get(_IDENTITY, db=self._meta)
            self.was_emptied = found is not None and found != wanted
            if found != wanted:
                self._empty(transaction)
                transaction.put(_IDENTITY, wanted, db=self._meta)

    @property
    def is_current(self) -> bool:
        """Whether the files behind the path are still the ones that are open here."""
        return _file_id(self.path) == self._file

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
        keys: Sequence[bytes],
        merge: Callable[[list[bytes | None]], Sequence[bytes | None]],
        publish: Callable[[], int],
    ) -> None:
        """Merge a micro-batch into the values, revocably.

        `after` is the batch the driver knows as committed: the values must stand there. `merge` gets the old value of
        each key and returns the new ones (None deletes); `publish` sends them to the changelog and returns its next
        offset. Raises StateError("store-behind") when the values stand elsewhere, StateError("stale-attempt") when a
        newer attempt has been here.
        """
        names = [_name(key) for key in keys]

        def put(transaction: Any) -> None:
            self._refuse_stragglers(transaction, position.batch)
            base = self._settle(transaction, after)
            if (base.batch if base else None) != after or (base is not None and base.restoring):
                raise StateError(
                    "store-behind", f"the store {self.path} stands at {base and base.batch}, not at {after}"
                )
            cursor = transaction.cursor(self._values)
            found = dict(cursor.getmulti(names))
            old = [found.get(name) for name in names]
            new = merge(old)
            _apply(transaction, self._values, names, new)
            transaction.put(_UNDO, _pack(names, old), db=self._meta)
            placed = replace(position, changelog_offset=publish())
            transaction.put(_PREPARED, placed.to_bytes(), db=self._meta)

        self._write(put)

    def load(self, items: Sequence[tuple[bytes, bytes | None]], position: StorePosition) -> None:
        """Replay a piece of the changelog; a value of None deletes."""

        def put(transaction: Any) -> None:
            newest = dict(items)
            _apply(transaction, self._values, [_name(key) for key in newest], list(newest.values()))
            transaction.put(_POSITION, position.to_bytes(), db=self._meta)

        self._write(put)

    def place(self, position: StorePosition) -> None:
        """Say what the values stand for, without changing them."""
        self.load([], position)

    def clear(self) -> None:
        """Forget everything but the identity."""

        def empty(transaction: Any) -> None:
            identity = transaction.get(_IDENTITY, db=self._meta)
            self._empty(transaction)
            transaction.put(_IDENTITY, identity, db=self._meta)

        self._write(empty)

    def _refuse_stragglers(self, transaction: Any, batch: BatchKey) -> None:
        for name in (_PREPARED, _POSITION):
            data = transaction.get(name, db=self._meta)
            seen = StorePosition.from_bytes(data).batch if data else None
            if seen and seen.incarnation == batch.incarnation and seen > batch:
                raise StateError("stale-attempt", f"{self.path} has seen {seen}, newer than {batch}")

    def _settle(self, transaction: Any, committed: BatchKey | None) -> StorePosition | None:
        data = transaction.get(_PREPARED, db=self._meta)
        if data is not None:
            if StorePosition.from_bytes(data).batch == committed:
                transaction.put(_POSITION, data, db=self._meta)
            else:
                names, old = _unpack(transaction.get(_UNDO, db=self._meta))
                _apply(transaction, self._values, names, old)
            transaction.delete(_PREPARED, db=self._meta)
            transaction.delete(_UNDO, db=self._meta)
        stands = transaction.get(_POSITION, db=self._meta)
        return StorePosition.from_bytes(stands) if stands else None

    def _empty(self, transaction: Any) -> None:
        transaction.drop(self._values, delete=False)
        transaction.drop(self._meta, delete=False)

    def _read_position(self, name: bytes) -> StorePosition | None:
        with self._reading() as transaction:
            data = transaction.get(name, db=self._meta)
        return StorePosition.from_bytes(data) if data else None

    def _write(self, work: Callable[[Any], Any]) -> Any:
        """Run `work` in a write transaction; a full map is doubled and the work done again."""
        while True:
            try:
                with self._writing() as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self._environment.set_mapsize(self._environment.info()["map_size"] * 2)
            except lmdb.DiskError as error:
                raise StateError("disk-full", f"the disk of the state directory {self.path} is full") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._begin(write=True) as transaction:
            yield transaction

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._begin(write=False) as transaction:
            yield transaction

    def _begin(self, *, write: bool) -> Any:
        try:
            return self._environment.begin(write=write)
        except lmdb.MapResizedError:  # another process made the map larger
            self._environment.set_mapsize(0)
            return self._environment.begin(write=write)


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = (path / "data.mdb").stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _name(key: bytes) -> bytes:
    """The key under which LMDB keeps it: itself, or a digest where LMDB's 511 bytes do not suffice."""
    if len(key) <= LONGEST_PLAIN_KEY:
        return b"k" + key
    return b"h" + hashlib.blake2b(key, digest_size=32).digest()


def _apply(transaction: Any, database: Any, names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    kept = sorted((name, value) for name, value in zip(names, values, strict=True) if value is not None)
    transaction.cursor(database).putmulti(kept)
    if len(kept) < len(names):
        for name, value in zip(names, values, strict=True):
            if value is None:
                transaction.delete(name, db=database)


def _pack(names: Sequence[bytes], values: Sequence[bytes | None]) -> bytes:
    batch = pa.record_batch([pa.array(names, pa.binary()), pa.array(values, pa.binary())], names=["name", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpack(data: bytes) -> tuple[list[bytes], list[bytes | None]]:
    table = pa.ipc.open_stream(data).read_all()
    return table.column("name").to_pylist(), table.column("value").to_pylist()
