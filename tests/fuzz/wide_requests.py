"""Requests whose arrays are filled as far as a frame of a given size allows, for every API and each of its arrays.

Items are encoded once and repeated as bytes, so a frame with half a million of them is made in a millisecond. The
names in it repeat: existing topics, denied ones, empty texts. Such requests cost a stranger nothing to send.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.wire import encode_varint

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.array_bounds import fields_of, is_entity, shape_of
from headrace.protocol.version_conversion import has_flexible_header, message_class

__all__ = ["Words", "array_paths", "framed", "wide_request"]

Path = tuple[str, ...]
Words = Mapping[str, tuple[Any, ...]]
"""Field name → the values that its items take in turn."""

_FIXED = {
    "int8": ">b",
    "bool": ">b",
    "int16": ">h",
    "uint16": ">H",
    "error_code": ">h",
    "int32": ">i",
    "uint32": ">I",
    "timedelta_i32": ">i",
    "int64": ">q",
    "uint64": ">Q",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
    "float64": ">d",
}
_FILLED = 1  # items of an array on the way to the wide one, where none is asked for


def framed(api_key: ApiKey, api_version: int, body: bytes, client_id: bytes = b"hostile") -> bytes:
    """A whole frame, its length included."""
    flexible = has_flexible_header(message_class(api_key, api_version, "request"))
    head = struct.pack(">hhih", api_key, api_version, 1, len(client_id)) + client_id + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def array_paths(api_key: ApiKey, api_version: int) -> list[Path]:
    """The field names that lead to each array of a request, outermost first."""
    return list(_paths(message_class(api_key, api_version, "request")))


def _paths(schema: Any) -> Iterator[Path]:
    for field, hint, _ in fields_of(schema):
        kind, is_array, _ = shape_of(hint)
        if is_array:
            yield (field.name,)
        if is_entity(kind):
            for rest in _paths(kind):
                yield (field.name, *rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The array at `path` gets as many items as fit; each array above it has `outer` items."""

    path: Path
    words: Words
    outer: int


def wide_request(
    api_key: ApiKey, api_version: int, path: Path, *, words: Words, items: int, most_bytes: int, outer: int = 1
) -> bytes:
    """The body of a request whose array at `path` has `items` items, fewer where `most_bytes` end sooner.

    `outer`: how many items each array above it has; each of them holds its share of the whole.
    """
    shape = _Shape(path=path, words=words, outer=outer)
    schema = message_class(api_key, api_version, "request")
    nested = sum(1 for kind_is_array in _arrays_above(schema, path) if kind_is_array)
    share = max(1, items // outer**nested)
    body = _entity(schema, shape, path, share)
    while len(body) > most_bytes and share > 1:
        share = max(1, min(share - 1, int(share * most_bytes / len(body))))
        body = _entity(schema, shape, path, share)
    return body


def _arrays_above(schema: Any, path: Path) -> Iterator[bool]:
    for name in path[:-1]:
        hint = next(hint for field, hint, _ in fields_of(schema) if field.name == name)
        schema, is_array, _ = shape_of(hint)
        yield is_array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The type of a field, or of its items. `schema`: its kio class, if `is_entity`."""

    schema: Any
    is_array: bool
    nullable: bool
    is_entity: bool


@functools.cache
def _fields(schema: Any) -> list[tuple[Any, _Kind, int | None]]:
    """Return (field, type, tag) of each field. Cached: each item of an array asks for them."""
    found = []
    for field, hint, tag in fields_of(schema):
        kind, is_array, nullable = shape_of(hint)
        entity = is_entity(kind)
        found.append((field, _Kind(schema=kind, is_array=is_array, nullable=nullable, is_entity=entity), tag))
    return found


def _entity(schema: Any, shape: _Shape, path: Path, items: int, number: int = 0) -> bytes:
    """`path`: what is left of the way from here; () off the way."""
    flexible = bool(schema.__flexible__)
    parts: list[bytes] = []
    tagged: list[tuple[int, bytes]] = []
    for field, kind, tag in _fields(schema):
        on_path = bool(path) and path[0] == field.name
        value = _field(field, kind, shape, path[1:] if on_path else None, items, number, flexible=flexible, tag=tag)
        if tag is None:
            parts.append(value)
        elif on_path:
            tagged.append((tag, value))
    if flexible:
        parts.append(encode_varint(len(tagged)))
        for tag, value in tagged:
            parts += (encode_varint(tag), encode_varint(len(value)), value)
    return b"".join(parts)


def _field(
    field: Any,
    kind: _Kind,
    shape: _Shape,
    rest: Path | None,
    items: int,
    number: int,
    *,
    flexible: bool,
    tag: int | None,
) -> bytes:
    """`rest` None: not on the way to the wide array."""

    def one(index: int) -> bytes:
        if kind.is_entity:
            return _entity(kind.schema, shape, rest or (), items, index)
        return _primitive(field.metadata["kafka_type"], field.name, shape.words, index, flexible)

    if not kind.is_array:
        marker = b"\x01" if kind.is_entity and kind.nullable and tag is None else b""
        if marker and rest is None:
            return b"\xff"
        return marker + one(number)
    if rest is None:
        return _count(0, flexible)
    count = items if not rest else shape.outer
    different = [one(index) for index in range(min(count, _period(shape.words)))]
    whole, left = divmod(count, len(different))
    return _count(count, flexible) + b"".join(different) * whole + b"".join(different[:left])


def _period(words: Words) -> int:
    return max((len(values) for values in words.values()), default=1)


def _primitive(kafka_type: str, name: str, words: Words, index: int, flexible: bool) -> bytes:
    values = words.get(name)
    value = values[index % len(values)] if values else None
    if kafka_type in _FIXED:
        return struct.pack(_FIXED[kafka_type], value if isinstance(value, int | float) else 0)
    if kafka_type == "uuid":
        return value.bytes if isinstance(value, uuid.UUID) else bytes(16)
    data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else b""
    if kafka_type == "string":
        return encode_varint(len(data) + 1) + data if flexible else struct.pack(">h", len(data)) + data
    return encode_varint(len(data) + 1) + data if flexible else struct.pack(">i", len(data)) + data


def _count(count: int, flexible: bool) -> bytes:
    return encode_varint(count + 1) if flexible else struct.pack(">i", count)
