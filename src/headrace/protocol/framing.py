"""Frames: four bytes of length, then a request or a response. Bytes in, whole frames out."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.protocol.wire_errors import FrameTooLarge

__all__ = ["FrameBuffer"]

_LENGTH_BYTES = 4
_SMALL_PIECE = 4096


class FrameBuffer:
    """Collects what a connection receives and gives out whole frames, without their length.

    A frame that announces more than `max_frame_bytes` (Kafka's `socket.request.max.bytes`), or a negative length,
    raises FrameTooLarge as soon as its length is known: nothing of it is collected.
    """

    __slots__ = ("_held", "_held_bytes", "_wanted_bytes", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._held: list[bytes | bytearray | memoryview] = []
        self._held_bytes = 0
        self._wanted_bytes = 0
        self.max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """What is fed is kept as it is until its frames are whole, so it must not change."""
        held = self._held
        if held and len(held[-1]) < _SMALL_PIECE:  # who sends byte by byte must not cost an object for each
            held[-1] = b"".join((held[-1], data))
        else:
            held.append(data)
        self._held_bytes += len(data)

    @property
    def buffered_bytes(self) -> int:
        return self._held_bytes

    def frames(self) -> Iterator[bytes]:
        """Whole frames in order; what is left stays for the next `feed`."""
        if self._held_bytes < max(self._wanted_bytes, _LENGTH_BYTES):
            return  # pieces of a large frame are put together once, when the last is here
        data, position, first = self._joined()
        size = len(data)
        self._wanted_bytes = 0
        try:
            if first is not None:
                yield first
            while size - position >= _LENGTH_BYTES:
                start = position + _LENGTH_BYTES
                length = int.from_bytes(data[position:start], "big", signed=True)
                if not 0 <= length <= self.max_frame_bytes:
                    raise FrameTooLarge(f"a frame of {length} bytes; at most {self.max_frame_bytes} are allowed")
                if size - start < length:
                    self._wanted_bytes = _LENGTH_BYTES + length
                    return
                position = start + length
                yield bytes(data[start:position])
        finally:
            # One cut for all frames taken: also when the reader stops between two of them.
            self._held = [data[position:]] if position < size else []
            self._held_bytes = size - position

    def _joined(self) -> tuple[bytes | bytearray | memoryview, int, bytes | None]:
        """What holds the frames, where they begin there, and a first one out of several pieces.

        Of those only that one is put together: the others lie whole in the last piece.
        """
        held = self._held
        if len(held) == 1:
            return held[0], 0, None
        last = held[-1]
        end = self._wanted_bytes - (self._held_bytes - len(last))
        if not self._wanted_bytes or end < 0:
            return b"".join(held), 0, None
        return last, end, b"".join((memoryview(held[0])[_LENGTH_BYTES:], *held[1:-1], memoryview(last)[:end]))
