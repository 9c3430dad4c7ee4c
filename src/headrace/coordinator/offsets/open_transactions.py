"""OpenTransactions: what transactions wrote that no marker has decided yet, by producer id and key.

Two rules, both Kafka's. What a transaction wrote counts with its marker, unless something written *later* counts
already: the order of the records decides, not the order of the markers. And a tombstone takes what is undecided along.
A shard keeps its pending offsets so, and so does the reader that loads a shard from its log: one rule for both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["OpenTransactions"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class OpenTransactions(Generic[Key, Value]):
    """producer id → key → what it wrote. Mutable; told of every record in the order of the log."""

    __slots__ = ("_by_key", "_by_producer", "_written")

    def __init__(self) -> None:
        # The number orders records of one key; `counts` is False once something later has been decided.
        self._by_producer: dict[int, dict[Key, tuple[int, Value]]] = {}
        self._by_key: dict[Key, dict[int, bool]] = {}
        self._written = 0

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def keys(self) -> Iterator[Key]:
        """Those that some transaction has written to."""
        return iter(self._by_key)

    def write(self, producer_id: int, key: Key, value: Value) -> None:
        """A record of a transaction."""
        self._written += 1
        self._by_producer.setdefault(producer_id, {})[key] = (self._written, value)
        self._by_key.setdefault(key, {})[producer_id] = True

    def supersede(self, key: Key) -> None:
        """A record outside of transactions: what was written before it never counts, though it is undecided still."""
        producers = self._by_key.get(key)
        if producers is not None:
            self._by_key[key] = dict.fromkeys(producers, False)

    def drop(self, key: Key) -> None:
        """A tombstone."""
        for producer_id in self._by_key.pop(key, ()):
            written = self._by_producer[producer_id]
            del written[key]
            if not written:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, *, committed: bool) -> tuple[list[tuple[Key, Value]], list[Key]]:
        """A marker: what counts now, in the order it was written, and all keys of the transaction.

        A marker of a transaction that wrote nothing, or was ended before, is nothing.
        """
        written = self._by_producer.pop(producer_id, {})
        decided = []
        # A committed record counts unless a later one was decided before (`counts`). In turn it makes earlier undecided
        # records of the same key irrelevant: the order of the log decides, not the order of the markers.
        for key, (number, value) in written.items():
            producers = self._by_key[key]
            counts = producers.pop(producer_id)
            if not producers:
                del self._by_key[key]
            if committed and counts:
                decided.append((number, key, value))
                for other in producers:
                    if self._by_producer[other][key][0] < number:
                        producers[other] = False
        decided.sort(key=lambda each: each[0])
        return [(key, value) for _, key, value in decided], list(written)

    def undecided(self, *, counts: bool) -> Iterator[tuple[int, Key, Value]]:
        """(producer id, key, value) in the order of the log: those that a commit would make count, or the others."""
        found = [
            (number, producer_id, key, value)
            for producer_id, written in self._by_producer.items()
            for key, (number, value) in written.items()
            if self._by_key[key][producer_id] is counts
        ]
        found.sort(key=lambda each: each[0])
        for _, producer_id, key, value in found:
            yield producer_id, key, value
