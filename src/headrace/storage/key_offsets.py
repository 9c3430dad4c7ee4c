"""The last offset of each key in a stretch of a log, in bounded memory: what a cleaning decides by.

Keys of up to 23 bytes are held as they are, longer ones as a 24-byte BLAKE2b digest, so no two keys can be mistaken for
each other: short ones are compared whole, and nobody can find two long ones with one digest of 192 bits. (Kafka holds
16 bytes of MD5 for all.)
"""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["KeyOffsets"]

_DIGEST_BYTES = 24
_ENTRY_BYTES = 224
"""What a key costs here in a dict of CPython: its bytes object, its offset, its share of a table that is half full."""


class KeyOffsets:
    """Mutable: filled by one pass over the dirty part, then asked for every record."""

    def __init__(self, max_bytes: int) -> None:
        self._most = max(max_bytes // _ENTRY_BYTES, 1)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Nothing is refused then: who fills it ends with the batch at hand."""
        return len(self._offsets) >= self._most

    def note(self, key: bytes, offset: int) -> None:
        """Offsets come in ascending order."""
        self._offsets[key if len(key) < _DIGEST_BYTES else _digest(key)] = offset

    def last_offset(self, key: bytes) -> int:
        """-1 for a key that was not noted."""
        return self._offsets.get(key if len(key) < _DIGEST_BYTES else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
