"""The operations that a caller may do with a resource: everything where no authorizer is set.

A bit for each operation, numbered as Kafka's AclOperation; which operations a kind of resource knows is Kafka's too
(org.apache.kafka.security.authorizer.AclEntry.supportedOperations).
"""

from __future__ import annotations

from kio.static.primitive import i32

__all__ = ["ON_CLUSTER", "ON_GROUP", "ON_TOPIC", "UNKNOWN"]

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> i32:
    return i32(sum(1 << operation for operation in operations))


ON_CLUSTER = _bits(_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE)
ON_TOPIC = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ON_GROUP = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
UNKNOWN = i32(-(2**31))
"""The request did not ask for operations."""
