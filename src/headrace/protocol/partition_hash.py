"""Partition of `__consumer_offsets` that keeps a group: Java's hash of the group id, modulo the partitions."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["java_hash", "partition_for_group"]

_INT_MIN = -(2**31)

# Each request of a member asks for the partition of its group several times. Hashing costs 0.1 µs for each character,
# so the partitions of usual ids are kept; ids longer than this are hashed every time, so that a stranger's ids of
# 32 KiB cannot fill the cache's memory.
_LONGEST_KEPT = 256
_KEPT_IDS = 4096


def partition_for_group(group_id: str, partitions: int = 50) -> int:
    """As Kafka: abs(String.hashCode(group id)) mod `offsets.topic.num.partitions`, with abs(INT_MIN) = 0."""
    if len(group_id) <= _LONGEST_KEPT:
        return _kept_partition(group_id, partitions)
    return _partition(group_id, partitions)


def _partition(group_id: str, partitions: int) -> int:
    code = java_hash(group_id)
    signed = code - 2**32 if code >= 2**31 else code
    return 0 if signed == _INT_MIN else abs(signed) % partitions


_kept_partition = lru_cache(maxsize=_KEPT_IDS)(_partition)


def java_hash(text: str) -> int:
    """Java's String.hashCode as an unsigned 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return code
