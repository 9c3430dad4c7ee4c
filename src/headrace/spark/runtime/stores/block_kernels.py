"""The compiled loops behind `store_blocks.py`: finding entries in blocks, and blocks with new entries.

A block is a run of entries in the order of their names:

    u16 size of the name · u32 size of the value · name · value        (little endian, nothing between entries)

All loops are merges of two ordered lists, the names of a micro-batch and the entries of the blocks they fall into, so
each byte is looked at once. Names and values come as Arrow lays them out: one buffer, where each begins, how long it
is. Bytes are indexed by unsigned numbers: numba asks of each signed one whether it counts from the end, three times as
slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.byte_spans import Bytes, Positions


__all__ = [
    "ENTRY_HEADER",
    "block_of_each",
    "cut",
    "entries_under",
    "is_in_order",
    "list_names",
    "look_up",
    "rewrite",
    "warm_up",
]

ENTRY_HEADER = 6


@njit(cache=True, nogil=True)
def _compare(left: Bytes, left_at: int, left_size: int, right: Bytes, right_at: int, right_size: int) -> Any:
    """Compare two byte strings like memcmp; a prefix sorts first. Returns a negative number, zero or a positive one."""
    for at in range(min(left_size, right_size)):
        # As in the module docstring: an unsigned index saves numba's test for negative ones.
        here, there = left[np.uint64(left_at + at)], right[np.uint64(right_at + at)]
        if here != there:
            return np.int64(here) - np.int64(there)
    return left_size - right_size


@njit(cache=True, nogil=True)
def is_in_order(data: Bytes, starts: Positions, sizes: Positions) -> bool:
    """Whether each name is greater than the one before it."""
    for row in range(1, len(starts)):
        if _compare(data, starts[row - 1], sizes[row - 1], data, starts[row], sizes[row]) >= 0:
            return False
    return True


@njit(cache=True, nogil=True)
def block_of_each(
    data: Bytes, starts: Positions, sizes: Positions, first_data: Bytes, first_starts: Positions, first_sizes: Positions
) -> Positions:
    """Return for each name the last block that begins at or before it. Names and first names are sorted.

    No name lies before the first block. The step from one name to the next is doubled until it is too far (galloping).
    """
    found = np.empty(len(starts), np.int64)
    block, blocks = 0, len(first_starts)
    for row in range(len(starts)):
        # 1. Gallop from the previous answer: names are sorted, so the next block is usually the same or near. O(log
        #    distance) instead of O(log blocks), without the cost of a linear scan when few names meet many blocks.
        step = 1
        low, high = block, blocks  # the answer is in [low, high)
        while low + step < high:
            beyond = low + step
            if _compare(first_data, first_starts[beyond], first_sizes[beyond], data, starts[row], sizes[row]) > 0:
                high = beyond
                break
            low = beyond
            step *= 2
        # 2. Binary search between the last two steps.
        while low + 1 < high:
            middle = (low + high) // 2
            if _compare(first_data, first_starts[middle], first_sizes[middle], data, starts[row], sizes[row]) > 0:
                high = middle
            else:
                low = middle
        block = low
        found[row] = block
    return found


@njit(cache=True, nogil=True)
def _name_size(blocks: Bytes, at: int) -> Any:
    return np.int64(blocks[np.uint64(at)]) | np.int64(blocks[np.uint64(at + 1)]) << 8


@njit(cache=True, nogil=True)
def _entry_bytes(blocks: Bytes, at: int, end: int) -> int:
    """Return the size of an entry. Raises ValueError if it extends beyond the end of its block."""
    if at + ENTRY_HEADER > end:
        raise ValueError("an entry of a block is cut off")
    value_size = (
        np.int64(blocks[np.uint64(at + 2)])
        | np.int64(blocks[np.uint64(at + 3)]) << 8
        | np.int64(blocks[np.uint64(at + 4)]) << 16
        | np.int64(blocks[np.uint64(at + 5)]) << 24
    )
    size = ENTRY_HEADER + _name_size(blocks, at) + value_size
    if at + size > end:
        raise ValueError("an entry of a block is cut off")
    return size


@njit(cache=True, nogil=True)
def look_up(
    data: Bytes, starts: Positions, sizes: Positions, block_at: Positions, blocks: Bytes, bounds: Positions
) -> tuple[Positions, Positions]:
    """Return the start of each name's value in `blocks` and its size; -1 if the name is not there.

    `blocks[bounds[i]:bounds[i + 1]]` is block i, `block_at` says which one a name falls into. Raises ValueError.
    """
    value_starts, value_sizes = np.zeros(len(starts), np.int64), np.full(len(starts), -1, np.int64)
    block, at, end = -1, 0, 0
    for row in range(len(starts)):
        # 1. Names and entries are both sorted, so within one block the scan continues at the entry where the last name
        #    stopped, and a block is read once for all its names.
        if block_at[row] != block:
            block = block_at[row]
            at, end = bounds[block], bounds[block + 1]
        while at < end:
            size, name_size = _entry_bytes(blocks, at, end), _name_size(blocks, at)
            order = _compare(blocks, at + ENTRY_HEADER, name_size, data, starts[row], sizes[row])
            # 2. The entry is behind the name: the store does not hold it. The next name is compared with the same
            #    entry.
            if order > 0:
                break
            if order == 0:
                value_starts[row] = at + ENTRY_HEADER + name_size
                value_sizes[row] = size - ENTRY_HEADER - name_size
                break
            at += size
    return value_starts, value_sizes


@njit(cache=True, nogil=True)
def list_names(blocks: Bytes, first: Bytes, end: Bytes) -> tuple[Positions, Positions]:
    """Return where the names from `first` to before `end` begin in `blocks`, and their sizes. Raises ValueError."""
    # No entry is shorter than its header, which bounds their number without a first pass.
    room = len(blocks) // ENTRY_HEADER
    starts, sizes, count = np.empty(room, np.int64), np.empty(room, np.int64), 0
    at = 0
    while at < len(blocks):
        size, name_size, name_at = _entry_bytes(blocks, at, len(blocks)), _name_size(blocks, at), at + ENTRY_HEADER
        if (
            _compare(blocks, name_at, name_size, first, 0, len(first)) >= 0
            and _compare(blocks, name_at, name_size, end, 0, len(end)) < 0
        ):
            starts[count], sizes[count] = name_at, name_size
            count += 1
        at += size
    return starts[:count], sizes[:count]


@njit(cache=True, nogil=True)
def entries_under(
    data: Bytes, starts: Positions, sizes: Positions, blocks: Bytes
) -> tuple[Positions, Positions, Positions, Positions]:
    """Return for each entry under a prefix the number of the prefix, the place of its value, and the sizes of its name
    and its value. The name is in front of the value.

    An entry is under a prefix if its name begins with it. Prefixes are sorted, and none begins with another one.
    Raises ValueError.
    """
    # 1. Count first: a bound by the size of the blocks would be many times the size of the result.
    entries, at = 0, 0
    while at < len(blocks):
        at += _entry_bytes(blocks, at, len(blocks))
        entries += 1
    prefixes = np.empty(entries, np.int64)
    value_starts, value_sizes = np.empty(entries, np.int64), np.empty(entries, np.int64)
    name_sizes = np.empty(entries, np.int64)
    # 2. A merge of two sorted lists. Only as many bytes of a name are compared as the prefix has.
    found, row, at = 0, 0, 0
    while at < len(blocks) and row < len(starts):
        size, name_size = _entry_bytes(blocks, at, len(blocks)), _name_size(blocks, at)
        order = _compare(blocks, at + ENTRY_HEADER, min(name_size, sizes[row]), data, starts[row], sizes[row])
        if order > 0:
            row += 1
            continue
        if order == 0:
            prefixes[found] = row
            value_starts[found] = at + ENTRY_HEADER + name_size
            name_sizes[found] = name_size
            value_sizes[found] = size - ENTRY_HEADER - name_size
            found += 1
        at += size
    return prefixes[:found], value_starts[:found], name_sizes[:found], value_sizes[:found]


@njit(cache=True, nogil=True)
def _copy(target: Bytes, at: int, source: Bytes, start: int, size: int) -> None:
    for step in range(size):
        target[np.uint64(at + step)] = source[np.uint64(start + step)]


@njit(cache=True, nogil=True)
def _put_entry(
    target: Bytes, at: int, names: Bytes, name_start: int, name_size: int, values: Bytes, value_start: int, size: int
) -> int:
    """Write one entry at `at`, and return the position after it."""
    target[np.uint64(at)], target[np.uint64(at + 1)] = name_size & 255, name_size >> 8
    for byte in range(4):
        target[np.uint64(at + 2 + byte)] = (size >> (8 * byte)) & 255
    _copy(target, at + ENTRY_HEADER, names, name_start, name_size)
    _copy(target, at + ENTRY_HEADER + name_size, values, value_start, size)
    return at + ENTRY_HEADER + name_size + size


@njit(cache=True, nogil=True)
def rewrite(
    data: Bytes,
    starts: Positions,
    sizes: Positions,
    block_at: Positions,
    values: Bytes,
    value_starts: Positions,
    value_sizes: Positions,
    blocks: Bytes,
    bounds: Positions,
) -> tuple[Bytes, Positions, int, int]:
    """Merge values into blocks: (new blocks, their bounds, number of entries, number of entries before).

    A value of size -1 takes the entry away. A block may be empty afterwards, or longer than a block should be. Raises
    ValueError when a block is none.
    """
    # 1. One allocation for the worst case: every name is new and nothing is deleted. Growing the target would copy it
    #    again.
    room = len(blocks) + len(starts) * ENTRY_HEADER
    for row in range(len(starts)):
        room += sizes[row] + max(0, value_sizes[row])
    target, target_bounds = np.empty(room, np.uint8), np.zeros(len(bounds), np.int64)
    # 2. A merge of two sorted lists, names and entries. Unchanged entries are copied as runs (`kept` to `at`): when
    #    few names change, the cost is that of a memcpy and not of parsing each entry twice.
    to, row, before, after = 0, 0, 0, 0
    for block in range(len(bounds) - 1):
        at, end = bounds[block], bounds[block + 1]
        kept = at  # entries from here to `at` stay as they are, and are copied in one piece
        while row < len(starts) and block_at[row] == block:
            order, size = 1, 0
            if at < end:
                size = _entry_bytes(blocks, at, end)
                name_size = _name_size(blocks, at)
                order = _compare(blocks, at + ENTRY_HEADER, name_size, data, starts[row], sizes[row])
                if order <= 0:
                    before += 1
            # 3. An old entry before the next name: leave it in the current run.
            if order < 0:
                after += 1
                at += size
                continue
            # 4. The place of the name: write the run before it, skip the old value if there is one, then write the new
            #    value. A deletion writes nothing.
            _copy(target, to, blocks, kept, at - kept)
            to += at - kept
            if order == 0:
                at += size
            kept = at
            if value_sizes[row] >= 0:
                to = _put_entry(target, to, data, starts[row], sizes[row], values, value_starts[row], value_sizes[row])
                after += 1
            row += 1
        # 5. The rest of the block. Entries are still parsed one by one, because a damaged length must be found before
        #    it is copied into a block with a valid checksum.
        while at < end:
            at += _entry_bytes(blocks, at, end)
            before += 1
            after += 1
        _copy(target, to, blocks, kept, at - kept)
        to += at - kept
        target_bounds[block + 1] = to
    return target[:to], target_bounds, after, before


@njit(cache=True, nogil=True)
def cut(
    blocks: Bytes, bounds: Positions, entries: int, limit: int, filled: int, gap: int
) -> tuple[Bytes, Positions, Positions]:
    """Cut blocks into pieces: (pieces with a gap before each, start of each gap, block of each piece).

    Blocks longer than `limit` are cut at about `filled` bytes. An entry that is longer than that has a piece of its
    own. An empty block has no piece. The last place is the end.
    """
    # At most one piece per entry, and the end.
    begins, owners, count = np.empty(entries + 1, np.int64), np.empty(entries, np.int64), 0
    for block in range(len(bounds) - 1):
        at, end = bounds[block], bounds[block + 1]
        total = end - at
        # 1. Pieces of equal size instead of full ones and a rest: a rest of a few bytes would be a block of its own,
        #    read and sealed like any other.
        wanted = total if total <= limit else total // ((total + filled - 1) // filled)
        begun = at
        while at < end:
            size = _entry_bytes(blocks, at, end)
            # 2. A piece ends when it reached its size, or when the next entry would make it longer than `limit`. `at >
            #    begun` keeps an entry that is longer than the limit from ending a piece before it began.
            if at == bounds[block] or (at > begun and (at - begun >= wanted or at + size - begun > limit)):
                begins[count], owners[count] = at, block
                count += 1
                begun = at
            at += size
    begins[count] = len(blocks)
    # 3. Copy with a gap before each piece, for its checksum.
    pieces = np.empty(len(blocks) + count * gap, np.uint8)
    for piece in range(count):
        size = begins[piece + 1] - begins[piece]
        _copy(pieces, begins[piece] + (piece + 1) * gap, blocks, begins[piece], size)
    return pieces, begins[: count + 1] + gap * np.arange(count + 1), owners[:count]


def warm_up() -> None:
    """Compile, or load from the cache."""
    names, places, none = np.frombuffer(b"k", np.uint8), np.zeros(1, np.int64), np.zeros(0, np.uint8)
    ones, bounds = np.ones(1, np.int64), np.zeros(2, np.int64)
    is_in_order(names, places, ones)
    block_of_each(names, places, ones, names, places, ones)
    look_up(names, places, ones, places, none, bounds)
    list_names(names[:0], names, names)
    entries_under(names, places, ones, names[:0])
    blocks, bounds, entries, _ = rewrite(names, places, ones, places, names, places, ones, none, bounds)
    cut(blocks, bounds, entries, 100, 100, 1)
