"""The partition of `__consumer_offsets` that keeps a group; the rule itself is shared with the client."""

from headrace.protocol.partition_hash import java_hash, partition_for_group

__all__ = ["java_hash", "partition_for_group"]
