"""The LMDB environment of one store, open: transactions that grow its map, notice corruption and a full disk.

A transaction whose map is full is done again in one of twice the size, so work is given as functions of a transaction
that may be called more than once. Transactions of several processes take turns at the write lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb

from headrace.errors import StateError
from headrace.spark.runtime.stores.store_files import (
    CORRUPTIONS,
    condemn,
    disk_full,
    file_id,
    is_disk_full,
    open_environment,
)

__all__ = ["StoreEnvironment"]


class StoreEnvironment:
    """An open LMDB environment. Mutable: it notices when its files are replaced."""

    def __init__(self, path: Path) -> None:
        """Open the environment. `rebuilt` is the reason why earlier files were set aside; None if they were not."""
        self.path = path
        self.lmdb, self.rebuilt = open_environment(path)
        self._file = file_id(path)

    @property
    def is_current(self) -> bool:
        """Whether the files behind the path are still the ones that are open here."""
        return file_id(self.path) == self._file

    def close(self) -> None:
        self.lmdb.close()

    def condemn(self, reason: str) -> None:
        """Mark the store as unusable. The next opening sets it aside, and it is rebuilt from the changelog."""
        condemn(self.path, reason)
        self._file = (-1, -1)

    @contextlib.contextmanager
    def reading(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction."""
        with self._watched(), self._begin(write=False) as transaction:
            yield transaction

    def write(self, work: Callable[[lmdb.Transaction[bytes]], Any]) -> Any:
        """Run `work` in a write transaction; what it returns."""
        while True:
            transaction, result = self.opened(work)
            committed, _ = self.finished(transaction, lambda _: None)
            if committed:
                return result

    def opened(self, work: Callable[[lmdb.Transaction[bytes]], Any]) -> tuple[lmdb.Transaction[bytes], Any]:
        """Begin a write transaction and run `work` in it: (the transaction, the result). It ends in the same thread."""
        while True:
            with self._watched():
                transaction = self._begin(write=True)
                try:
                    return transaction, work(transaction)
                # LMDB may only change the size of its map while this process has no transaction open, hence abort,
                # enlarge, begin again.
                except lmdb.MapFullError:
                    transaction.abort()
                except BaseException:
                    transaction.abort()
                    raise
            self._enlarge()

    def finished(
        self, transaction: lmdb.Transaction[bytes], work: Callable[[lmdb.Transaction[bytes]], Any]
    ) -> tuple[bool, Any]:
        """Run `work` and commit: (True, its result), or (False, None) if all must be repeated in a larger map."""
        try:
            with self._watched():
                result = work(transaction)
                transaction.commit()
                self._extend_file()
        except lmdb.MapFullError:
            transaction.abort()
            self._enlarge()
            return False, None
        except BaseException:
            transaction.abort()
            raise
        return True, result

    def _extend_file(self) -> None:
        """Make the file as long as the pages that LMDB counts.

        A transaction may take a page behind the end of the file and free it again before it commits, as when a batch is
        undone. LMDB counts such a page and never writes it. An opening could not tell that from a truncated file
        without a parser for LMDB's free list, so the file is extended here. A process that is killed in between leaves
        a short file, which is set aside and rebuilt.
        """
        needed = (self.lmdb.info()["last_pgno"] + 1) * self.lmdb.stat()["psize"]
        file = self.path / "data.mdb"
        with contextlib.suppress(OSError):  # the file stays short: rebuilt once, nothing is lost
            if not self.is_current or file.stat().st_size >= needed:
                return
            with self._begin(write=True):  # the lock keeps other processes from growing it meanwhile
                if file.stat().st_size < needed:
                    os.truncate(file, needed)

    def _enlarge(self) -> None:
        self.lmdb.set_mapsize(self.lmdb.info()["map_size"] * 2)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Translate errors in the block: corruption condemns the files, a full disk raises StateError("disk-full")."""
        try:
            yield
        except CORRUPTIONS as error:
            self.condemn(str(error))
            raise StateError("state-corrupt", f"the store {self.path} is corrupt ({error})") from error
        except lmdb.DiskError as error:
            raise disk_full(self.path) from error
        except lmdb.Error as error:
            # LMDB reports a write that only a part had room for as an I/O error.
            if os.strerror(errno.EIO) not in str(error):
                raise
            raise (disk_full(self.path) if is_disk_full(self.path) else _not_written(self.path, error)) from error
        except StateError as error:
            # Found by a checksum or by a row that does not decode, not by LMDB.
            if error.code == "state-corrupt":
                self.condemn(error.message)
            raise

    def _begin(self, *, write: bool) -> lmdb.Transaction[bytes]:
        try:
            return self.lmdb.begin(write=write)
        except lmdb.MapResizedError:  # another process made the map larger
            # Zero adopts the size that the other process has set.
            self.lmdb.set_mapsize(0)
            return self.lmdb.begin(write=write)


def _not_written(path: Path, error: lmdb.Error) -> StateError:
    return StateError(
        "state-unusable",
        f"the store {path} cannot be read or written: {error}",
        "Look at that disk. The store may be deleted: its changelog brings it back.",
        path=str(path),
    )
