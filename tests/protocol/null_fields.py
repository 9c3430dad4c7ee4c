"""Bytes of any message with null in the place of one chosen field, generated from kio's schemas.

kio's writer refuses to write null where the schema has none, so structs are laid out here; the values in them are
written by kio. Without a chosen field the bytes must be those of kio, which the test compares.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

from kio.serial._serialize import get_field_writer
from tests.harness.wire import encode_varint

from headrace.protocol.array_bounds import fields_of, is_entity, shape_of

__all__ = ["NullPlace", "null_places", "write_message"]

Path = tuple[str, ...]
ITEM = "[0]"
"""Last step of the path to the first item of an array of strings."""

COMPACT_NULL, STRUCT_NULL, STRUCT_PRESENT = b"\0", b"\xff", b"\1"


@dataclasses.dataclass(frozen=True)
class NullPlace:
    """A place of a message where bytes can state null, whether the schema allows it or not."""

    path: Path
    kind: str  # "array", "string", "bytes" or "struct"
    nullable: bool
    tagged: bool


def null_places(schema: Any, above: Path = (), *, tagged: bool = False) -> Iterator[NullPlace]:
    """Every array, string, byte field and nullable struct of a class, also in nested structs and in items of arrays.

    A struct that is not nullable has no byte in front of it that could state null: KIP-893 gave one to nullable structs
    only. So there are no such structs to test.
    """
    for field, hint, tag in fields_of(schema):
        kind, is_array, nullable = shape_of(hint)
        path = (*above, field.name)
        in_tag = tagged or tag is not None
        primitive = "" if is_entity(kind) else _KINDS.get(field.metadata["kafka_type"], "")
        if is_array:
            yield NullPlace(path, "array", nullable, in_tag)
            if primitive:
                yield NullPlace((*path, ITEM), primitive, nullable=False, tagged=in_tag)
        elif primitive:
            yield NullPlace(path, primitive, nullable, in_tag)
        elif is_entity(kind) and nullable:
            yield NullPlace(path, "struct", nullable, in_tag)
        if is_entity(kind):
            yield from null_places(kind, path, tagged=in_tag)


_KINDS = {"string": "string", "bytes": "bytes", "records": "bytes"}


def write_message(entity: Any, null: Path | None = None) -> bytes:
    """Encode a message; the field at `null` is null. In arrays, the path leads through the first item."""
    schema = type(entity)
    parts, tags = [], {}
    for field, hint, tag in fields_of(schema):
        inner = null[1:] if null and null[0] == field.name else None
        value = getattr(entity, field.name)
        if tag is None:
            parts.append(_field(schema, field, hint, value, inner, tagged=False))
        elif inner is not None or value != field.default:
            tags[tag] = _field(schema, field, hint, value, inner, tagged=True)
    if schema.__flexible__:
        parts.append(encode_varint(len(tags)))
        for tag in sorted(tags):
            parts += (encode_varint(tag), encode_varint(len(tags[tag])), tags[tag])
    return b"".join(parts)


def _field(schema: Any, field: Any, hint: Any, value: Any, null: Path | None, *, tagged: bool) -> bytes:
    """One field; `null`: the rest of the path behind this field, None if the path leads elsewhere."""
    kind, is_array, nullable = shape_of(hint)
    flexible = bool(schema.__flexible__)
    primitive = None if is_entity(kind) else field.metadata["kafka_type"]
    if null == ():
        if not is_array and primitive is None:
            return STRUCT_NULL
        return COMPACT_NULL if flexible else b"\xff" * (2 if primitive == "string" and not is_array else 4)
    if is_array and null == (ITEM,):
        # The items behind the null one, as an array of their own without its length.
        rest = _by_kio(schema, field, value[1:], tagged=tagged)
        head = 1 if flexible else 4
        length = encode_varint(len(value) + 1) if flexible else len(value).to_bytes(4, "big")
        item = COMPACT_NULL if flexible else b"\xff" * (2 if primitive == "string" else 4)
        return length + item + rest[head:]
    if primitive is not None or value is None:
        return _by_kio(schema, field, value, tagged=tagged)
    if is_array:
        length = encode_varint(len(value) + 1) if flexible else len(value).to_bytes(4, "big")
        return length + b"".join(write_message(item, null if at == 0 else None) for at, item in enumerate(value))
    marker = STRUCT_PRESENT if nullable and not tagged else b""
    return marker + write_message(value, null)


def _by_kio(schema: Any, field: Any, value: Any, *, tagged: bool) -> bytes:
    buffer = io.BytesIO()
    write = get_field_writer(field, flexible=bool(schema.__flexible__), is_request_header=False, is_tag=tagged)
    write(buffer, value)
    return buffer.getvalue()
