"""User data of Kafka Streams' own assignor (`stream`), versions 1 to 11 of its layout. Pure.

Every release since 0.10.0 is covered: SubscriptionInfo and AssignmentInfo of Kafka 4.3.1 still read and write all
versions. They are not part of Kafka's public protocol; the tests compare with bytes that Kafka's classes wrote.
"""

from __future__ import annotations

import struct
from uuid import UUID

from headrace.assignors.consumer_protocol import MalformedUserData, Reader

__all__ = ["STREAMS_ASSIGNOR", "decode_streams_assignment", "decode_streams_subscription"]

STREAMS_ASSIGNOR = "stream"
LATEST_VERSION = 11
Decoded = dict[str, object]
Partitions = dict[str, list[int]]

# A task is the running active one of its member if its offset sum is -2 (Task.LATEST_OFFSET); -3 means unknown.
_LATEST_OFFSET, _UNKNOWN_OFFSET = -2, -3


def decode_streams_subscription(data: bytes) -> Decoded | None:
    """Decode SubscriptionInfo: what a thread reports to the leader. Return None for other bytes."""
    try:
        return _subscription(Reader(data))
    except MalformedUserData:
        return None


def decode_streams_assignment(data: bytes) -> Decoded | None:
    """Decode AssignmentInfo: what the leader sends to a thread. Return None for other bytes."""
    try:
        return _assignment(Reader(data))
    except MalformedUserData:
        return None


def _subscription(reader: Reader) -> Decoded:
    version = _version(reader)
    found: Decoded = {"version": version}
    if version >= 3:
        found["latest_supported_version"] = reader.int32()
    found["process_id"] = str(UUID(bytes=reader.take(16)))
    if version <= 6:
        found["previous_active"] = [_task(reader) for _ in range(reader.count(8))]
        found["previous_standby"] = [_task(reader) for _ in range(reader.count(8))]
    if version >= 2:
        found["endpoint"] = _text(reader.nullable_bytes() or b"")
    if version >= 7:
        found["offset_sums"] = _flat_sums(reader) if version >= 10 else _nested_sums(reader)
    if version >= 8:
        found["unique_field"] = struct.unpack(">b", reader.take(1))[0]
    if version >= 9:
        found["error_code"] = reader.int32()
    if version >= 11:
        tags = range(reader.count(8))
        found["client_tags"] = {
            _text(reader.nullable_bytes() or b""): _text(reader.nullable_bytes() or b"") for _ in tags
        }
    reader.check_end()
    return found


def _nested_sums(reader: Reader) -> dict[str, object]:
    sums: dict[str, object] = {}
    for _ in range(reader.count(8)):
        group = reader.int32()
        for _ in range(reader.count(12)):
            partition = reader.int32()
            sums[f"{group}_{partition}"] = _offset_sum(reader)
    return sums


def _flat_sums(reader: Reader) -> dict[str, object]:
    sums: dict[str, object] = {}
    for _ in range(reader.count(18)):
        group, partition, offset_sum = reader.int32(), reader.int32(), _offset_sum(reader)
        topology = reader.nullable_string()
        sums[_task_name(group, partition, topology or "")] = offset_sum
    return sums


def _offset_sum(reader: Reader) -> object:
    number = reader.int64()
    return {_LATEST_OFFSET: "running", _UNKNOWN_OFFSET: "unknown"}.get(number, number)


def _assignment(reader: Reader) -> Decoded:
    version = _version(reader)
    found: Decoded = {"version": version}
    if version >= 3:
        found["commonly_supported_version"] = reader.int32()
    named = version >= 10
    found["active"] = [_task(reader, named=named) for _ in range(reader.count(8))]
    found["standby"] = {_task(reader, named=named): _partitions(reader) for _ in range(reader.count(12))}
    if 2 <= version <= 4:
        found["partitions_by_host"] = {_host(reader): _partitions(reader) for _ in range(reader.count(10))}
    elif version >= 5:
        topics = _dictionary(reader)
        found["partitions_by_host"] = _numbered_hosts(reader, topics)
        if version >= 6:
            found["standby_partitions_by_host"] = _numbered_hosts(reader, topics)
    if version >= 4:
        found["error_code"] = reader.int32()
    if version >= 7:
        found["next_rebalance_ms"] = reader.int64()
    reader.check_end()
    return found


def _dictionary(reader: Reader) -> dict[int, str]:
    return {reader.int32(): reader.string() for _ in range(reader.count(6))}


def _numbered_hosts(reader: Reader, topics: dict[int, str]) -> dict[str, Partitions]:
    return {_host(reader): _numbered_partitions(reader, topics) for _ in range(reader.count(10))}


def _numbered_partitions(reader: Reader, topics: dict[int, str]) -> Partitions:
    found: Partitions = {}
    for _ in range(reader.count(8)):
        number = reader.int32()
        if number not in topics:
            raise MalformedUserData(f"topic {number} is not in the dictionary")
        found.setdefault(topics[number], []).append(reader.int32())
    return found


def _partitions(reader: Reader) -> Partitions:
    found: Partitions = {}
    for _ in range(reader.count(6)):
        topic = reader.string()
        found.setdefault(topic, []).append(reader.int32())
    return found


def _host(reader: Reader) -> str:
    return f"{reader.string()}:{reader.int32()}"


def _task(reader: Reader, *, named: bool = False) -> str:
    group, partition = reader.int32(), reader.int32()
    # A named topology is written with its number of characters, in UTF-16 (DataOutputStream.writeChars).
    topology = reader.take(2 * reader.count(2)).decode("utf-16-be", "replace") if named else ""
    return _task_name(group, partition, topology)


def _task_name(group: int, partition: int, topology: str) -> str:
    return f"{topology}__{group}_{partition}" if topology else f"{group}_{partition}"


def _version(reader: Reader) -> int:
    version = reader.int32()
    if not 1 <= version <= LATEST_VERSION:
        raise MalformedUserData(f"version {version} of Kafka Streams' user data is unknown")
    return version


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
