"""The bytes inside JoinGroup and SyncGroup: ConsumerProtocolSubscription and ConsumerProtocolAssignment, v0 to v3.

Encoded byte for byte as by Kafka's Java client: newest version, topics sorted, owned partitions sorted and grouped,
assigned partitions grouped in the order in which topics first appear. Decoded from any client: newer versions are read
as v3 with unknown fields skipped, and lengths are checked before they are used.
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
    """Bytes of another member cannot be decoded; the message has the position."""


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Encode a subscription, version first. `instance_id` is left out: it is a field of JoinGroup."""
    # Every version has the fields of the one before it, in the same order, and adds its own at the end: owned
    # partitions (v1, KIP-429), generation (v2, KIP-792), rack (v3, KIP-881). An old leader reads what it knows and
    # ignores the rest.
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
    """Decode a subscription; `instance_id` is that of JoinGroup. Raises MalformedUserData."""
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
    """Encode an assignment, version first."""
    return struct.pack(">h", version) + encode_partitions(assignment.partitions) + _bytes(assignment.user_data)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Empty bytes, which members get that the leader left out, are an empty assignment.

    Raises MalformedUserData.
    """
    if not data:
        return Assignment()
    reader = Reader(data)
    # All versions of an assignment have the same fields; the number is checked and not needed.
    reader.version()
    partitions = reader.partitions()
    return Assignment(partitions=partitions, user_data=reader.nullable_bytes())


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode an array of (topic, array of partitions), topics in the order of their first partition."""
    # A dict keeps the order of first insertion, which is the order of Kafka's encoder for assignments.
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    parts = [struct.pack(">i", len(grouped))]
    for topic, numbers in grouped.items():
        parts += [encode_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


class Reader:
    """Decoder of untrusted bytes. Mutable; each method reads at the current position and raises MalformedUserData."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that were not read."""
        return len(self._data) - self._at

    def version(self) -> int:
        """Read the version; newer ones count as 3, since they only add fields at the end."""
        version = self.int16()
        if version < 0:
            raise MalformedUserData(f"version {version} is below 0")
        return min(version, HIGHEST_VERSION)

    def int16(self) -> int:
        """Read an int16."""
        (number,) = struct.unpack(">h", self.take(2))
        return int(number)

    def int32(self) -> int:
        """Read an int32."""
        (number,) = struct.unpack(">i", self.take(4))
        return int(number)

    def int64(self) -> int:
        """Read an int64."""
        (number,) = struct.unpack(">q", self.take(8))
        return int(number)

    def count(self, entry_bytes: int) -> int:
        """Read the length of an array whose entries take at least `entry_bytes` each."""
        number = self.int32()
        # Checked before any entry is read: a length of two billion in a short message must not reserve memory or keep
        # the coordinator busy.
        if number < 0 or number * entry_bytes > self.left:
            raise MalformedUserData(f"an array of {number} entries at byte {self._at} does not fit")
        return number

    def string(self) -> str:
        """Read a string."""
        text = self.nullable_string()
        if text is None:
            raise MalformedUserData(f"a null string at byte {self._at}")
        return text

    def nullable_string(self) -> str | None:
        """Read a nullable string."""
        length = self.int16()
        if length < 0:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise MalformedUserData(f"a string before byte {self._at} is not UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        """Read nullable bytes."""
        length = self.int32()
        return None if length < 0 else self.take(length)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Read an array of (topic, array of partitions)."""
        found: list[TopicPartition] = []
        for _ in range(self.count(6)):
            topic = self.string()
            found.extend((topic, self.int32()) for _ in range(self.count(4)))
        return tuple(found)

    def check_end(self) -> None:
        """Check that everything was read. Raises MalformedUserData."""
        if self.left:
            raise MalformedUserData(f"{self.left} bytes are left")

    def peek(self, length: int) -> bytes:
        """Return up to `length` bytes without reading them."""
        return bytes(self._data[self._at : self._at + length])

    def take(self, length: int) -> bytes:
        """Read `length` bytes."""
        if length > self.left:
            raise MalformedUserData(f"{length} bytes at byte {self._at}, and only {self.left} are left")
        taken = self._data[self._at : self._at + length]
        self._at += length
        return bytes(taken)


def encode_string(text: str) -> bytes:
    """Encode a string: its length in two bytes, then UTF-8."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
