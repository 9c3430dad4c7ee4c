"""Framing of the Kafka protocol: four bytes of length, then a request or a response; request headers; decoding errors.

Users do not see these errors: the broker answers with an error code or closes the connection, the client retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "CorruptBatch",
    "FrameBuffer",
    "FrameTooLarge",
    "MalformedRequest",
    "MalformedResponse",
    "OversizedRequest",
    "RequestHeader",
    "RequestMessage",
    "UnsupportedVersion",
    "WireError",
]


class RequestMessage(Protocol):
    """A request message: the newest class of its API."""

    @property
    def __api_key__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """The header of a request. `api_key` may be a number that is not an ApiKey (see UnsupportedVersion)."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class WireError(ValueError):
    """Base class of all errors that decoding raises."""


class FrameTooLarge(WireError):
    """A frame announces more bytes than allowed, or a negative number of them. The stream cannot be read on."""


class MalformedRequest(WireError):
    """Bytes that are not a request. `header` is None if the header could not be read either."""

    def __init__(self, header: RequestHeader | None, why: str) -> None:
        super().__init__(why)
        self.header = header
        self.why = why


class OversizedRequest(MalformedRequest):
    """A request with more items than the broker accepts. Its header was read, nothing else was decoded."""

    header: RequestHeader


class UnsupportedVersion(WireError):
    """A request of an unsupported API or version. As in Kafka, ApiVersions is answered; others close the connection."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"API {header.api_key} version {header.api_version} is not supported")
        self.header = header


class MalformedResponse(WireError):
    """Bytes that are not a response to the request they should answer."""


class CorruptBatch(WireError):
    """A record batch that fails its CRC or contradicts itself. `base_offset` names it (-1: unknown)."""

    def __init__(self, why: str, *, base_offset: int = -1) -> None:
        super().__init__(f"the record batch at offset {base_offset} is corrupt: {why}" if base_offset >= 0 else why)
        self.why = why
        self.base_offset = base_offset


_LENGTH_BYTES = 4
# Joining costs a copy; above this size a list entry is cheaper.
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
        """Append received bytes. They are not copied, so the caller must not change them afterwards."""
        held = self._held
        # Small pieces are joined, or a client that sends byte by byte would cost one Python object per byte.
        if held and len(held[-1]) < _SMALL_PIECE:
            held[-1] = b"".join((held[-1], data))
        else:
            held.append(data)
        self._held_bytes += len(data)

    @property
    def buffered_bytes(self) -> int:
        return self._held_bytes

    def frames(self) -> Iterator[bytes]:
        """Yield the whole frames in order, without their lengths. The rest stays for the next `feed`.

        Raises:
            FrameTooLarge: a length is negative or above `max_frame_bytes`. The stream cannot be read any further.
        """
        # The length of an incomplete frame is remembered in `_wanted_bytes`. Until that many bytes have arrived there
        # is nothing to do, so a frame of n pieces is joined once and not n times.
        if self._held_bytes < max(self._wanted_bytes, _LENGTH_BYTES):
            return
        data, position, first = self._joined()
        size = len(data)
        self._wanted_bytes = 0
        try:
            if first is not None:
                yield first
            while size - position >= _LENGTH_BYTES:
                start = position + _LENGTH_BYTES
                length = int.from_bytes(data[position:start], "big", signed=True)
                # As soon as the four bytes are there: the frame itself is never collected.
                if not 0 <= length <= self.max_frame_bytes:
                    raise FrameTooLarge(f"a frame of {length} bytes; at most {self.max_frame_bytes} are allowed")
                if size - start < length:
                    self._wanted_bytes = _LENGTH_BYTES + length
                    return
                position = start + length
                yield bytes(data[start:position])
        finally:
            # Cut the buffer once for all frames taken, also when the caller stops iterating between two of them.
            self._held = [data[position:]] if position < size else []
            self._held_bytes = size - position

    def _joined(self) -> tuple[bytes | bytearray | memoryview, int, bytes | None]:
        """Return the buffer with the frames, the position of its first whole frame, and a frame cut over pieces.

        Only the frame that is cut over several pieces is joined. All further frames lie in the last piece already, so
        a large request is copied once, however many pieces it arrived in.
        """
        # Cost: a frame of n bytes is copied once, however many pieces it came in. The rejected alternative, one
        # bytearray to which pieces are appended, copies the rest of the buffer with every frame that is cut off its
        # front.
        held = self._held
        if len(held) == 1:
            return held[0], 0, None
        last = held[-1]
        end = self._wanted_bytes - (self._held_bytes - len(last))
        if not self._wanted_bytes or end < 0:
            return b"".join(held), 0, None
        return last, end, b"".join((memoryview(held[0])[_LENGTH_BYTES:], *held[1:-1], memoryview(last)[:end]))
