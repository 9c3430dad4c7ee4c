"""What can be wrong with bytes. No user meets them: the broker answers or closes, the client retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.protocol.request_codec import RequestHeader

__all__ = [
    "CorruptBatch",
    "FrameTooLarge",
    "MalformedRequest",
    "MalformedResponse",
    "OversizedRequest",
    "UnsupportedVersion",
    "WireError",
]


class WireError(ValueError):
    """The root of what this room raises."""


class FrameTooLarge(WireError):
    """A frame announces more bytes than allowed, or a negative number of them. The stream cannot be read on."""


class MalformedRequest(WireError):
    """Bytes that are no request. `header` is None where not even the header could be read."""

    def __init__(self, header: RequestHeader | None, why: str) -> None:
        super().__init__(why)
        self.header = header
        self.why = why


class OversizedRequest(MalformedRequest):
    """A readable header, and more items behind it than the broker takes. Nothing of the request was decoded."""

    header: RequestHeader


class UnsupportedVersion(WireError):
    """A readable header with an API or a version we do not speak. Kafka answers ApiVersions, closes on others."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"API {header.api_key} version {header.api_version} is not supported")
        self.header = header


class MalformedResponse(WireError):
    """Bytes that are no response to the request they should answer."""


class CorruptBatch(WireError):
    """A record batch that fails its CRC or contradicts itself. `base_offset` names it (-1: unknown)."""

    def __init__(self, why: str, *, base_offset: int = -1) -> None:
        super().__init__(f"the record batch at offset {base_offset} is corrupt: {why}" if base_offset >= 0 else why)
        self.why = why
        self.base_offset = base_offset
