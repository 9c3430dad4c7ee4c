"""Partition logs as Produce and Fetch see them: appends, reads, fetch sessions, delayed fetches, fsync, compaction."""
