"""Operators that keep state: aggregates, joins, deduplication, ranks, windows, sessions and processors."""
