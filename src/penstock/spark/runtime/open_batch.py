"""A micro-batch in the write transaction of a store: merged, and not yet prepared.

Between the two lies the changelog. A slot merges the stores of several tasks, sends what changed in them, waits once
for all of it to be stored, and prepares them then: while a broker takes one task's changes, the next one is merged.
Until then nobody else can write to the store, and nothing of it is seen; a process that dies leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import lmdb

from penstock.spark.runtime.store_records import StorePosition

__all__ = ["OpenBatch"]


class _Store(Protocol):
    """What a batch needs of its store."""

    def opened(self, work: Callable[[Any], Any]) -> tuple[Any, Any]: ...
    def put_prepared(self, transaction: Any, position: StorePosition) -> tuple[int, int]: ...
    def committed(self, transaction: Any) -> bool: ...
    def enlarge(self) -> None: ...


class OpenBatch:
    """Mutable: the transaction. Ends with `prepare` or `abandon`, in the thread that began it."""

    def __init__(self, store: _Store, position: StorePosition, merge: Callable[[Any], StorePosition | None]) -> None:
        """`merge` writes into a transaction and returns where the store stood; done again when the map was full."""
        self._store, self._position, self._merge = store, position, merge
        self.keys = 0
        self.size_bytes = 0
        self._open()

    def _open(self) -> None:
        self._transaction, base = self._store.opened(self._merge)
        self._stood = base.changelog_offset if base is not None else 0

    def prepare(self, changelog_offset: int | None) -> None:
        """Commit, revocably. `changelog_offset`: the next one behind the batch's changes; None when it has none.

        `keys` and `size_bytes` say from now on how much the store holds.
        """
        offset = self._stood if changelog_offset is None else changelog_offset
        position = replace(self._position, changelog_offset=offset)
        while True:
            try:
                self.keys, self.size_bytes = self._store.put_prepared(self._transaction, position)
                if self._store.committed(self._transaction):
                    return
            except lmdb.MapFullError:
                self._transaction.abort()
                self._store.enlarge()
            except BaseException:
                self._transaction.abort()
                raise
            self._open()

    def abandon(self) -> None:
        """Leave the store as it was. Nothing happens after `prepare`."""
        self._transaction.abort()
