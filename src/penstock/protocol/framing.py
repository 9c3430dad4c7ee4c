"""Frames: four bytes of length, then a request or a response. Bytes in, whole frames out."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.protocol.wire_errors import FrameTooLarge

__all__ = ["FrameBuffer"]

_LENGTH_BYTES = 4


class FrameBuffer:
    """Collects what a connection receives and gives out whole frames, without their length.

    A frame that announces more than `max_frame_bytes` (Kafka's `socket.request.max.bytes`), or a negative length,
    raises FrameTooLarge as soon as its length is known: nothing of it is collected.
    """

    __slots__ = ("_buffer", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self._buffer = bytearray()
        self.max_frame_bytes = max_frame_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def frames(self) -> Iterator[bytes]:
        """Whole frames in order; what is left stays for the next `feed`."""
        buffer = self._buffer
        position = 0
        try:
            while len(buffer) - position >= _LENGTH_BYTES:
                start = position + _LENGTH_BYTES
                length = int.from_bytes(buffer[position:start], "big", signed=True)
                if not 0 <= length <= self.max_frame_bytes:
                    raise FrameTooLarge(f"a frame of {length} bytes; at most {self.max_frame_bytes} are allowed")
                if len(buffer) - start < length:
                    return
                position = start + length
                with memoryview(buffer) as view:
                    frame = bytes(view[start:position])
                yield frame
        finally:
            # One cut for all frames taken: also when the reader stops between two of them.
            del buffer[:position]
