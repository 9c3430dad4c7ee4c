"""Streams groups (KIP-1071): the rules of their heartbeat and of who runs which task."""
