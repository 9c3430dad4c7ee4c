"""User data of the experimental assignors: marked, versioned, checked, bounded. Anybody else's counts as none. Pure.

`mark (4) version (1) kind (1) CRC-32 of what follows (4)`, then the body, compressed when that is shorter. It is read
through `Reader`, which believes no length before it has checked it; a body never unpacks to more than `MOST_BYTES`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from headrace.assignors.consumer_protocol import Reader

__all__ = ["MOST_BYTES", "member_key", "pack", "unpack"]

MOST_BYTES: Final = 1 << 20
_MARK: Final = b"PSUD"
_VERSION: Final = 1
_COMPRESSED: Final = 0x80
_HEAD: Final = struct.Struct(">4sBBI")


def pack(kind: int, body: bytes) -> bytes | None:
    """None when the body is larger than anybody would read: then nothing is told."""
    if len(body) > MOST_BYTES:
        return None
    shorter = zlib.compress(body, 6)
    if len(shorter) < len(body):
        kind, body = kind | _COMPRESSED, shorter
    return _HEAD.pack(_MARK, _VERSION, kind, zlib.crc32(body)) + body


def unpack(kind: int, data: bytes | None) -> Reader | None:
    """A reader of the body; None for what is missing, of a stranger, of another kind or version, or damaged."""
    if data is None or len(data) < _HEAD.size:
        return None
    mark, version, found, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if mark != _MARK or version != _VERSION or found & ~_COMPRESSED != kind or checksum != zlib.crc32(body):
        return None
    if found & _COMPRESSED:
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(body, MOST_BYTES)
        except zlib.error:
            return None
        if not unpacking.eof:
            return None
    return Reader(body)


def member_key(member_id: str, instance_id: str | None) -> str:
    """Who a member is over restarts: a static one is its instance."""
    return f"m:{member_id}" if instance_id is None else f"i:{instance_id}"
