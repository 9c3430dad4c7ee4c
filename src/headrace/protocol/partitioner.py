"""Partition of a key, and of a group: Kafka's own hashes, so that every client and broker finds the same partition.

Keys are hashed by murmur2 (`BuiltInPartitioner`, `Utils.murmur2`). Group ids and transactional ids are hashed by Java's
`String.hashCode`, modulo the partitions of `__consumer_offsets` or `__transaction_state`
(`GroupMetadataManager.partitionFor`).
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["java_hash", "murmur2", "partition_for_group", "partition_for_key"]


_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFF_FFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a record with this key, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


def murmur2(data: bytes) -> int:
    """Hash by MurmurHash2 (Austin Appleby) of 32 bits with Kafka's seed, as an unsigned number."""
    # 32-bit arithmetic in Python's unbounded integers: each product is masked. Kafka reads words little-endian and
    # hashes the 1 to 3 bytes at the end as one number, which is what the last branch does.
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


_INT_MIN = -(2**31)

# Each request of a member asks for the partition of its group several times. Hashing costs 0.1 µs for each character,
# so the partitions of usual ids are kept; ids longer than this are hashed every time, so that a client's ids of
# 32 KiB cannot fill the cache's memory.
_LONGEST_KEPT = 256
_KEPT_IDS = 4096


def partition_for_group(group_id: str, partitions: int = 50) -> int:
    """Return the partition of a group, as Kafka does: abs(String.hashCode(group id)) mod
    `offsets.topic.num.partitions`, with abs(INT_MIN) = 0.
    """
    if len(group_id) <= _LONGEST_KEPT:
        return _kept_partition(group_id, partitions)
    return _partition(group_id, partitions)


def _partition(group_id: str, partitions: int) -> int:
    # Kafka: Utils.abs(groupId.hashCode()) % partitions. `Utils.abs` returns 0 for Integer.MIN_VALUE, whose absolute
    # value does not fit into an int.
    code = java_hash(group_id)
    signed = code - 2**32 if code >= 2**31 else code
    return 0 if signed == _INT_MIN else abs(signed) % partitions


_kept_partition = lru_cache(maxsize=_KEPT_IDS)(_partition)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode as an unsigned 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return code
