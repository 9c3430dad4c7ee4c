"""Stores of other processes, open for reading in this one: committed views for queries, any number at a time.

A reader maps the store's file and takes no lock that a writer waits for. LMDB sets three rules:

- An environment is opened once per process, and shared by its threads.
- The map of an environment must not change while a thread reads. So it is opened with a map larger than any store will
  need, which takes addresses and no memory.
- A read transaction keeps the pages that it sees, so a store grows while one lasts. Callers bound the time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from headrace.errors import StateError
from headrace.spark.runtime.stores.committed_view import CommittedView
from headrace.spark.runtime.stores.store_files import CORRUPTIONS, file_id, open_read_only
from headrace.spark.runtime.stores.store_records import BatchKey

__all__ = ["StoreReaders"]

MAP_BYTES = 1 << 36  # 64 GiB of addresses; the largest store that can be queried


@dataclass(slots=True)
class _Open:
    """An open environment. Mutable."""

    environment: lmdb.Environment
    meta: Any
    blocks: Any
    file: tuple[int, int] | None
    readers: int = 0


class StoreReaders:
    """Open stores of a process. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[Path, _Open] = {}
        self._replaced: list[_Open] = []  # files that were set aside while threads read them
        self._closed = False

    @contextlib.contextmanager
    def view(self, path: Path, committed: BatchKey | None) -> Iterator[CommittedView]:
        """A view of the committed values of the store at `path`; see `CommittedView`.

        Raises:
            StateError: state-moving if there is no store that can be read; state-corrupt.
        """
        found = self._take(path)
        try:
            with found.environment.begin() as transaction:
                yield CommittedView(transaction, found.meta, found.blocks, committed)
        except lmdb.MapResizedError as error:
            raise StateError(
                "state-unreadable",
                f"the store {path} is larger than {MAP_BYTES >> 30} GiB, which queries cannot read",
                "Use more partitions: each task has a store of its own.",
            ) from error
        except CORRUPTIONS as error:
            raise StateError("state-corrupt", f"the store {path} cannot be read: {error}") from error
        finally:
            self._give_back(found)

    def close(self) -> None:
        """Close the stores that no thread reads; the others are closed when they are given back."""
        with self._lock:
            self._closed = True
            self._replaced += self._stores.values()
            self._stores.clear()
            self._sweep()

    def _take(self, path: Path) -> _Open:
        with self._lock:
            file = file_id(path)
            known = self._stores.get(path)
            if known is not None and known.file != file:
                # Set aside or deleted: other files have this path now.
                self._replaced.append(self._stores.pop(path))
                known = None
            # Before a path is opened again: its old files may be those of another store.
            self._sweep()
            if known is None:
                if self._closed:
                    raise _moving(path)
                known = self._stores[path] = _opened(path, file)
            known.readers += 1
            return known

    def _give_back(self, found: _Open) -> None:
        with self._lock:
            found.readers -= 1
            self._sweep()

    def _sweep(self) -> None:
        """Close the stores that no thread reads and whose files are others now. The caller holds the lock."""
        for path, each in list(self._stores.items()):
            if each.readers == 0 and file_id(path) != each.file:  # an open file keeps its disk space
                self._replaced.append(self._stores.pop(path))
        for each in [each for each in self._replaced if each.readers == 0]:
            self._replaced.remove(each)
            each.environment.close()


def _opened(path: Path, file: tuple[int, int] | None) -> _Open:
    environment = open_read_only(path, map_bytes=MAP_BYTES) if file is not None else None
    if environment is None:
        raise _moving(path)
    try:
        meta, blocks = (environment.open_db(name, create=False) for name in (b"meta", b"blocks"))
    except lmdb.Error as error:  # a store that its first opening has not filled yet
        environment.close()
        raise _moving(path) from error
    return _Open(environment, meta, blocks, file)


def _moving(path: Path) -> StateError:
    return StateError(
        "state-moving", f"the store {path} cannot be read at the moment", "Try again: it is being opened or rebuilt."
    )
