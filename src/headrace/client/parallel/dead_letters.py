"""Records that a handler failed on, in a dead-letter topic: unchanged, with headers that say where from and why."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.client.network_client import NetworkClient
from headrace.client.parallel.work import Failure, Work
from headrace.client.sender import Sender
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["DeadLetters"]

MOST_REASON_CHARACTERS = 1_000
CHECK_TIMEOUT_MS = 1_000


class DeadLetters:
    """Mutable: a client and its queue, made with the first letter; used from any thread, one at a time."""

    def __init__(self, topic: str, new_client: Callable[[], NetworkClient]) -> None:
        self.topic = topic
        self._new_client = new_client
        self._client: NetworkClient | None = None
        self._queue: Sender | None = None
        self._lock = threading.Lock()
        self._unkeyed = 0

    def check(self) -> None:
        """Raises BrokerError `topic-missing`, CannotConnect: at the start rather than when the first record fails."""
        with self._lock:
            self._connected().known_topics([self.topic], timeout_ms=CHECK_TIMEOUT_MS)

    def write(self, work: Work, failure: Failure) -> None:
        """Returns when they are stored. Raises BrokerError, CannotConnect."""
        with self._lock:
            client = self._connected()
            if self._queue is None:
                self._queue = Sender(client)
            count = len(client.known_topics([self.topic]).topics[self.topic].partitions)
            try:
                for record in work.records:
                    letter = PlainRecord(
                        key=record.key,
                        value=record.value,
                        timestamp_ms=record.timestamp_ms,
                        headers=(*record.headers, *_headers(work, record.offset, failure)),
                    )
                    self._queue.add(self.topic, self._target(record.key, count), encode_batch([letter]))
                self._queue.flush()
            except BaseException:
                self._queue = None
                raise

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._queue = None

    def _connected(self) -> NetworkClient:
        if self._client is None:
            self._client = self._new_client()
        return self._client

    def _target(self, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_for_key(key, count)
        self._unkeyed += 1
        return self._unkeyed % count


def _headers(work: Work, offset: int, failure: Failure) -> tuple[tuple[str, bytes], ...]:
    """The names that applications' dead letters have, and how often it was tried."""
    return (
        ("headrace.topic", work.partition.topic.encode()),
        ("headrace.partition", b"%d" % work.partition.partition),
        ("headrace.offset", b"%d" % offset),
        ("headrace.reason", failure.why[:MOST_REASON_CHARACTERS].encode()),
        ("headrace.attempts", b"%d" % work.attempt),
    )
