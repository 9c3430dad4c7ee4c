"""THE SERVER. asyncio: connections, one handler per API, and the shell around the pure coordinator shards."""

import headrace.protocol  # noqa: F401  kio comes in through it: see there what that saves
