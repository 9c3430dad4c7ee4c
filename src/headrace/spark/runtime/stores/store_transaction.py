"""A micro-batch in the write transaction of a store: merged, and not yet prepared.

The changelog is written between the two. A slot merges the stores of several tasks, sends their changes, waits once for
all acknowledgements, and then prepares the stores: the merge of one task overlaps with the sends of the one before.
Until `prepare` no other process can write to the store or see the changes, and a crash leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.spark.runtime.stores.store_environment import StoreEnvironment
from headrace.spark.runtime.stores.store_records import StorePosition

if TYPE_CHECKING:
    import lmdb

__all__ = ["StoreTransaction"]


class StoreTransaction:
    """Mutable: the transaction. Ends with `prepare` or `abandon`, in the thread that began it."""

    def __init__(
        self,
        environment: StoreEnvironment,
        merge: Callable[[lmdb.Transaction[bytes]], StorePosition | None],
        place: Callable[[lmdb.Transaction[bytes], int], tuple[int, int]],
    ) -> None:
        """`merge` writes into a transaction and returns where the store stood. `place` writes where it stands then,
        given the changelog's offset, and returns its keys and bytes. Both are done again when the map was full.
        """
        self._environment, self._merge, self._place = environment, merge, place
        self.keys = 0
        self.size_bytes = 0
        self._open()

    def _open(self) -> None:
        self._transaction, base = self._environment.opened(self._merge)
        self._stood = base.changelog_offset if base is not None else 0

    def prepare(self, changelog_offset: int | None) -> None:
        """Commit, revocably. `changelog_offset`: the next one behind the batch's changes; None when it has none.

        `keys` and `size_bytes` say from now on how much the store holds.
        """
        # Without changes the store's values still are those of the changelog up to the old offset.
        offset = self._stood if changelog_offset is None else changelog_offset
        while True:
            committed, found = self._environment.finished(self._transaction, lambda into: self._place(into, offset))
            if committed:
                self.keys, self.size_bytes = found
                return
            # The map was full: the transaction is gone with its merge, so both are repeated in the larger map. The
            # changelog has the records already; a merge is a function of the stored values, hence the repetition writes
            # the same ones.
            self._open()

    def abandon(self) -> None:
        """Leave the store as it was. Nothing happens after `prepare`."""
        self._transaction.abort()
