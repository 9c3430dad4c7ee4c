"""The other side: Kafka clients, synchronous and blocking; `membership/` is pure. Imports protocol and errors only."""

import headrace.protocol  # noqa: F401  kio comes in through it: see there what that saves
