"""The metadata hash of a group: XXH3-64 over the topics it needs, bit for bit Kafka's (KIP-1101; no racks here)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

import xxhash

from headrace.coordinator.metadata_image import TopicImage

__all__ = ["group_hash", "topic_hash"]

_MAGIC = b"\x00"
_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_NO_TOPICS = 0


@lru_cache(maxsize=4096)
def topic_hash(topic: TopicImage) -> int:
    """Signed 64 bits over id, name and partitions; a changed count or a topic created anew is another hash."""
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
    """Signed 64 bits over the topics that exist, in the order of their names; 0 when there is none."""
    hashes = [topic_hash(topic) for topic in sorted(topics, key=lambda topic: topic.name)]
    if not hashes:
        return _NO_TOPICS
    return _signed(xxhash.xxh3_64_intdigest(b"".join(_INT64.pack(value) for value in hashes)))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
