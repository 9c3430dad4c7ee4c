"""Partition logs on disk, in Kafka's segment format. Synchronous; of this project it imports `protocol` only.

Begin with `log_directory.LogDirectory` and `partition_log.PartitionLog`; docs/internals/storage.md describes the rest.
"""
