"""Kafka's primitive fields, written to a bytearray and read from a bounded cursor.

Both forms are here: the older one (int16 lengths) of all keys and of the values of versions 0-3, and the flexible one
(varint lengths, tagged fields) of the streams values and of version 4. A read beyond the end is a `CorruptRecord`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from headrace.coordinator.request_context import CorruptRecord

__all__ = [
    "Cursor",
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
