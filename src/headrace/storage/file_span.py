"""Bytes of a file that nobody has read yet: what a fetch hands to the kernel instead of copying it.

A `FileSpan` keeps the descriptor of its file open, also when the file is closed, removed or exchanged meanwhile: what
was found is what is sent. Logs are only appended to, so the bytes of a span never change.
"""

from __future__ import annotations

import os

__all__ = ["Descriptor", "FileSpan", "read_whole"]


class Descriptor:
    """A descriptor of the operating system, shared by a file and the spans of it; closed with the last of them."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class FileSpan:
    """`size` bytes from `position` on. Counts as its bytes where only their number is asked."""

    __slots__ = ("descriptor", "position", "size")

    def __init__(self, descriptor: Descriptor, position: int, size: int) -> None:
        self.descriptor = descriptor
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """All of it, fewer bytes where the file ends. Raises OSError."""
        return read_whole(self.descriptor.number, self.size, self.position)


def read_whole(number: int, size: int, position: int) -> bytes:
    """`size` bytes of an open file, fewer only at its end. Raises OSError."""
    data = os.pread(number, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]  # Linux stops a single read at 2 GiB - 4 KiB, a signal earlier
    got = len(data)
    while got < size and (data := os.pread(number, size - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)
