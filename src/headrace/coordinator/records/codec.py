"""Codec of record keys and values: writers and readers compiled from the annotations of their dataclasses.

The dataclasses in `schemas` are the only description of a record. Their fields are in the order of Kafka's message
definitions, and their annotations say what the definitions say:

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

import struct
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from headrace.coordinator.request_context import CorruptRecord

__all__ = [
    "Cursor",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Reader",
    "Tagged",
    "UInt16",
    "Versions",
    "Writer",
    "reader",
    "write_bytes",
    "write_compact_array",
    "write_compact_bytes",
    "write_compact_string",
    "write_int8",
    "write_int16",
    "write_int32",
    "write_int64",
    "write_plain_array",
    "write_string",
    "write_tags",
    "write_uint16",
    "write_unsigned_varint",
    "writer",
]

T = TypeVar("T")

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
# Of an unsigned 32-bit number in groups of 7 bits.
_VARINT_BYTES = 5


def write_int8(out: bytearray, value: int) -> None:
    """Append a signed byte."""
    out += _INT8.pack(value)


def write_int16(out: bytearray, value: int) -> None:
    """Append a signed 16-bit number."""
    out += _INT16.pack(value)


def write_int32(out: bytearray, value: int) -> None:
    """Append a signed 32-bit number."""
    out += _INT32.pack(value)


def write_int64(out: bytearray, value: int) -> None:
    """Append a signed 64-bit number."""
    out += _INT64.pack(value)


def write_uint16(out: bytearray, value: int) -> None:
    """Append an unsigned 16-bit number."""
    out += _UINT16.pack(value)


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append a number in groups of 7 bits, the lowest first."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_string(out: bytearray, text: str | None) -> None:
    """Write a string of a version without flexible fields: int16 length, -1 for null."""
    if text is None:
        out += _INT16.pack(-1)
        return
    data = text.encode()
    out += _INT16.pack(len(data))
    out += data


def write_compact_string(out: bytearray, text: str | None) -> None:
    """Append text with a varint length; None is length 0."""
    write_compact_bytes(out, None if text is None else text.encode())


def write_compact_bytes(out: bytearray, data: bytes | None) -> None:
    """Append bytes with a varint length, plus one; None is 0."""
    if data is None:
        out.append(0)
        return
    # Compact lengths are one more than the length; 0 is null (KIP-482).
    write_unsigned_varint(out, len(data) + 1)
    out += data


def write_bytes(out: bytearray, data: bytes) -> None:
    """Write bytes of a version without flexible fields: int32 length."""
    out += _INT32.pack(len(data))
    out += data


def write_plain_array(out: bytearray, items: tuple[T, ...], write: Callable[[bytearray, T], None]) -> None:
    """The older form: int32 count."""
    write_int32(out, len(items))
    for item in items:
        write(out, item)


def write_compact_array(out: bytearray, items: tuple[T, ...], write: Callable[[bytearray, T], None]) -> None:
    """Append a varint count, plus one, and the items."""
    write_unsigned_varint(out, len(items) + 1)
    for item in items:
        write(out, item)


def write_tags(out: bytearray, *tags: tuple[int, bytes]) -> None:
    """Write the tagged fields at the end of a flexible struct, in ascending order; without any, one zero byte."""
    write_unsigned_varint(out, len(tags))
    # Each with its size, so that a reader can skip what it does not know.
    for tag, data in tags:
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(data))
        out += data


class Cursor:
    """Reads fields of `data` in order. Mutable: it is the position."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def take(self, length: int) -> bytes:
        start = self._position
        end = start + length
        # Checked before slicing: Python would return a shorter slice, and a truncated record would pass as a valid one.
        if length < 0 or end > len(self._data):
            raise CorruptRecord(f"a field of {length} bytes at {start} of {len(self._data)}")
        self._position = end
        return self._data[start:end]

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def _number(self, layout: struct.Struct) -> int:
        start = self._position
        if start + layout.size > len(self._data):
            raise CorruptRecord(f"a field of {layout.size} bytes at {start} of {len(self._data)}")
        self._position = start + layout.size
        number: int = layout.unpack_from(self._data, start)[0]
        return number

    def unsigned_varint(self) -> int:
        if self._position < len(self._data) and (byte := self._data[self._position]) < 0x80:
            self._position += 1  # nearly all are of one byte
            return byte
        value = 0
        for index in range(_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if not byte & 0x80:
                return value
        raise CorruptRecord(f"a varint longer than {_VARINT_BYTES} bytes")

    def string(self) -> str:
        return _present(self.nullable_string())

    def nullable_string(self) -> str | None:
        # Kafka takes any negative length for null; it writes -1.
        length = self.int16()
        return None if length < 0 else self._text(length)

    def bytes_field(self) -> bytes:
        return self.take(self.int32())

    def compact_string(self) -> str:
        return _present(self.nullable_compact_string())

    def nullable_compact_string(self) -> str | None:
        length = self.unsigned_varint()
        return None if length == 0 else self._text(length - 1)

    def compact_bytes(self) -> bytes:
        return self.take(self.unsigned_varint() - 1)

    def array(self, read: Callable[[Cursor], T]) -> tuple[T, ...]:
        """The older form: int32 count."""
        return self._items(self.int32(), read)

    def compact_array(self, read: Callable[[Cursor], T]) -> tuple[T, ...]:
        return self._items(self.unsigned_varint() - 1, read)

    def nullable_compact_array(self, read: Callable[[Cursor], T]) -> tuple[T, ...] | None:
        count = self.unsigned_varint()
        return None if count == 0 else self._items(count - 1, read)

    def tags(self) -> dict[int, Cursor]:
        """Read the tagged fields of a struct. Callers ignore unknown tags."""
        found: dict[int, Cursor] = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            found[tag] = Cursor(self.take(self.unsigned_varint()))
        return found

    def skip_tags(self) -> None:
        """Skip the tagged fields of a struct that has none which are known."""
        if self._position < len(self._data) and self._data[self._position] == 0:
            self._position += 1  # nearly always
        else:
            self.tags()

    def _items(self, count: int, read: Callable[[Cursor], T]) -> tuple[T, ...]:
        if count < 0 or count > self.remaining:  # each item takes a byte at least: bounds the work of a corrupt count
            raise CorruptRecord(f"an array of {count} items in {self.remaining} bytes")
        return tuple(read(self) for _ in range(count))

    def _text(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"text that is not UTF-8: {error.reason}") from error


def _present(text: str | None) -> str:
    if text is None:
        raise CorruptRecord("null where a text must be")
    return text


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
