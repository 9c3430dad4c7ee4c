"""Which partition a key goes to: Kafka's own murmur2, so that our producers and Kafka's agree key by key."""

from __future__ import annotations

__all__ = ["murmur2", "partition_for_key"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFF_FFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2 of 32 bits with Kafka's seed, as an unsigned number."""
    length = len(data)
    digest = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        word = (word ^ word >> _R) * _M & _MASK
        digest = (digest * _M & _MASK) ^ word
    if whole < length:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    digest = (digest ^ digest >> 13) * _M & _MASK
    return digest ^ digest >> 15
