"""Small batches whose records are laid out alike, looked at whole: a column of bytes is one slice and one comparison.

A producer of records of one length sends one layout again and again, so those found are remembered, and what is left to
do is to compare. A larger batch, whose offset deltas have more than one byte, is `record_walk`'s.
"""

from __future__ import annotations

from headrace.storage.record_at import fields_at, record_at

__all__ = ["FEWEST_ALIKE", "timestamps_if_alike"]

FEWEST_ALIKE = 3  # in a batch, that one look at all of them costs less than one at each
_OFFSET_DELTAS = bytes(2 * index for index in range(64))  # those of one byte, as varints
# Where in a batch the timestamps are, and what must be where else: column by column, every byte that is not a key's, a
# value's or a record's attributes.
_Layout = tuple[slice, tuple[tuple[slice, bytes], ...]]
_layouts: dict[tuple[int, int, int], _Layout] = {}  # those seen: of so many bytes, so many records, from there on
_MOST_LAYOUTS = 64


def timestamps_if_alike(section: bytes, count: int, position: int = 0) -> bytes:
    """The timestamp deltas, a byte each as they are encoded, where `count` records fill the section from `position` on,
    are laid out as the first of them, and are sound inside; b"" where a closer look is needed to tell.

    Raises ValueError, IndexError when the first is not sound.
    """
    size = len(section)
    layout = _layouts.get((size, count, position))
    if layout is not None:  # mostly a batch is laid out as another was, and then nothing of it has to be found out
        timestamps = _timestamps(section, layout)
        if timestamps:
            return timestamps
    if (size - position) % count or count > len(_OFFSET_DELTAS):
        return b""
    layout = _layout(section, count, position)
    if layout is None or not (timestamps := _timestamps(section, layout)):
        return b""
    if len(_layouts) >= _MOST_LAYOUTS:
        _layouts.clear()
    _layouts[size, count, position] = layout
    return timestamps


def _layout(section: bytes, count: int, position: int) -> _Layout | None:
    """That of the first record, for all. Raises ValueError, IndexError."""
    stride = (len(section) - position) // count
    _, _, key, value, end = record_at(section, position)
    timestamp, offset, key_length, value_length, headers = fields_at(section, position, key, value)
    if offset != timestamp + 1 or key_length != offset + 1:  # of a byte each
        return None
    if end - position != stride or section[headers] or headers + 1 != end:
        return None
    same = (*range(position, timestamp - 1), *range(key_length, value_length - max(key, 0)))
    same = (*same, *range(value_length, headers - max(value, 0)), headers)
    columns = [(at, section[at : at + 1] * count) for at in same]
    columns.append((offset, _OFFSET_DELTAS[:count]))
    return slice(timestamp, None, stride), tuple((slice(at, None, stride), column) for at, column in columns)


def _timestamps(section: bytes, layout: _Layout) -> bytes:
    """Of the records of a batch, each a byte; b"" where they are not laid out like this."""
    column, others = layout
    for where, expected in others:
        if section[where] != expected:
            return b""
    timestamps = section[column]
    return timestamps if timestamps.isascii() else b""  # an encoded byte below 0x80 is a whole number
