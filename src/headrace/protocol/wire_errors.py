"""Request headers, and the errors of decoding.

Users do not see these errors: the broker answers with an error code or closes the connection, the client retries.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CorruptBatch",
    "FrameTooLarge",
    "MalformedRequest",
    "MalformedResponse",
    "OversizedRequest",
    "RequestHeader",
    "UnsupportedVersion",
    "WireError",
]


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
