"""Takes tagged fields that we do not know out of a message: who sends them is newer than we are (KIP-482).

kio refuses them. So a message that it refused for that reason is copied without them and read again; only flexible
versions have tagged fields. Raises ValueError, IndexError or struct.error for bytes that are no such message.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.protocol.array_bounds import (
    ItemBudget,
    compact_length,
    fields_of,
    is_entity,
    primitive_step,
    shape_of,
    unsigned_varint,
)

__all__ = ["strip_unknown_tagged_fields"]

_COUNTED = ItemBudget(0)  # of primitives, which have no items; the walk before has counted all arrays

_Part = tuple[bytes, int]
"""(bytes of the copy, position behind the original)."""


def strip_unknown_tagged_fields(schema: Any, frame: bytes, position: int) -> bytes:
    """The frame with the entity at `position` rewritten; everything else as it is."""
    rewritten, end = _entity(schema, frame, position)
    return frame[:position] + rewritten + frame[end:]


def _entity(schema: Any, frame: bytes, position: int) -> _Part:
    parts = []
    tagged = {}
    for field, hint, tag in fields_of(schema):
        if tag is not None:
            tagged[tag] = (field, hint)
            continue
        part, position = _field(field, hint, frame, position, in_tag=False)
        parts.append(part)
    part, position = _tagged_fields(tagged, frame, position)
    return b"".join((*parts, part)), position


def _field(field: dataclasses.Field[Any], hint: Any, frame: bytes, position: int, *, in_tag: bool) -> _Part:
    kind, is_array, nullable = shape_of(hint)
    start = position
    if not is_entity(kind):
        step = primitive_step(field.metadata["kafka_type"])
        count = 1
        if is_array:
            count, position = compact_length(frame, position)
        for _ in range(count):
            position = position + step if isinstance(step, int) else step(frame, position, _COUNTED)
        return frame[start:position], position
    if is_array:
        count, position = compact_length(frame, position)
        parts = [frame[start:position]]
        for _ in range(count):
            part, position = _entity(kind, frame, position)
            parts.append(part)
        return b"".join(parts), position
    marker = b""
    if nullable and not in_tag:
        marker = frame[position : position + 1]
        position += 1
        if marker[0] >= 0x80:
            return marker, position
    part, position = _entity(kind, frame, position)
    return marker + part, position


def _tagged_fields(known: dict[int, tuple[dataclasses.Field[Any], Any]], frame: bytes, position: int) -> _Part:
    count, position = unsigned_varint(frame, position)
    kept = []
    for _ in range(count):
        tag, position = unsigned_varint(frame, position)
        size, position = unsigned_varint(frame, position)
        if position + size > len(frame):
            raise ValueError("a tagged field ends behind the frame")
        if tag in known:
            content, _ = _field(*known[tag], frame, position, in_tag=True)
            kept.append(_varint(tag) + _varint(len(content)) + content)
        position += size
    return b"".join((_varint(len(kept)), *kept)), position


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
