"""Records of `__transaction_state` ↔ Kafka's own bytes: TransactionLogKey version 0, TransactionLogValue 0 and 1.

Facts: `common/message/TransactionLog*.json` in kafka-transaction-coordinator 4.3.1. Kafka writes value version 0 while
the feature `transaction.version` is at 0, else version 1, which is flexible. What version 0 has no field for (previous
and next producer id, the client's transaction version) comes back with its default. Partitions are written sorted;
Kafka's order is that of a hash table.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from headrace.coordinator.records.codec import (
    Cursor,
    write_compact_array,
    write_compact_string,
    write_int8,
    write_int16,
    write_int32,
    write_int64,
    write_string,
    write_tags,
)
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.transactions.transitions import NO_PRODUCER_ID, TransactionLogKey, TransactionLogValue

__all__ = [
    "by_topic",
    "decode",
    "encode_key",
    "encode_value",
    "value_version",
]

EMPTY_STATUS = 0
_KEY_TYPE = 0
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_TRANSACTION_VERSION = 0, 1, 2

TopicPartitions = tuple[str, tuple[int, ...]]


def value_version(transaction_version: int) -> int:
    """Return the version of values to write at this level of the feature."""
    return 1 if transaction_version >= 1 else 0


def encode_key(key: TransactionLogKey) -> bytes:
    """Return Kafka's bytes of a key."""
    out = bytearray()
    write_int16(out, _KEY_TYPE)
    write_string(out, key.transactional_id)
    return bytes(out)


def encode_value(value: TransactionLogValue, version: int) -> bytes:
    """Return Kafka's bytes of a value, with its version in front."""
    out = bytearray()
    write_int16(out, version)
    write_int64(out, value.producer_id)
    write_int16(out, value.producer_epoch)
    write_int32(out, value.transaction_timeout_ms)
    write_int8(out, value.transaction_status)
    _write_partitions(out, value, flexible=version >= 1)
    write_int64(out, value.transaction_last_update_timestamp_ms)
    write_int64(out, value.transaction_start_timestamp_ms)
    if version >= 1:
        write_tags(out, *_tags(value))
    return bytes(out)


def decode(key_bytes: bytes, value_bytes: bytes | None) -> CoordinatorRecord | None:
    """Decode a record; None for an unknown type. Raises CorruptRecord."""
    cursor = Cursor(key_bytes)
    if cursor.int16() != _KEY_TYPE:
        return None
    key = TransactionLogKey(transactional_id=cursor.string())
    if value_bytes is None:
        return CoordinatorRecord(key=key, value=None)
    body = Cursor(value_bytes)
    version = body.int16()
    # A version that is not known must stop the load: the state of a transaction cannot be guessed.
    if version not in (0, 1):
        raise CorruptRecord(f"version {version} of TransactionLogValue is unknown, at most 1 is")
    return CoordinatorRecord(key=key, value=_read_value(body, flexible=version >= 1))


def _write_partitions(out: bytearray, value: TransactionLogValue, *, flexible: bool) -> None:
    # Null, not an empty list, for a transaction that has not begun: Kafka's `TransactionLog.valueToBytes`.
    topics = by_topic(value.transaction_partitions)
    if value.transaction_status == EMPTY_STATUS:
        write_int8(out, 0) if flexible else write_int32(out, -1)
    elif flexible:
        write_compact_array(out, topics, _write_topic)
    else:
        write_int32(out, len(topics))
        for topic, partitions in topics:
            write_string(out, topic)
            write_int32(out, len(partitions))
            for partition in partitions:
                write_int32(out, partition)


def by_topic(partitions: Iterable[tuple[str, int]]) -> tuple[TopicPartitions, ...]:
    """Return the partitions by topic, sorted."""
    grouped = groupby(sorted(partitions), key=lambda each: each[0])
    return tuple((topic, tuple(partition for _, partition in pairs)) for topic, pairs in grouped)


def _write_topic(out: bytearray, topic: TopicPartitions) -> None:
    write_compact_string(out, topic[0])
    write_compact_array(out, topic[1], write_int32)
    write_tags(out)


def _tags(value: TransactionLogValue) -> list[tuple[int, bytes]]:
    """Return the tagged fields that are not at their defaults."""
    tags: list[tuple[int, bytes]] = []
    for tag, producer_id in (
        (_PREVIOUS_PRODUCER_ID, value.previous_producer_id),
        (_NEXT_PRODUCER_ID, value.next_producer_id),
    ):
        # Tags at their defaults are left out (KIP-482), so a record without them is as short as version 0.
        if producer_id != NO_PRODUCER_ID:
            tags.append((tag, producer_id.to_bytes(8, "big", signed=True)))
    if value.client_transaction_version != 0:
        tags.append((_CLIENT_TRANSACTION_VERSION, value.client_transaction_version.to_bytes(2, "big", signed=True)))
    return tags


def _read_value(body: Cursor, *, flexible: bool) -> TransactionLogValue:
    producer_id, producer_epoch = body.int64(), body.int16()
    timeout_ms, status = body.int32(), body.int8()
    topics = (body.nullable_compact_array(_read_flexible_topic) or ()) if flexible else _read_topics(body)
    last_update_ms, start_ms = body.int64(), body.int64()
    tags = body.tags() if flexible else {}
    previous, following = tags.get(_PREVIOUS_PRODUCER_ID), tags.get(_NEXT_PRODUCER_ID)
    client = tags.get(_CLIENT_TRANSACTION_VERSION)
    return TransactionLogValue(
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID if previous is None else previous.int64(),
        next_producer_id=NO_PRODUCER_ID if following is None else following.int64(),
        producer_epoch=producer_epoch,
        transaction_timeout_ms=timeout_ms,
        transaction_status=status,
        transaction_partitions=frozenset((topic, each) for topic, partitions in topics for each in partitions),
        transaction_last_update_timestamp_ms=last_update_ms,
        transaction_start_timestamp_ms=start_ms,
        client_transaction_version=0 if client is None else client.int16(),
    )


def _read_topics(body: Cursor) -> tuple[TopicPartitions, ...]:
    """The older form, in which -1 is null."""
    count = body.int32()
    if count > body.remaining:  # bounds the work of a corrupt count
        raise CorruptRecord(f"an array of {count} topics in {body.remaining} bytes")
    return tuple((body.string(), body.array(Cursor.int32)) for _ in range(max(count, 0)))


def _read_flexible_topic(cursor: Cursor) -> TopicPartitions:
    topic = cursor.compact_string(), cursor.compact_array(Cursor.int32)
    cursor.tags()
    return topic
