"""The loop that reads Protobuf messages, compiled by numba: no Python object per record.

`scan_messages` reads one level: the fields of messages of one type, for all records at once. Nested messages come out
as the places of their bytes, and are read by a scan of their own (see `protobuf_decoding`).

Bytes come from strangers and numba checks no bounds: each read is behind a comparison with the message's end.
Format: protobuf.dev, "Encoding". Where parsers differ, it is read as by upb, the parser of Google's Python package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.njit import njit
from headrace.protocol.arrow_kernels import copy_bytes

if TYPE_CHECKING:
    from headrace.array_types import ByteArray, Int32Array, Int64Array, Integer, IntegerArray


# How a value is read; up to SINT64 it is a varint, up to FLOAT four bytes, up to FIXED64 eight.
INT64: Final = 0  # and uint64
INT32: Final = 1  # and enum
UINT32: Final = 2
BOOL: Final = 3
SINT32: Final = 4
SINT64: Final = 5
FIXED32: Final = 6
SFIXED32: Final = 7  # and the bits of a float
FIXED64: Final = 8  # and sfixed64, and the bits of a double
BYTES: Final = 9  # and string
MESSAGE: Final = 10

# Columns of the table of fields.
NUMBER: Final = 0
KIND: Final = 1
SLOT: Final = 2
REPEATED: Final = 3
ONEOF: Final = 4
FIRST_ENUM: Final = 5  # the range of `table` with the numbers of a closed enum; empty for all others
LAST_ENUM: Final = 6

# Why a message is bad.
ENDED: Final = 1
BAD_TAG: Final = 2
BAD_GROUP: Final = 3

_MOST_GROUPS = 100


@njit(cache=True, nogil=True)
def _varint(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Read a varint: (value as uint64, position behind it), the position -1 if it leaves the message or is too long.

    Of the tenth byte only one bit has room; parsers do not look at the others.
    """
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, np.int64(at)
        shift += np.uint64(7)
    return value, np.int64(-1)


@njit(cache=True, nogil=True)
def _short_varint(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Read a tag or a length, which have at most five bytes."""
    return _varint(data, at, min(end, at + 5))


@njit(cache=True, nogil=True)
def _wire_type(kind: Integer) -> Integer:
    if kind <= SINT64:
        return 0
    if kind <= SFIXED32:
        return 5
    return 1 if kind == FIXED64 else 2


@njit(cache=True, nogil=True)
def _number(kind: Integer, raw: Integer) -> Integer:
    """Return the value of the bits of a varint or of a fixed-width field."""
    low = raw & np.uint64(0xFFFFFFFF)
    # An int32 is sent as a varint of 64 bits, sign-extended. Parsers keep the low 32 bits whatever the others are.
    if kind in (INT32, SFIXED32):
        return np.int64(np.int32(np.uint32(low)))
    if kind in (UINT32, FIXED32):
        return np.int64(low)
    # Any number except zero is true.
    if kind == BOOL:
        return np.int64(raw != np.uint64(0))
    if kind == SINT32:
        return np.int64(low >> np.uint64(1)) ^ -np.int64(low & np.uint64(1))
    if kind == SINT64:
        return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
    return np.int64(raw)


@njit(cache=True, nogil=True)
def _little_endian(data: ByteArray, at: Integer, width: Integer) -> Integer:
    value = np.uint64(0)
    for i in range(width):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return value


@njit(cache=True, nogil=True)
def _raw(data: ByteArray, at: Integer, end: Integer, wire: Integer) -> tuple[Integer, Integer]:
    """Read a varint or fixed bytes: (bits, position behind them), the position -1 if they leave the message."""
    if wire == 0:
        return _varint(data, at, end)
    width = np.int64(8) if wire == 1 else np.int64(4)
    if width > end - at:
        return np.uint64(0), np.int64(-1)
    return _little_endian(data, at, width), np.int64(at + width)


@njit(cache=True, nogil=True)
def _behind_length(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Read a length: (length, position of what it measures), the position -1 if that leaves the message."""
    length, at = _short_varint(data, at, end)
    if at < 0 or length > np.uint64(end - at):
        return np.int64(0), np.int64(-1)
    return np.int64(length), at


@njit(cache=True, nogil=True)
def _skip(data: ByteArray, at: Integer, end: Integer, tag: Integer) -> tuple[Integer, Integer]:  # noqa: C901 one branch per wire type
    """Skip an unknown field: (position behind it, failure). A group is skipped whole."""
    # Groups (wire types 3 and 4) are deprecated but legal in unknown fields. Their field numbers stand on a stack,
    # because an end tag must match its start. The depth is bounded as in Google's parsers: a nesting bomb would
    # otherwise need memory in proportion to the record.
    open_groups = np.empty(_MOST_GROUPS, np.uint64)
    depth = 0
    while True:
        wire = tag & np.uint64(7)
        number = tag >> np.uint64(3)
        if number == np.uint64(0) or tag > np.uint64(0xFFFFFFFF):
            return at, BAD_TAG
        if wire == np.uint64(3):
            if depth == _MOST_GROUPS:
                return at, BAD_GROUP
            open_groups[depth] = number
            depth += 1
        elif wire == np.uint64(4):
            if depth == 0 or open_groups[depth - 1] != number:
                return at, BAD_GROUP
            depth -= 1
        elif wire == np.uint64(2):
            length, at = _behind_length(data, at, end)
            if at < 0:
                return at, ENDED
            at += length
        elif wire in (np.uint64(0), np.uint64(1), np.uint64(5)):
            _, at = _raw(data, at, end, wire)
            if at < 0:
                return at, ENDED
        else:
            return at, BAD_TAG
        if depth == 0:
            return at, 0
        tag, at = _short_varint(data, at, end)
        if at < 0:
            return at, ENDED


@njit(cache=True, nogil=True)
def _is_known(table: Int64Array, first: Integer, last: Integer, number: Integer) -> bool:
    """Whether a closed enum has this number; every number is known to other types."""
    if first == last:
        return True
    for i in range(first, last):  # noqa: SIM110 numba has no generators
        if table[i] == number:
            return True
    return False


@njit(cache=True, nogil=True)
def scan_messages(  # noqa: C901 one loop over tags; a call per tag would take all these arrays each time
    fields: Int64Array,
    table: Int64Array,
    data: ByteArray,
    starts: Int64Array,
    ends: Int64Array,
    bad: ByteArray,
    bad_field: Int32Array,
    numbers: Int64Array,
    sizes: IntegerArray,
    there: ByteArray,
    firsts: Int64Array,
    counts: Int64Array,
    bases: Int64Array,
    item_numbers: Int64Array,
    item_sizes: Int32Array,
    writes_items: bool,
) -> None:
    """Read the fields of all messages.

    1. A tag names a field. Fields mostly come in ascending order, so the one behind the last is tried first.
    2. A field that the type does not have, or with another wire type, is skipped, as every parser does.
    3. A single field takes its last value. A single message takes all its occurrences one behind the other: `there`
       counts them up to 2, and `firsts` tells where the first began (see `gather_field`).
    4. A field of a `oneof` takes away the others of it.
    5. Items of lists, packed or not, are counted by a first run; the second writes them behind `bases`.

    Args:
        fields: int64 [fields, 7], by ascending number.
        table: int64: numbers of closed enums.
        data: uint8: the bytes of all messages.
        starts: int64 [messages].
        ends: int64 [messages].
        bad: uint8 [messages]: 0, or why the message is bad; those that are not 0 at first are not read.
        bad_field: int32 [messages]: the field that failed, -1 if it is none that is known.
        numbers: int64 [slots, messages]: numbers, bits of floats, positions of bytes.
        sizes: int32 [slots, messages]: lengths of bytes.
        there: uint8 [slots, messages]: 1 for a value.
        firsts: int64 [slots, messages]: only of messages.
        counts: int64 [lists, messages]: items.
        bases: int64 [lists]: the first item of each list; moved behind the last one that was written.
        item_numbers: int64: as `numbers`.
        item_sizes: int32: as `sizes`.
        writes_items: False in the first run.
    """
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        failure: Integer = np.int64(bad[row])
        known = -1
        hint = 0
        while failure == 0 and at < end:
            begin = at
            known = -1
            # 1. The tag: field number and wire type.
            tag, at = _short_varint(data, at, end)
            if at < 0:
                failure = ENDED
                break
            number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
            if hint < len(fields) and fields[hint, NUMBER] == number:
                known = hint
            else:
                for i in range(len(fields)):
                    if fields[i, NUMBER] == number:
                        known = i
                        break
            # 2. An unknown field is skipped by its wire type, which needs no schema. This is how old readers accept new
            #    fields.
            if known < 0 or tag > np.uint64(0xFFFFFFFF):
                at, failure = _skip(data, at, end, tag)
                known = -1
                continue
            # Items of a list that is not packed follow each other under the same number; after any other field the next
            # one is expected.
            hint = known if fields[known, REPEATED] else known + 1
            kind, slot = fields[known, KIND], fields[known, SLOT]
            wanted = _wire_type(kind)
            first_enum, last_enum = fields[known, FIRST_ENUM], fields[known, LAST_ENUM]
            # 3. A packed list is accepted for every list of numbers, whatever the schema's `packed` option says, and an
            #    unpacked one as well: the specification requires both of parsers.
            if fields[known, REPEATED] and wire == 2 and wanted != 2:  # packed
                length, at = _behind_length(data, at, end)
                if at < 0:
                    failure = ENDED
                    break
                stop = at + length
                while at < stop:
                    raw, at = _raw(data, at, stop, wanted)
                    if at < 0:
                        failure = ENDED
                        break
                    value = _number(kind, raw)
                    # A closed enum (proto2) has no place for a number that it does not name. Parsers keep it among the
                    # unknown fields.
                    if not _is_known(table, first_enum, last_enum, value):
                        continue
                    if writes_items:
                        item_numbers[bases[slot]] = value
                        item_sizes[bases[slot]] = 0
                        bases[slot] += 1
                    else:
                        counts[slot, row] += 1
                continue
            # A known field number with another wire type counts as an unknown field; upb and Java do the same.
            if wire != wanted:
                at, failure = _skip(data, at, end, tag)
                continue
            if wire == 2:
                length, at = _behind_length(data, at, end)
                if at < 0:
                    failure = ENDED
                    break
                value = at
                at += length
            else:
                length = np.int64(0)
                raw, at = _raw(data, at, end, wire)
                if at < 0:
                    failure = ENDED
                    break
                value = _number(kind, raw)
                if not _is_known(table, first_enum, last_enum, value):
                    continue
            if fields[known, REPEATED]:
                if writes_items:
                    item_numbers[bases[slot]] = value
                    item_sizes[bases[slot]] = length
                    bases[slot] += 1
                else:
                    counts[slot, row] += 1
                continue
            # 4. Single fields were taken by the first run. The second run only writes items.
            if writes_items:
                continue
            oneof = fields[known, ONEOF]
            # 5. The last field of a `oneof` counts and removes the others.
            if oneof >= 0:
                for i in range(len(fields)):
                    if fields[i, ONEOF] == oneof and i != known:
                        there[fields[i, SLOT], row] = 0
            # 6. A single message may occur several times, and its occurrences are merged. Where the first began is
            #    remembered, so that `gather_field` needs to look at no byte before it.
            if kind == MESSAGE and there[slot, row] == 0:
                firsts[slot, row] = begin
            numbers[slot, row] = value
            sizes[slot, row] = length
            there[slot, row] = 2 if kind == MESSAGE and there[slot, row] else 1
        # 7. A bad message keeps nothing. In the second run it is not read at all, so it has no items to take back.
        if failure and not writes_items:
            bad[row] = failure
            bad_field[row] = known
            for slot in range(len(there)):
                there[slot, row] = 0
                numbers[slot, row] = 0
                sizes[slot, row] = 0
            for slot in range(len(counts)):
                counts[slot, row] = 0


@njit(cache=True, nogil=True)
def gather_field(
    data: ByteArray, at: Integer, end: Integer, number: Integer, target: ByteArray, writes: bool
) -> Integer:
    """Return the bytes that all occurrences of a message have together; write them to `target` if `writes`.

    Two messages one behind the other are read as one message with the fields of both. The bytes have been scanned, so
    they are sound.
    """
    total: Integer = 0
    while at < end:
        tag, at = _short_varint(data, at, end)
        if tag >> np.uint64(3) != np.uint64(number) or tag & np.uint64(7) != np.uint64(2):
            at, _ = _skip(data, at, end, tag)
            continue
        length, at = _behind_length(data, at, end)
        if writes:
            copy_bytes(target, total, data, at, length)
        total += length
        at += length
    return total


@njit(cache=True, nogil=True)
def read_message_indexes(
    data: ByteArray, starts: Int64Array, ends: Int64Array, paths: Int64Array, behind: Int64Array
) -> None:
    """Read the message indexes that follow the schema id in records of a registry: the path of a message in its file.

    Zigzag varints: how many there are, then each. None stands for the first message.

    Args:
        data: uint8.
        starts: int64 [rows].
        ends: int64 [rows].
        paths: int64 [rows, depth + 1]: how many, then each; what is not used stays as it is.
        behind: int64 [rows]: the position behind them; -1 if they cannot be read, or are more than `depth`.
    """
    for row in range(len(starts)):
        raw, at = _varint(data, starts[row], ends[row])
        count = _number(SINT64, raw)
        behind[row] = -1
        if at < 0 or count < 0 or count >= paths.shape[1]:
            continue
        # Confluent's serialiser writes the most frequent path, [0], as a count of zero.
        paths[row, 0] = max(count, 1)
        for i in range(count):
            raw, at = _varint(data, at, ends[row])
            if at < 0:
                break
            paths[row, i + 1] = _number(SINT64, raw)
        behind[row] = at
