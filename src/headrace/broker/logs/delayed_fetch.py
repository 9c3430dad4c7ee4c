"""Fetches that wait for bytes (Kafka's purgatory): parked by partition, woken by appends, never by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

__all__ = ["DelayedFetch", "DelayedFetches"]

PartitionKey = tuple[str, int]


class DelayedFetch:
    """One parked fetch. Mutable: counts the bytes that arrived since it was parked."""

    __slots__ = ("_missing_bytes", "_woken", "partitions")

    def __init__(self, partitions: tuple[PartitionKey, ...], missing_bytes: int, woken: asyncio.Future[bool]) -> None:
        self.partitions = partitions
        self._missing_bytes = missing_bytes
        self._woken = woken

    def add_bytes(self, size: int) -> None:
        """Count appended bytes. Wakes the fetch once it has enough of them."""
        self._missing_bytes -= size
        # min_bytes over all partitions together, as in Kafka's DelayedFetch.
        if self._missing_bytes <= 0:
            self.wake(arrived=True)

    def wake(self, *, arrived: bool = False) -> None:
        """End the wait. `arrived`: by enough bytes."""
        if not self._woken.done():
            self._woken.set_result(arrived)


class DelayedFetches:
    """All parked fetches of this broker."""

    def __init__(self) -> None:
        # Read by every append, so that one without a waiting reader costs no call.
        self.parked: dict[PartitionKey, dict[DelayedFetch, None]] = {}

    async def wait(self, partitions: Iterable[PartitionKey], *, missing_bytes: int, timeout_ms: float) -> bool:
        """Whether so many bytes were appended to these partitions; else one was deleted, the broker stops, time is up.

        Not every reader may have them: those of an open transaction are not for readers of committed records.
        """
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        fetch = DelayedFetch(tuple(dict.fromkeys(partitions)), missing_bytes, woken)
        timer = loop.call_later(timeout_ms / 1000, fetch.wake)
        # Parked under every partition: any of them may bring the bytes that are missing.
        for key in fetch.partitions:
            # A dictionary instead of a set: fetches are woken in the order in which they were parked, and each run does
            # the same.
            self.parked.setdefault(key, {})[fetch] = None
        try:
            # The future may also be cancelled, when the connection is lost: `finally` takes the fetch out in every
            # case.
            return await woken
        finally:
            timer.cancel()
            for key in fetch.partitions:
                waiting = self.parked[key]
                del waiting[fetch]
                if not waiting:
                    del self.parked[key]

    @property
    def parked_count(self) -> int:
        """Number of parked fetches."""
        return len({fetch for waiting in self.parked.values() for fetch in waiting})

    def appended(self, topic: str, partition: int, size: int) -> None:
        waiting = self.parked.get((topic, partition))
        if waiting:
            # A copy, because a woken fetch may be taken out of the dictionary before the loop ends.
            for fetch in tuple(waiting):
                fetch.add_bytes(size)

    def partition_removed(self, topic: str, partition: int) -> None:
        for fetch in tuple(self.parked.get((topic, partition), ())):
            fetch.wake()

    def wake_all(self) -> None:
        for waiting in tuple(self.parked.values()):
            for fetch in tuple(waiting):
                fetch.wake()
