"""User data format of the experimental assignors, with a mark, a version, a checksum and a size limit. Pure.

`mark (4) version (1) kind (1) CRC-32 of the rest (4)`, then the body, compressed if that is shorter. Data without the
mark counts as none. A body is read through `Reader`, which checks lengths before it uses them, and is never
decompressed to more than `MAX_BODY_BYTES`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from headrace.assignors.consumer_protocol import Reader

__all__ = ["MAX_BODY_BYTES", "member_key", "pack", "unpack"]

MAX_BODY_BYTES: Final = 1 << 20
_MARK: Final = b"PSUD"
_VERSION: Final = 1
_COMPRESSED: Final = 0x80
_HEAD: Final = struct.Struct(">4sBBI")


def pack(kind: int, body: bytes) -> bytes | None:
    """Return the user data for a body; None if the body exceeds `MAX_BODY_BYTES`, which no member would read."""
    if len(body) > MAX_BODY_BYTES:
        return None
    shorter = zlib.compress(body, 6)
    if len(shorter) < len(body):
        kind, body = kind | _COMPRESSED, shorter
    return _HEAD.pack(_MARK, _VERSION, kind, zlib.crc32(body)) + body


def unpack(kind: int, data: bytes | None) -> Reader | None:
    """Return a reader of the body; None if it is missing, foreign, damaged, or of another kind or version."""
    if data is None or len(data) < _HEAD.size:
        return None
    mark, version, found, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if mark != _MARK or version != _VERSION or found & ~_COMPRESSED != kind or checksum != zlib.crc32(body):
        return None
    if found & _COMPRESSED:
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(body, MAX_BODY_BYTES)
        except zlib.error:
            return None
        if not unpacking.eof:
            return None
    return Reader(body)


def member_key(member_id: str, instance_id: str | None) -> str:
    """Return what identifies a member across restarts: its instance id if it is static."""
    return f"m:{member_id}" if instance_id is None else f"i:{instance_id}"
