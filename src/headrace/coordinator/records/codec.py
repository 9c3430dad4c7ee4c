"""Codec of record keys and values: writers and readers compiled from the annotations of their dataclasses.

The dataclasses in `schemas` and `consumer_schemas` are the only description of a record. Their fields are in the order
of Kafka's message definitions, and their annotations say what the definitions say:

    epoch: Int32                                     a number, with its width on the wire
    instance_id: str | None                          nullable text
    members: tuple[GroupMember, ...]                 an array of structs
    leader_epoch: Annotated[Int32, Versions(3)]      a field that exists from version 3 on
    metadata_hash: Annotated[Int64, Tagged(0)]       a tagged field, which is left out at its default

Each pair of class and version is compiled to straight-line Python once, when it is first needed, as `dataclasses` and
`namedtuple` do. A table that is interpreted for every record was rejected: it costs a loop and a look-up per field on
the path of every heartbeat that writes records.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from headrace.coordinator.records.fields import (
    Cursor,
    write_bytes,
    write_compact_array,
    write_compact_bytes,
    write_compact_string,
    write_int8,
    write_int16,
    write_int32,
    write_int64,
    write_plain_array,
    write_string,
    write_tags,
    write_uint16,
    write_unsigned_varint,
)

__all__ = ["Int8", "Int16", "Int32", "Int64", "Reader", "Tagged", "UInt16", "Versions", "Writer", "reader", "writer"]

Int8: TypeAlias = Annotated[int, "int8"]
Int16: TypeAlias = Annotated[int, "int16"]
UInt16: TypeAlias = Annotated[int, "uint16"]
Int32: TypeAlias = Annotated[int, "int32"]
Int64: TypeAlias = Annotated[int, "int64"]

Writer: TypeAlias = Callable[[bytearray, Any], None]
Reader: TypeAlias = Callable[[Cursor], Any]

_NUMBERS: dict[str, tuple[Writer, Reader]] = {
    "int8": (write_int8, Cursor.int8),
    "int16": (write_int16, Cursor.int16),
    "uint16": (write_uint16, Cursor.uint16),
    "int32": (write_int32, Cursor.int32),
    "int64": (write_int64, Cursor.int64),
}
# A sentinel: None is a possible meaning of an absent tag.
_DATACLASS_DEFAULT = object()


class Versions(NamedTuple):
    """The versions of a message that have a field, both inclusive."""

    first: int
    last: int = 32_767


class Tagged(NamedTuple):
    """A tagged field. `absent`: what a message without it means, if that is not the field's default."""

    tag: int
    absent: Any = _DATACLASS_DEFAULT


class _Field(NamedTuple):
    name: str
    type: Any
    default: Any
    tagged: Tagged | None


@cache
def writer(schema: Any, version: int, *, flexible: bool) -> Writer:
    """Return the writer of a dataclass, or of a tuple type, in one version of its message."""
    # `names` are the globals of the compiled function: one writer per field, bound by number, so the source holds no
    # values.
    names: dict[str, Any] = {"write_tags": write_tags, "array": write_compact_array if flexible else write_plain_array}
    lines, tag_lines = [], []
    for number, field in enumerate(_fields(schema, version)):
        value = f"value.{field.name}" if is_dataclass(schema) else f"value[{number}]"
        names[f"write{number}"], is_array = _value_writer(field, version, flexible=flexible)
        if field.tagged is None:
            call = f"array(out, {value}, write{number})" if is_array else f"write{number}(out, {value})"
            lines.append(f"    {call}")
            continue
        # Tagged fields come last, in ascending order of their tags, each with its length in front.
        names[f"default{number}"] = field.default
        call = f"array(data, {value}, write{number})" if is_array else f"write{number}(data, {value})"
        tag_lines += [
            f"    if {value} != default{number}:",
            "        data = bytearray()",
            f"        {call}",
            f"        tags.append(({field.tagged.tag}, bytes(data)))",
        ]
    if tag_lines:
        lines += ["    tags = []", *tag_lines, "    write_tags(out, *tags)"]
    elif flexible:
        lines.append("    out.append(0)")  # no tagged fields
    write: Writer = _compiled("write", "out, value", lines, names)
    return write


@cache
def reader(schema: Any, version: int, *, flexible: bool) -> Reader:
    """Return the reader of a dataclass, or of a tuple type, in one version of its message.

    Fields that the version lacks get their defaults. The reader raises CorruptRecord for bytes that end too early.
    """
    # As in `writer`. `make` is the dataclass itself, called with keyword arguments; a tuple type gets a plain tuple.
    names: dict[str, Any] = {"make": schema}
    array = "compact_array" if flexible else "array"
    lines, found, tag_lines = [], [], []
    for number, field in enumerate(_fields(schema, version)):
        names[f"read{number}"], is_array = _value_reader(field, version, flexible=flexible)
        found.append(f"{field.name}=field{number}" if is_dataclass(schema) else f"field{number}")
        if field.tagged is None:
            call = f"cursor.{array}(read{number})" if is_array else f"read{number}(cursor)"
            lines.append(f"    field{number} = {call}")
            continue
        names[f"default{number}"] = field.default
        data = f"tags[{field.tagged.tag}]"
        # A null array in a tagged field, which Kafka does not write, means the default as well.
        call = f"{data}.nullable_compact_array(read{number})" if is_array else f"read{number}({data})"
        tag_lines.append(f"    field{number} = {call} if {field.tagged.tag} in tags else default{number}")
        if is_array:
            tag_lines.append(f"    if field{number} is None: field{number} = default{number}")
    if tag_lines:
        lines += ["    tags = cursor.tags()", *tag_lines]
    elif flexible:
        lines.append("    cursor.skip_tags()")
    result = ", ".join(found)
    lines.append(f"    return make({result})" if is_dataclass(schema) else f"    return ({result})")
    read: Reader = _compiled("read", "cursor", lines, names)
    return read


def _compiled(name: str, parameters: str, lines: list[str], names: dict[str, Any]) -> Any:
    """Compile a function. Its source consists of names of our own dataclasses and of numbers, never of input."""
    # Straight-line code per class and version, as `dataclasses` makes its `__init__`.
    exec("\n".join([f"def {name}({parameters}):", *(lines or ["    pass"])]), names)
    return names[name]


def _fields(schema: Any, version: int) -> list[_Field]:
    if not is_dataclass(schema):
        return [_Field(f"[{number}]", each, None, None) for number, each in enumerate(get_args(schema))]
    hints = get_type_hints(schema, include_extras=True)
    found = []
    for field in fields(schema):
        marks = getattr(hints[field.name], "__metadata__", ())
        versions = next((each for each in marks if isinstance(each, Versions)), Versions(0))
        tagged = next((each for each in marks if isinstance(each, Tagged)), None)
        # Not written in this version; a reader gives it the default.
        if not versions.first <= version <= versions.last:
            continue
        default = None if field.default is MISSING else field.default
        if tagged is not None and tagged.absent is not _DATACLASS_DEFAULT:
            default = tagged.absent
        found.append(_Field(field.name, hints[field.name], default, tagged))
    return found


def _value_writer(field: _Field, version: int, *, flexible: bool) -> tuple[Writer, bool]:
    """The writer of a field's value, or of the items if it is an array: then the second result is True."""
    kind, of, nullable = _kind(field.type)
    if kind == "array":
        return _value_writer(field._replace(type=of, tagged=None), version, flexible=flexible)[0], True
    if kind == "struct":
        write = writer(of, version, flexible=flexible)
        return (_nullable_struct_writer(write, in_tag=field.tagged is not None) if nullable else write), False
    if kind == "str":
        return (write_compact_string if flexible else write_string), False
    if kind == "bytes":
        return (write_compact_bytes if flexible else write_bytes), False
    if kind == "uuid":
        return _write_uuid, False
    return _NUMBERS[kind][0], False


def _value_reader(field: _Field, version: int, *, flexible: bool) -> tuple[Reader, bool]:
    kind, of, nullable = _kind(field.type)
    if kind == "array":
        return _value_reader(field._replace(type=of, tagged=None), version, flexible=flexible)[0], True
    if kind == "struct":
        read = reader(of, version, flexible=flexible)
        return (_nullable_struct_reader(read, in_tag=field.tagged is not None) if nullable else read), False
    if kind == "str":
        if nullable:
            return (Cursor.nullable_compact_string if flexible else Cursor.nullable_string), False
        return (Cursor.compact_string if flexible else Cursor.string), False
    if kind == "bytes":
        return (Cursor.compact_bytes if flexible else Cursor.bytes_field), False
    if kind == "uuid":
        return _read_uuid, False
    return _NUMBERS[kind][1], False


def _kind(annotation: Any) -> tuple[str, Any, bool]:
    """(kind, item or class, whether None is allowed) of a field's annotation."""
    # `Annotated[X, marks]`: a text among the marks names a number's width; the rest is found from the plain type.
    marks = getattr(annotation, "__metadata__", ())
    plain = annotation.__origin__ if marks else annotation
    number = next((mark for mark in marks if isinstance(mark, str)), None)
    if number is not None:
        return number, None, False
    if get_origin(plain) in (Union, types.UnionType):
        # `X | None`: exactly one type besides None, else the annotation is a mistake.
        (of,) = (each for each in get_args(plain) if each is not type(None))
        kind, item, _ = _kind(of)
        return kind, item, True
    if get_origin(plain) is tuple:
        items = get_args(plain)
        if len(items) == 2 and items[1] is Ellipsis:
            return "array", items[0], False
        return "struct", plain, False
    if is_dataclass(plain):
        return "struct", plain, False
    return {str: "str", bytes: "bytes", UUID: "uuid"}[plain], None, False


def _nullable_struct_writer(write: Writer, *, in_tag: bool) -> Writer:
    """Kafka marks presence by an int8 (-1 or 1); in a tagged field, by an unsigned varint (0 or 1)."""

    def write_nullable(out: bytearray, value: Any) -> None:
        present = value is not None
        if in_tag:
            write_unsigned_varint(out, 1 if present else 0)
        else:
            write_int8(out, 1 if present else -1)
        if present:
            write(out, value)

    return write_nullable


def _nullable_struct_reader(read: Reader, *, in_tag: bool) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        present = cursor.unsigned_varint() > 0 if in_tag else cursor.int8() >= 0
        return read(cursor) if present else None

    return read_nullable


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _read_uuid(cursor: Cursor) -> UUID:
    return UUID(bytes=cursor.take(16))
