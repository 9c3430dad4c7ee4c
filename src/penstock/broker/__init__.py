"""THE SERVER. asyncio: connections, one handler per API, and the shell around the pure coordinator shards."""
