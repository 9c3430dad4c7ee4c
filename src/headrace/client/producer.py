"""Producing from Arrow columns (extra "client": pyarrow, numba): partitions by key as in Kafka, batches per partition.

Idempotent if the broker supports it. A producer requests one producer id; keep it for many batches, because brokers
remember each id for a day.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from headrace.client.network_client import NetworkClient
from headrace.client.sender import ProducerIdentity, Sender
from headrace.protocol.arrow_batches import encode_from_arrow, murmur2_partitions
from headrace.protocol.arrow_encoding import HeaderColumns, header_columns

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from headrace.array_types import Int32Array, Int64Array, IntegerArray

__all__ = ["Producer", "ProducerIdentity", "RecordEncoder"]

TopicPartition = tuple[str, int]


class RecordEncoder(ABC):
    """Encoding of Arrow columns as record batches of the partitions that Kafka's own partitioner chooses.

    A subclass stores the batches. Mutable: where rows without a key go next.
    """

    def __init__(self, *, compression: str = "none", max_batch_bytes: int = 1_000_000) -> None:
        """Args:
        compression: none, gzip, snappy, lz4 or zstd.
        max_batch_bytes: The most bytes of a record batch before compression.
        """
        self._compression = compression
        self._max_batch_bytes = max_batch_bytes
        # Where the next rows without keys begin.
        self._spread = 0

    @abstractmethod
    def _partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises BrokerError: `topic-missing`."""

    @abstractmethod
    def _add_batch(self, topic: str, partition: int, batch: bytes) -> None:
        """Store one record batch."""

    def send(
        self,
        topic: str,
        partition: int | None,
        keys: pa.Array | None,
        values: pa.Array,
        *,
        timestamps_ms: int | pa.Array | Int64Array | None = None,
        headers: pa.Array | None = None,
    ) -> None:
        """Queue the rows of binary (or string) columns; a null value is a tombstone.

        Args:
            topic: The topic.
            partition: None: by murmur2 of the key; rows without a key are spread evenly.
            keys: None: no keys.
            values: The values.
            timestamps_ms: One number, an int64 column, or None for the present time.
            headers: list<struct<key, value>>.

        Raises:
            BrokerError: `topic-missing`, or the error of an earlier batch.
        """
        if not len(values):
            return
        when = int(time.time() * 1000) if timestamps_ms is None else timestamps_ms
        if partition is not None:
            self._encode(topic, partition, keys, values, when, headers, None)
            return
        # Rows are grouped by partition with one stable sort, so that each partition's rows keep their order and are
        # encoded with one call.
        targets = self._targets(topic, keys, len(values))
        # NumPy sorts 16-bit integers with a radix sort, about ten times as fast as its merge sort for wider ones.
        order = np.argsort(targets.astype(np.int16) if targets.max() < 1 << 15 else targets, kind="stable")
        found, starts = np.unique(targets[order], return_index=True)
        prepared = header_columns(headers, len(values))
        for target, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            self._encode(topic, target, keys, values, when, prepared, rows)

    def _encode(
        self,
        topic: str,
        partition: int,
        keys: pa.Array | None,
        values: pa.Array,
        when: int | pa.Array | Int64Array,
        headers: pa.Array | HeaderColumns | None,
        rows: IntegerArray | None,
    ) -> None:
        batches = encode_from_arrow(
            keys,
            values,
            timestamps_ms=when,
            headers=headers,
            compression=self._compression,
            max_batch_bytes=self._max_batch_bytes,
            indices=rows,
        )
        for batch in batches:
            self._add_batch(topic, partition, batch)

    def _targets(self, topic: str, keys: pa.Array | None, rows: int) -> Int32Array:
        partitions = self._partition_count(topic)
        if keys is None:
            return self._spread_rows(rows, partitions)
        # Kafka's default partitioner: murmur2 of the key's bytes, so keys of other clients are in the same partitions.
        # -1 stands for rows without a key.
        targets = murmur2_partitions(keys, partitions)
        unkeyed = np.flatnonzero(targets < 0)
        if len(unkeyed):
            targets[unkeyed] = self._spread_rows(len(unkeyed), partitions)
        return targets

    def _spread_rows(self, rows: int, partitions: int) -> Int32Array:
        """Assign rows to partitions in even blocks, starting at another partition each time, so that small sends spread
        too.
        """
        first = self._spread
        self._spread = (first + 1) % partitions
        return ((np.arange(rows, dtype=np.int64) * partitions // rows + first) % partitions).astype(np.int32)


class Producer(RecordEncoder):
    """Producer of Arrow columns. Errors are raised by the next `send` or by `flush`. A context manager that flushes."""

    def __init__(
        self,
        client: NetworkClient,
        *,
        compression: str = "none",
        acks: int = -1,
        enable_idempotence: bool | None = None,
        identity: ProducerIdentity | None = None,
        max_batch_bytes: int = 1_000_000,
        tracer: Tracer | None = None,
        **queue: Any,
    ) -> None:
        """Args:
        client: A client of the cluster.
        compression: none, gzip, snappy, lz4 or zstd.
        acks: -1 (all) or 1.
        enable_idempotence: None: if the broker supports it.
        identity: A producer id obtained elsewhere, as for transactions.
        max_batch_bytes: The most bytes of a record batch before compression.
        tracer: OpenTelemetry tracer of the program: each send is a span, and if it is sampled, its records carry the
            trace context in their headers. None: no traces.
        queue: Further arguments of `Sender`.
        """
        super().__init__(compression=compression, max_batch_bytes=max_batch_bytes)
        self._tracer = tracer
        self._client = client
        self._queue = Sender(client, acks=acks, enable_idempotence=enable_idempotence, identity=identity, **queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # After an error the buffered rows are dropped: a flush would raise a second error over the first.
        if kind is None:
            self.flush()

    def send(
        self,
        topic: str,
        partition: int | None,
        keys: pa.Array | None,
        values: pa.Array,
        *,
        timestamps_ms: int | pa.Array | Int64Array | None = None,
        headers: pa.Array | None = None,
    ) -> None:
        """Queue the rows of binary (or string) columns, in a span where the producer has a tracer.

        The span is a child of the current one. Rows whose headers have a `traceparent` keep it.
        See `RecordEncoder.send`.
        """
        if self._tracer is None or not len(values):
            super().send(topic, partition, keys, values, timestamps_ms=timestamps_ms, headers=headers)
            return
        # Imported here: a producer without a tracer needs no OpenTelemetry.
        from headrace.client.tracing import send_span
        from headrace.protocol.trace_context import headers_with_one_context

        with send_span(self._tracer, topic, partition, len(values)) as context:
            if context is not None:
                headers = headers_with_one_context(context, len(values), headers)
            super().send(topic, partition, keys, values, timestamps_ms=timestamps_ms, headers=headers)

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id in use; None without idempotence or before the first record."""
        return self._queue.identity

    def next_sequences(self) -> dict[TopicPartition, int]:
        """Return the sequence numbers at which another writer with the same identity continues."""
        return self._queue.next_sequences()

    def flush(self) -> dict[TopicPartition, int]:
        """Wait until everything is stored; return the last offset of each partition written since the last flush."""
        return self._queue.flush()

    def _partition_count(self, topic: str) -> int:
        return len(self._client.known_topics([topic]).topics[topic].partitions)

    def _add_batch(self, topic: str, partition: int, batch: bytes) -> None:
        self._queue.add(topic, partition, batch)
