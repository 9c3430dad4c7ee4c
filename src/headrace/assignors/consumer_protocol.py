"""The bytes inside JoinGroup and SyncGroup: ConsumerProtocolSubscription and ConsumerProtocolAssignment, v0 to v3.

Written as Kafka's Java client writes them, byte for byte: newest version, topics sorted, owned partitions sorted and
grouped, assigned partitions grouped in the order in which topics first appear. Read from anybody: newer versions are
read as v3, what follows is passed over, lengths are checked before they are believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.assignors.assignor import NO_GENERATION, Assignment, Subscription, TopicPartition

__all__ = [
    "HIGHEST_VERSION",
    "MalformedUserData",
    "Reader",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_partitions",
    "encode_string",
    "encode_subscription",
]

HIGHEST_VERSION = 3


class MalformedUserData(ValueError):
    """Bytes of another member that cannot be read; the message says where."""


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """With its version in front. `instance_id` is not in it: it travels in JoinGroup itself."""
    topics = sorted(subscription.topics)
    parts = [struct.pack(">hi", version, len(topics)), *map(encode_string, topics), _bytes(subscription.user_data)]
    if version >= 1:
        parts.append(encode_partitions(sorted(subscription.owned_partitions)))
    if version >= 2:
        parts.append(struct.pack(">i", subscription.generation_id))
    if version >= 3:
        parts.append(struct.pack(">h", -1) if subscription.rack_id is None else encode_string(subscription.rack_id))
    return b"".join(parts)


def decode_subscription(data: bytes, *, instance_id: str | None = None) -> Subscription:
    """Raises MalformedUserData."""
    reader = Reader(data)
    version = reader.version()
    topics = tuple(reader.string() for _ in range(reader.count(2)))
    user_data = reader.nullable_bytes()
    return Subscription(
        topics=topics,
        user_data=user_data,
        owned_partitions=reader.partitions() if version >= 1 else (),
        generation_id=reader.int32() if version >= 2 else NO_GENERATION,
        rack_id=reader.nullable_string() if version >= 3 else None,
        instance_id=instance_id,
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """With its version in front."""
    return struct.pack(">h", version) + encode_partitions(assignment.partitions) + _bytes(assignment.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """Empty bytes are the empty assignment: so the coordinator answers whom the leader left out."""
    if not data:
        return Assignment()
    reader = Reader(data)
    reader.version()
    partitions = reader.partitions()
    return Assignment(partitions=partitions, user_data=reader.nullable_bytes())


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """As an array of (topic, array of partitions), topics in the order of their first partition."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    parts = [struct.pack(">i", len(grouped))]
    for topic, numbers in grouped.items():
        parts += [encode_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


class Reader:
    """Mutable: a position in bytes that others wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def version(self) -> int:
        """The version in front, 0 to 3: what is newer adds fields at the end."""
        version = self._int16()
        if version < 0:
            raise MalformedUserData(f"version {version} is below 0")
        return min(version, HIGHEST_VERSION)

    def int32(self) -> int:
        (number,) = struct.unpack(">i", self.take(4))
        return int(number)

    def count(self, entry_bytes: int) -> int:
        """The length of an array whose entries take at least so many bytes each."""
        number = self.int32()
        if number < 0 or number * entry_bytes > self.left:
            raise MalformedUserData(f"an array of {number} entries at byte {self._at} does not fit")
        return number

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedUserData(f"a null string at byte {self._at}")
        return text

    def nullable_string(self) -> str | None:
        length = self._int16()
        if length < 0:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise MalformedUserData(f"a string before byte {self._at} is no UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self.take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """An array of (topic, array of partitions)."""
        found: list[TopicPartition] = []
        for _ in range(self.count(6)):
            topic = self.string()
            found.extend((topic, self.int32()) for _ in range(self.count(4)))
        return tuple(found)

    def _int16(self) -> int:
        (number,) = struct.unpack(">h", self.take(2))
        return int(number)

    def take(self, length: int) -> bytes:
        """So many bytes as they are."""
        if length > self.left:
            raise MalformedUserData(f"{length} bytes at byte {self._at}, and only {self.left} are left")
        taken = self._data[self._at : self._at + length]
        self._at += length
        return bytes(taken)


def encode_string(text: str) -> bytes:
    """Its length in two bytes, then UTF-8."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
