"""The other side: Kafka clients, synchronous and blocking; `membership/` is pure. Imports protocol and errors only."""
