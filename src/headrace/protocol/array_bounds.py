"""Bounds checks of messages before kio decodes them, and removal of tagged fields that kio refuses.

kio's native reader reserves memory for as many items as the length of an array states. A request of 20 bytes can state
2³² items; the allocation fails and Rust aborts the whole process. So a walk over the message checks all lengths first.
It skips fields and builds no objects. Messages without arrays need no walk.

The walk also refuses what Kafka refuses and kio accepts (strings of more than 32,767 bytes, null for an array that is
not nullable), and it counts the items of all arrays against a budget: half a million empty names fit in 520 KB, and
each of them would cost an object, a decision and an answer.

kio alone refuses null for strings, bytes and records that are not nullable. Checking them here too would cost one
comparison per string of every message; tests/protocol/test_null_fields.py checks each such field of each version.

Two kinds of tagged fields are valid in Kafka and refused by kio. A message that it refused is copied without them and
read again; only flexible versions have tagged fields.
- Unknown ones come from a newer sender and are skipped (KIP-482).
- A tagged string may state the null that is its default (Fetch's `ClusterId`, v12 to 18). Senders leave it out, but
  Kafka's reader takes it; kio reads every tagged field as not nullable.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from kio.static.protocol import Entity

__all__ = [
    "ItemBudget",
    "TooManyItems",
    "array_walk",
    "compact_length",
    "encode_unsigned_varint",
    "entity_walk",
    "fields_of",
    "is_entity",
    "primitive_step",
    "shape_of",
    "strip_tagged_fields",
    "unsigned_varint",
]


class TooManyItems(ValueError):
    """The arrays of one message have more items in total than its receiver accepts."""


class ItemBudget:
    """Items that the arrays and tagged fields of one message may still have. Mutable."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.left = self.most = most

    def take(self, count: int) -> None:
        """Take `count` items from the budget. Raises TooManyItems if fewer are left."""
        self.left -= count
        if self.left < 0:
            raise TooManyItems(f"more than {self.most} items in its arrays")


Walk = Callable[[bytes, int, ItemBudget], int]
"""(frame, position of an entity, budget) → position after it. Raises ValueError, IndexError or struct.error."""

Field = dataclasses.Field[object]
Step = int | Walk  # a number of bytes to skip, or a function that finds the end

_FIXED_BYTES: Mapping[str, int] = {
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_LONGEST_STRING = 0x7FFF
_COMPACT_NULL = 0
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def array_walk(schema: type[Entity]) -> Walk | None:
    """Return the walk over a kio class, or None for a class without arrays."""
    return entity_walk(schema) if _has_arrays(schema) else None


@cache
def _has_arrays(schema: type[Entity]) -> bool:
    return any(
        is_array or (is_entity(kind) and _has_arrays(kind))
        for kind, is_array, _ in (shape_of(hint) for _, hint, _ in fields_of(schema))
    )


@cache
def entity_walk(schema: type[Entity]) -> Walk:
    """Return the walk over a kio class, also for one without arrays: its tagged fields have to be bounded too."""
    # The walk is compiled once per class. Consecutive fields of fixed size become one number of bytes to skip, so the
    # walk touches only strings, arrays and nested entities.
    flexible = bool(schema.__flexible__)
    steps: list[Step] = []
    tagged: dict[int, Step] = {}
    for field, hint, tag in fields_of(schema):
        step = _field_step(field, hint, flexible=flexible, tagged=tag is not None)
        if tag is not None:
            # Tagged fields come behind all others, in any order, so they are found by their number.
            tagged[tag] = step
        elif isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step  # fixed fields side by side are one skip
        else:
            steps.append(step)

    def walk(frame: bytes, position: int, budget: ItemBudget) -> int:
        for step in steps:
            position = position + step if isinstance(step, int) else step(frame, position, budget)
        return _walk_tagged(frame, position, tagged, budget) if flexible else position

    return walk


def fields_of(schema: type[Entity]) -> list[tuple[Field, object, int | None]]:
    """Return (field, type hint, tag or None) of each field of a kio class, in the order on the wire."""
    hints = typing.get_type_hints(schema)
    return [(field, hints[field.name], field.metadata.get("tag")) for field in dataclasses.fields(schema)]


def shape_of(hint: object) -> tuple[object, bool, bool]:
    """Return (type or item type, whether it is an array, whether it may be null)."""
    nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        nullable = True
        hint = next(argument for argument in typing.get_args(hint) if argument is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, nullable
    return hint, False, nullable


def is_entity(kind: object) -> TypeGuard[type[Entity]]:
    """Whether a field's type is a kio class, and not a primitive type."""
    return dataclasses.is_dataclass(kind)


def _field_step(field: Field, hint: object, *, flexible: bool, tagged: bool) -> Step:
    kind, is_array, nullable = shape_of(hint)
    step: Step
    if is_entity(kind):
        step = entity_walk(kind)
        if nullable and not is_array and not tagged:
            step = _nullable_entity(step)
    else:
        step = primitive_step(field.metadata["kafka_type"], flexible=flexible)
    if not is_array:
        return step
    return _array(step, compact_length if flexible else _int32_length, nullable=nullable)


def primitive_step(kafka_type: str, *, flexible: bool = True) -> Step:
    """Return how to skip a value of a primitive Kafka type; `flexible`: in a flexible version (KIP-482)."""
    fixed = _FIXED_BYTES.get(kafka_type)
    if fixed is not None:
        return fixed
    if kafka_type == "string":
        return _string(compact_length) if flexible else _sized(_int16_length)
    return _sized(compact_length if flexible else _int32_length)


def _sized(read_length: Callable[[bytes, int], tuple[int, int]]) -> Walk:
    def walk(frame: bytes, position: int, _budget: ItemBudget) -> int:
        length, position = read_length(frame, position)
        return position + length if length > 0 else position

    return walk


def _string(read_length: Callable[[bytes, int], tuple[int, int]]) -> Walk:
    def walk(frame: bytes, position: int, _budget: ItemBudget) -> int:
        length, position = read_length(frame, position)
        if length > _LONGEST_STRING:
            raise ValueError(f"a string of {length} bytes")
        return position + length if length > 0 else position

    return walk


def _nullable_entity(entity: Walk) -> Walk:
    def walk(frame: bytes, position: int, budget: ItemBudget) -> int:
        return position + 1 if _is_null(frame[position]) else entity(frame, position + 1, budget)

    return walk


def _is_null(marker: int) -> bool:
    """Whether the byte in front of a nullable entity says that it is null.

    Kafka takes every negative byte for null, kio only -1. What they disagree about would be walked as null and read as
    an entity, whose arrays have not been bounded; clients send -1 or 1.
    """
    if 0x80 <= marker < 0xFF:
        raise ValueError(f"the byte {marker:#x} in front of a nullable struct")
    return marker == 0xFF


def _array(item: Step, read_length: Callable[[bytes, int], tuple[int, int]], *, nullable: bool) -> Walk:
    def walk(frame: bytes, position: int, budget: ItemBudget) -> int:
        # 1. A null array where Kafka's schema has none closes the connection in Kafka too.
        # 2. An item takes a byte at least, so a length beyond the rest of the frame is false. This check is what keeps
        #    kio from reserving memory for it.
        # 3. The budget is taken before the items are walked, so a message over it costs no more than its first array.
        # 4. Fixed-size items are skipped by one multiplication, others one by one. What lies behind the frame is found
        #    by the next read, or by kio, which checks each of its own.
        length, position = read_length(frame, position)
        if length < 0 and not nullable:
            raise ValueError("null in the place of an array")
        if length > len(frame) - position:  # an item takes a byte at least
            raise ValueError(f"an array of {length} items in {len(frame) - position} bytes")
        if length > 0:
            budget.take(length)
        if isinstance(item, int):
            return position + max(length, 0) * item
        for _ in range(length):
            position = item(frame, position, budget)
        return position

    return walk


def _walk_tagged(frame: bytes, position: int, known: Mapping[int, Step], budget: ItemBudget) -> int:
    # Nearly always 0, one byte; the varint is read only if there are any. Unknown tags are skipped by their size
    # (KIP-482); a known one is walked as well, since it may hold an array.
    count = frame[position]
    position += 1
    if not count:
        return position
    # The count again, as a varint: the byte above was only its first.
    count, position = unsigned_varint(frame, position - 1)
    if 2 * count > len(frame) - position:  # a tag and a size take a byte each at least
        raise ValueError(f"{count} tagged fields in {len(frame) - position} bytes")
    budget.take(count)
    for _ in range(count):
        tag, position = unsigned_varint(frame, position)
        size, position = unsigned_varint(frame, position)
        step = known.get(tag)
        # kio reads a known field by its type, whatever size is stated, so both must say the same.
        if step is not None:
            end = position + step if isinstance(step, int) else step(frame, position, budget)
            if end != position + size:
                raise ValueError(f"a tagged field of {end - position} bytes states {size}")
        position += size
        if position > len(frame):
            raise ValueError("a tagged field ends behind the frame")
    return position


def _int16_length(frame: bytes, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(frame, position)[0], position + 2


def _int32_length(frame: bytes, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(frame, position)[0], position + 4


def compact_length(frame: bytes, position: int) -> tuple[int, int]:
    """Read a compact length (stored as length + 1; 0 is null, returned as -1) and the position after it."""
    byte = frame[position]
    # One byte, lengths up to 126: nearly all of them.
    if byte < 0x80:
        return byte - 1, position + 1
    length, position = unsigned_varint(frame, position)
    return length - 1, position


def unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; returns its value and the position after it."""
    value = 0
    # Five groups of seven bits hold 32 bits. The fifth may carry more; such a length is beyond any frame.
    for shift in range(0, 35, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a varint of more than five bytes")


def encode_unsigned_varint(number: int) -> bytes:
    """Write a number as `unsigned_varint` reads it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


_COUNTED = ItemBudget(0)  # of primitives, which have no items; the walk before has counted all arrays

_Part = tuple[bytes, int]
"""(bytes of the copy, position behind the original)."""


def strip_tagged_fields(schema: type[Entity], frame: bytes, position: int) -> bytes:
    """Return the frame without the tagged fields that kio refuses; only the entity at `position` is rewritten."""
    rewritten, end = _entity(schema, frame, position)
    return frame[:position] + rewritten + frame[end:]


def _entity(schema: type[Entity], frame: bytes, position: int) -> _Part:
    parts = []
    tagged = {}
    for field, hint, tag in fields_of(schema):
        if tag is not None:
            tagged[tag] = (field, hint)
            continue
        part, position = _field(field, hint, frame, position, in_tag=False)
        parts.append(part)
    part, position = _kept_tagged_fields(tagged, frame, position)
    return b"".join((*parts, part)), position


def _field(field: Field, hint: object, frame: bytes, position: int, *, in_tag: bool) -> _Part:
    # A copy of the field's bytes, with unknown tagged fields left out of nested entities. Only entities can hold tagged
    # fields: anything else is copied as one slice.
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
        if _is_null(marker[0]):
            return marker, position
    part, position = _entity(kind, frame, position)
    return marker + part, position


def _kept_tagged_fields(known: dict[int, tuple[Field, object]], frame: bytes, position: int) -> _Part:
    count, position = unsigned_varint(frame, position)
    kept = []
    for _ in range(count):
        tag, position = unsigned_varint(frame, position)
        size, position = unsigned_varint(frame, position)
        if position + size > len(frame):
            raise ValueError("a tagged field ends behind the frame")
        if tag in known and not _states_default_null(*known[tag], frame, position):
            content, _ = _field(*known[tag], frame, position, in_tag=True)
            kept.append(encode_unsigned_varint(tag) + encode_unsigned_varint(len(content)) + content)
        position += size
    return b"".join((encode_unsigned_varint(len(kept)), *kept)), position


def _states_default_null(field: Field, hint: object, frame: bytes, position: int) -> bool:
    """Whether a tagged string or byte field states null, and null is its default: leaving it out means the same."""
    kind, is_array, nullable = shape_of(hint)
    return (
        nullable and field.default is None and not is_array and not is_entity(kind) and frame[position] == _COMPACT_NULL
    )
