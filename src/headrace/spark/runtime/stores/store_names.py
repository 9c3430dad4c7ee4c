"""Names of the entries in the store of a stateful processor. `processor_state` describes them."""

from __future__ import annotations

import hashlib
import struct

__all__ = [
    "CLOCK",
    "ELEMENT",
    "ENTRY",
    "EVERY",
    "EXPIRY",
    "INITIALISED",
    "LONGEST_KEY",
    "RANGE",
    "TIMER",
    "TIMERS",
    "VALUE",
    "short_key",
    "sortable",
]

CLOCK, VALUE, RANGE, ELEMENT, ENTRY, TIMER, TIMERS, EXPIRY, INITIALISED = (bytes([kind]) for kind in range(9))
LONGEST_KEY = 180  # longer keys are digests: with a variable, a map's key and a time they fit the store's 480 bytes
EVERY = 1 << 62
_DIGEST = b"\xfe"  # begins no other key: see `time_keys`


def short_key(key: bytes) -> bytes:
    """Return the form in which a key is part of names in the store."""
    return key if len(key) <= LONGEST_KEY else _DIGEST + hashlib.blake2b(key, digest_size=32).digest()


def sortable(number: int) -> bytes:
    """Return a number of 64 bits as bytes in the order of numbers."""
    return struct.pack(">Q", number + (1 << 63))
