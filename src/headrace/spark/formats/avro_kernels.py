"""The loops that read and write Avro, compiled by numba: no Python object per record.

`run_program` reads records by a program that `avro_decoding` compiles from the writer's and the reader's schema: a
table of steps, one row each. Every value that is wanted goes to a *slot*, which has one entry per value: its number,
or where its bytes lie, and whether it is there. Slots outside of arrays and maps have one entry per record. The
encoding kernels write one column of values at the positions that their rows have reached.

Bytes come from strangers and numba checks no bounds: each read is behind a comparison with the record's end, each
loop consumes bytes or is bounded, and entries are counted by a first run where their number is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.njit import njit
from headrace.protocol.arrow_kernels import copy_bytes

if TYPE_CHECKING:
    from headrace.array_types import BoolArray, ByteArray, Int32Array, Int64Array, Integer, IntegerArray, UInt64Array


# Steps of a program: (step, slot, a, b). A slot of -1 skips the value.
END: Final = 0
LONG: Final = 1  # a: what it is multiplied by, b: 1 if it must fit into an int
BYTES: Final = 2  # length, then bytes
DOUBLE: Final = 3
FLOAT: Final = 4
BOOLEAN: Final = 5
FIXED: Final = 6  # a: number of bytes
ENUM: Final = 7  # a: first entry of `table`, b: number of symbols; the entry is what the slot gets, -1 is refused
UNION: Final = 8  # a: first entry of `table`, b: number of branches; the entry is the next step, -1 is refused
NULLS: Final = 9  # a, b: entries of `table` name the slots that get a null
PRESENT: Final = 10  # the slot's struct is there
JUMP: Final = 11  # a: next step
LOOP: Final = 12  # an array or a map begins
BLOCK: Final = 13  # a: the step behind the loop, b: 1 if an item may take no bytes
AGAIN: Final = 14  # a: the BLOCK of this loop

# Why a record is bad.
ENDED: Final = 1
LEFT_OVER: Final = 2
NO_SUCH_BRANCH: Final = 3
NOT_IN_RANGE: Final = 4
NEGATIVE_LENGTH: Final = 5
NOT_BOOLEAN: Final = 6
NO_SUCH_SYMBOL: Final = 7
UNRESOLVED: Final = 8
TOO_MANY_ITEMS: Final = 9

DEEPEST_LOOP: Final = 16
_MOST_EMPTY_ITEMS = 1 << 10  # in one block, of a type whose values take no bytes


@njit(cache=True, nogil=True)
def _varint(data: ByteArray, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Read a zigzag varint: (value, position behind it), the position -1 if it leaves the record or is too long."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.uint64(data[at])
    at += 1
    zigzag = byte & np.uint64(0x7F)
    shift = np.uint64(7)
    # At most ten bytes. The tenth holds bit 63 only; more bits of it would be shifted out silently.
    while byte >= np.uint64(0x80):
        if at >= end or shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), np.int64(-1)
        zigzag |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    # Zigzag: 0, 1, 2, 3 … stand for 0, -1, 1, -2 …, so small negative numbers are short as well.
    return np.int64(zigzag >> np.uint64(1)) ^ -np.int64(zigzag & np.uint64(1)), np.int64(at)


@njit(cache=True, nogil=True)
def _little_endian(data: ByteArray, at: Integer, width: Integer) -> Integer:
    value = np.uint64(0)
    for i in range(width):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return np.int64(value)


@njit(cache=True, nogil=True)
def run_program(  # noqa: C901 one loop over steps; a call per step would cost more than the step
    program: Int64Array,
    table: Int64Array,
    data: ByteArray,
    starts: Int64Array,
    ends: Int64Array,
    bases: Int64Array,
    filled: Int64Array,
    numbers: Int64Array,
    sizes: IntegerArray,
    there: ByteArray,
    bad: ByteArray,
    bad_step: Int32Array,
    writes: bool,
) -> None:
    """Read all records.

    1. Each record begins at `starts[row]` and must end exactly at `ends[row]`.
    2. Each step reads one value, or decides which step comes next.
    3. A record that cannot be read gives back the entries that it had made, and gets a null in every slot that lies
       outside of loops, so that those slots keep one entry per record.
    4. A run that writes after a run that counted does not begin to read such a record again: its entries were not
       counted, so there is no room for them.

    Args:
        program: int64 [steps, 4].
        table: int64: jump targets, enum entries and lists of slots.
        data: uint8: the bytes of all records.
        starts: int64 [rows].
        ends: int64 [rows].
        bases: int64 [slots]: the first entry of each slot in `numbers`, `sizes` and `there`.
        filled: int64 [slots]: how many entries each slot has; counted up here.
        numbers: int64: integers, the bits of floats, positions of bytes, lengths of lists.
        sizes: int32: lengths of bytes; 4 and 8 for the bits of a float and of a double, 0 for an integer.
        there: uint8: 1 for a value, 0 for null.
        bad: uint8 [rows]: 0, or why the record is bad; those that are not 0 at first are not read.
        bad_step: int32 [rows]: the step that failed.
        writes: False to count entries only.
    """
    # Entries are written in three places below, in the same lines. A function for it was measured: it takes all these
    # arrays with each call, and reading took six times as long; inlined by numba, three times.
    at: Integer
    number: Integer
    size: Integer
    slots = len(filled)
    before = np.empty(slots, np.int64)
    remaining = np.zeros(DEEPEST_LOOP + 1, np.int64)
    counted = np.zeros(DEEPEST_LOOP + 1, np.int64)
    nulls_at, nulls_end = program[0, 2], program[0, 3]  # step 0 is never run: it names the slots outside of loops
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        depth = 0
        step: Integer = np.int64(bad_step[row])
        failure: Integer = np.int64(bad[row])
        if failure == 0:
            step = 1
        # The entries before this record, to return to if it turns out to be bad.
        for slot in range(slots):
            before[slot] = filled[slot]
        while failure == 0:
            kind, slot, a, b = program[step, 0], program[step, 1], program[step, 2], program[step, 3]
            number, size, follows = np.int64(0), np.int64(0), step + 1
            if kind == LONG:
                number, behind = _varint(data, at, end)
                if behind < 0:
                    failure = ENDED
                    break
                at = behind
                # A schema's `int` has the same varints as its `long`, so the range is checked here.
                if b == 1 and (number > 2147483647 or number < -2147483648):
                    failure = NOT_IN_RANGE
                    break
                # Milliseconds become microseconds by this factor. The limit is compared before the product, which would
                # wrap around.
                if a != 1:
                    limit = np.int64(0x7FFFFFFFFFFFFFFF) // a
                    if number > limit or number < -limit:
                        failure = NOT_IN_RANGE
                        break
                    number *= a
            elif kind == BYTES:
                size, behind = _varint(data, at, end)
                if behind < 0:
                    failure = ENDED
                    break
                if size < 0:
                    failure = NEGATIVE_LENGTH
                    break
                if size > end - behind:
                    failure = ENDED
                    break
                number = behind
                at = behind + size
            # The branch decides which step is next. A branch of the writer that the reader's schema has no type for is
            # an error of the record that uses it, not of the schema (Avro specification, "Schema Resolution").
            elif kind == UNION:
                branch, behind = _varint(data, at, end)
                if behind < 0:
                    failure = ENDED
                    break
                if branch < 0 or branch >= b:
                    failure = NO_SUCH_BRANCH
                    break
                at, follows = behind, table[a + branch]
                if follows < 0:
                    failure = UNRESOLVED
                    break
            # A union took its null branch: every slot below the other branch gets a null, so that all slots of one loop
            # level keep the same number of entries.
            elif kind == NULLS:
                for i in range(a, b):
                    into = table[i]
                    if writes:
                        numbers[bases[into] + filled[into]] = 0
                        sizes[bases[into] + filled[into]] = 0
                        there[bases[into] + filled[into]] = 0
                    filled[into] += 1
            elif kind == JUMP:
                follows = a
            elif kind in (DOUBLE, FLOAT):
                width = 8 if kind == DOUBLE else 4
                if width > end - at:
                    failure = ENDED
                    break
                number, size = _little_endian(data, at, width), np.int64(width)
                at += width
            elif kind == BOOLEAN:
                if at >= end:
                    failure = ENDED
                    break
                number = np.int64(data[at])
                at += 1
                if number > 1:
                    failure = NOT_BOOLEAN
                    break
            elif kind == FIXED:
                if a > end - at:
                    failure = ENDED
                    break
                number, size = at, a
                at += a
            elif kind == ENUM:
                symbol, behind = _varint(data, at, end)
                if behind < 0:
                    failure = ENDED
                    break
                at = behind
                if symbol < 0 or symbol >= b:
                    failure = NO_SUCH_SYMBOL
                    break
                number = table[a + symbol]
                if number < 0:
                    failure = UNRESOLVED
                    break
            # Arrays and maps: blocks of items, each behind its number of items, until a block of none. `remaining` is
            # the rest of the current block, `counted` the items of all blocks so far, one entry per nested loop.
            elif kind == LOOP:
                depth += 1
                remaining[depth] = 0
                counted[depth] = 0
                step += 1
                continue  # its slot is filled by BLOCK, when the number of items is known
            elif kind == BLOCK:
                if remaining[depth] == 0:
                    items, behind = _varint(data, at, end)
                    if behind >= 0 and items < 0:  # then the block's size in bytes follows, for those who skip
                        items = -items
                        _, behind = _varint(data, behind, end)
                    if behind < 0:
                        failure = ENDED
                        break
                    at = behind
                    # Every item takes at least one byte, so more items than bytes are a lie, and are refused before
                    # memory is allocated for them. Items of types without bytes (null, empty records) are capped
                    # instead: else a record of ten bytes could ask for 2^63 items.
                    if items < 0 or (items > end - at and (b == 0 or items > _MOST_EMPTY_ITEMS)):
                        failure = TOO_MANY_ITEMS
                        break
                    remaining[depth] = items
                if remaining[depth] > 0:
                    step += 1
                    continue
                number, follows = counted[depth], a
                depth -= 1
            elif kind == AGAIN:
                remaining[depth] -= 1
                counted[depth] += 1
                follows = a
            # Bytes left over mean another schema than the writer's; a prefix that happens to decode is not trusted.
            elif kind == END:
                if at != end:
                    failure = LEFT_OVER
                break
            if slot >= 0:
                if writes:
                    entry = bases[slot] + filled[slot]
                    numbers[entry] = number
                    sizes[entry] = size
                    there[entry] = 1
                filled[slot] += 1
            step = follows
        # Undo of a bad record: see step 3 of the docstring. Its slots outside of loops get a null each, because Arrow
        # columns are built from them with one entry per record.
        if failure:
            bad[row] = failure
            bad_step[row] = step
            for slot in range(slots):
                filled[slot] = before[slot]
            for i in range(nulls_at, nulls_end):
                into = table[i]
                if writes:
                    numbers[bases[into] + filled[into]] = 0
                    sizes[bases[into] + filled[into]] = 0
                    there[bases[into] + filled[into]] = 0
                filled[into] += 1


@njit(cache=True, nogil=True)
def read_decimals(
    data: ByteArray, starts: Int64Array, sizes: IntegerArray, there: ByteArray, out: UInt64Array, fits: BoolArray
) -> None:
    """Big-endian two's complement of any length to 128-bit little-endian words; `fits` is False where 128 are too few.

    Args:
        data: uint8.
        starts: int64 [entries].
        sizes: int32 [entries].
        there: uint8 [entries].
        out: uint64 [entries, 2], low word first.
        fits: bool [entries].
    """
    for i in range(len(starts)):
        out[i, 0] = out[i, 1] = 0
        fits[i] = True
        if there[i] == 0 or sizes[i] == 0:
            continue
        at, end = starts[i], starts[i] + sizes[i]
        sign = np.uint8(255) if data[at] >= 128 else np.uint8(0)
        # Longer than 16 bytes is legal as long as the bytes in front only repeat the sign.
        while end - at > 16:
            if data[at] != sign:
                fits[i] = False
            at += 1
        # The first byte that is kept has to carry the same sign, or the value needs a 129th bit.
        if (data[at] >= 128) != (sign == 255):
            fits[i] = False
        # Start from the sign's bits: what is shorter than 16 bytes is sign-extended by shifting its bytes in from the
        # right.
        low = high = np.uint64(0xFFFFFFFFFFFFFFFF) if sign == 255 else np.uint64(0)
        while at < end:
            high = (high << np.uint64(8)) | (low >> np.uint64(56))
            low = (low << np.uint64(8)) | np.uint64(data[at])
            at += 1
        out[i, 0], out[i, 1] = low, high


@njit(cache=True, nogil=True)
def add_varint_sizes(values: IntegerArray, sizes: IntegerArray) -> None:
    """Add the encoded length of each value to `sizes`."""
    for i in range(len(values)):
        zigzag = np.uint64((values[i] << 1) ^ (values[i] >> 63))
        sizes[i] += 1
        while zigzag >= np.uint64(0x80):
            zigzag >>= np.uint64(7)
            sizes[i] += 1


@njit(cache=True, nogil=True)
def write_varints(values: IntegerArray, at: Int64Array, target: ByteArray) -> None:
    """Write each value at its position, and move the position behind it."""
    for i in range(len(values)):
        zigzag = np.uint64((values[i] << 1) ^ (values[i] >> 63))
        position = at[i]
        while zigzag >= np.uint64(0x80):
            target[position] = np.uint8((zigzag & np.uint64(0x7F)) | np.uint64(0x80))
            position += 1
            zigzag >>= np.uint64(7)
        target[position] = np.uint8(zigzag)
        at[i] = position + 1


@njit(cache=True, nogil=True)
def write_words(words: UInt64Array, width: int, at: Int64Array, target: ByteArray) -> None:
    """Write `width` bytes of each value, low byte first, and move the position behind them."""
    for i in range(len(words)):
        word = np.uint64(words[i])
        for j in range(width):
            target[at[i] + j] = np.uint8((word >> np.uint64(8 * j)) & np.uint64(0xFF))
        at[i] += width


@njit(cache=True, nogil=True)
def write_bytes(data: ByteArray, offsets: IntegerArray, at: Int64Array, target: ByteArray) -> None:
    """Write the bytes between each two offsets, and move the position behind them."""
    for i in range(len(at)):
        size = offsets[i + 1] - offsets[i]
        copy_bytes(target, at[i], data, offsets[i], size)
        at[i] += size


@njit(cache=True, nogil=True)
def decimal_sizes(words: UInt64Array, sizes: IntegerArray) -> None:
    """The least number of bytes of each 128-bit value in two's complement, as `BigInteger.toByteArray` makes them."""
    for i in range(len(words)):
        sizes[i] = 16
        sign = np.uint64(255) if words[i, 1] >> np.uint64(63) else np.uint64(0)
        # A leading byte is redundant if it only repeats the sign and the next byte has the sign's bit as well.
        while sizes[i] > 1:
            lead = _byte_of(words, i, sizes[i] - 1)
            following = _byte_of(words, i, sizes[i] - 2)
            if lead != sign or (following >> np.uint64(7)) != (sign >> np.uint64(7)):
                break
            sizes[i] -= 1


@njit(cache=True, nogil=True)
def write_decimals(words: UInt64Array, sizes: IntegerArray, at: Int64Array, target: ByteArray) -> None:
    """Write the lowest `sizes[i]` bytes of each 128-bit value, high byte first; more than 16 repeat the sign."""
    for i in range(len(words)):
        sign = np.uint64(255) if words[i, 1] >> np.uint64(63) else np.uint64(0)
        for j in range(sizes[i]):
            low = sizes[i] - 1 - j
            target[at[i] + j] = np.uint8(_byte_of(words, i, low)) if low < 16 else np.uint8(sign)
        at[i] += sizes[i]


@njit(cache=True, nogil=True)
def _byte_of(words: UInt64Array, i: Integer, index: Integer) -> Integer:
    if index < 8:
        return (words[i, 0] >> np.uint64(8 * index)) & np.uint64(0xFF)
    return (words[i, 1] >> np.uint64(8 * (index - 8))) & np.uint64(0xFF)
