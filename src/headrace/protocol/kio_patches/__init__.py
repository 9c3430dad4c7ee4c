"""Replacements for kio classes that cannot hold all values Kafka sends, on kio's machinery. See `messages.PATCHED`."""
