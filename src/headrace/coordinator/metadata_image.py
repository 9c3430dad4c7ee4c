"""Topics of the cluster as the rules see them, and the metadata hash of a group.

Changes arrive as a new image, never in place. The metadata hash is XXH3-64 over the topics that a group reads, equal to
Kafka's bit for bit (KIP-1101, `coordinator.group.Utils.computeGroupHash`; racks are not part of it here).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

import xxhash

__all__ = ["group_hash", "topic_hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRetention:
    """The effective settings that decide which records a topic removes.

    `cleanup_policy` holds the parts of `cleanup.policy`; `retention_ms` and `retention_bytes` are -1 for no limit.
    """

    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic as it stands. `partitions` is the count; `retention` is None where the source of the image has no
    topic settings, which are not checked then."""

    name: str
    topic_id: UUID
    partitions: int
    retention: TopicRetention | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """All topics by name. `version` rises with each change of the cluster's metadata."""

    version: int = 0
    topics: Mapping[str, TopicImage] = field(default_factory=dict)


_MAGIC = b"\x00"
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_NO_TOPICS = 0


# A heartbeat after a metadata change hashes all topics of its group, most of which did not change.
@lru_cache(maxsize=4096)
def topic_hash(topic: TopicImage) -> int:
    """Hash id, name and partitions to 64 signed bits. Another count or a new topic of that name changes the hash."""
    # Layout of Kafka's Utils.computeTopicHash (KIP-1101), little-endian: magic byte 0; the id as
    # two longs; the name as UTF-16 code units, followed by their number; the partition count; then each partition with
    # its racks. Brokers without racks hash the partition number alone, and so do we.
    high, low = struct.unpack(">qq", topic.topic_id.bytes)
    name = topic.name.encode("utf-16-le", "surrogatepass")
    content = bytearray(_MAGIC)
    content += _INT64.pack(high) + _INT64.pack(low)
    content += name + _INT32.pack(len(name) // 2)
    content += _INT32.pack(topic.partitions)
    for index in range(topic.partitions):
        content += _INT32.pack(index)
    return _signed(xxhash.xxh3_64_intdigest(bytes(content)))


def group_hash(topics: Iterable[TopicImage]) -> int:
    """Hash the existing topics, in the order of their names, to 64 signed bits; 0 without topics."""
    hashes = [topic_hash(topic) for topic in sorted(topics, key=lambda topic: topic.name)]
    if not hashes:
        return _NO_TOPICS
    return _signed(xxhash.xxh3_64_intdigest(b"".join(_INT64.pack(value) for value in hashes)))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
