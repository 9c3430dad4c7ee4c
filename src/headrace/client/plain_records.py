"""Producing and consuming plain Python records without Arrow: for consoles, tools and tests, not for high volumes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.client.admin import Admin
from headrace.client.fetch_loop import FetchLoop, IsolationLevel
from headrace.client.network_client import NetworkClient
from headrace.client.sender import Sender
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import NO_TIMESTAMP, PlainRecord, decode_records, encode_batch

__all__ = ["PlainRecord", "consume", "produce"]

TopicPartition = tuple[str, int]
# A batch is compressed and sent as one piece. The overhead stands for the varints and Python objects of a record, so
# that millions of empty records do not become one batch.
_BATCH_BYTES = 256 * 1024
_OVERHEAD_BYTES = 32


def produce(
    client: NetworkClient,
    topic: str,
    records: Iterable[PlainRecord],
    *,
    partition: int | None = None,
    compression: str = "none",
    enable_idempotence: bool | None = None,
) -> dict[TopicPartition, int]:
    """Write records and wait until they are stored.

    Args:
        client: A client of the cluster.
        topic: The topic.
        records: Those without a timestamp get the present time.
        partition: None: by key; records without a key alternate.
        compression: none, gzip, snappy, lz4 or zstd.
        enable_idempotence: None: if the broker supports it.

    Returns:
        The last offset of each partition.

    Raises:
        BrokerError: The broker refused records.
        CannotConnect: No broker is reachable.
    """
    # Once per call: partitions that are added meanwhile get records with the next one.
    count = len(client.known_topics([topic]).topics[topic].partitions)
    queue = Sender(client, enable_idempotence=enable_idempotence)
    open_batches: dict[int, list[PlainRecord]] = {}
    sizes: dict[int, int] = {}
    next_unkeyed = 0
    for record in records:
        if partition is not None:
            target = partition
        elif record.key is not None:
            target = partition_for_key(record.key, count)
        else:
            # Round robin, record by record. Kafka's default producer keeps to one partition until a batch is full
            # (KIP-480), which is for throughput; here a few records should show up everywhere.
            target, next_unkeyed = next_unkeyed, (next_unkeyed + 1) % count
        stamped = (
            replace(record, timestamp_ms=int(time.time() * 1000)) if record.timestamp_ms == NO_TIMESTAMP else record
        )
        open_batches.setdefault(target, []).append(stamped)
        sizes[target] = sizes.get(target, 0) + len(record.key or b"") + len(record.value or b"") + _OVERHEAD_BYTES
        # Full batches are sent while records still come; the rest follows at the end.
        if sizes[target] >= _BATCH_BYTES:
            queue.add(topic, target, encode_batch(open_batches.pop(target), compression=compression))
            sizes[target] = 0
    for target in sorted(open_batches):
        queue.add(topic, target, encode_batch(open_batches[target], compression=compression))
    return queue.flush()


def consume(
    client: NetworkClient,
    positions: Mapping[TopicPartition, int],
    until: Mapping[TopicPartition, int] | None = None,
    *,
    isolation_level: IsolationLevel = "read_committed",
) -> Iterator[tuple[str, int, PlainRecord]]:
    """Yield (topic, partition, record) from these offsets up to `until` (exclusive; None: the ends at the time of the
    call).
    """
    # The ends of the isolation level: a reader of committed records stops at the last stable offset, not at records of
    # a transaction that is still open.
    if until is None:
        ends = Admin(client).list_offsets(dict.fromkeys(positions, "latest"), isolation_level=isolation_level)
        until = {key: end.offset for key, end in ends.items()}
    ranges = {key: (position, until[key]) for key, position in positions.items()}
    for fetched in FetchLoop(client, ranges, isolation_level=isolation_level):
        records = decode_records(
            fetched.data, start_offset=fetched.start_offset, aborted_transactions=fetched.aborted_transactions
        )
        for record in records:
            # A batch is returned whole; the range may end inside it.
            if record.offset >= fetched.next_offset:
                break
            yield fetched.topic, fetched.partition, record
