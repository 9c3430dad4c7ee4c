"""Decoding and encoding of requests and responses, for the broker and the client.

A frame is decoded to a header and a message. Messages are always of the newest class of their API (see `messages`);
`version_conversion` converts from and to the version on the wire, so no other package deals with versions. Decoding
raises WireError for any malformed input, and nothing else.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import UnexpectedNull

from headrace.protocol import array_bounds, fast_path, version_conversion
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.array_bounds import strip_tagged_fields
from headrace.protocol.framing import (
    MalformedRequest,
    MalformedResponse,
    OversizedRequest,
    RequestHeader,
    UnsupportedVersion,
)
from headrace.protocol.member_bytes import MemberBytes

if TYPE_CHECKING:
    from kio.static.protocol import Payload

    from headrace.protocol import messages as m

__all__ = [
    "MalformedRequest",
    "MalformedResponse",
    "OversizedRequest",
    "RequestHeader",
    "UnsupportedVersion",
    "decode_header",
    "decode_request",
    "decode_response",
    "encode_pieces",
    "encode_request",
    "encode_response",
    "peek_api_key",
]

_FIXED_HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")
_NO_CLIENT_ID = -1
_NO_TAGGED_FIELDS = b"\x00"
_MEMBER_BYTES = MemberBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codec:
    """Reader and writer of one message class in one version."""

    schema: type[Payload]
    read: Callable[[bytes, int], tuple[object, int]]
    write: Callable[..., None]  # (buffer, message): any object with the attributes of the message is written
    walk: array_bounds.Walk | None  # None: the message has no arrays
    tagged_header: bool  # the header carries tagged fields (request header v2, response header v1)


@cache
def _codec(api_key: ApiKey, api_version: int, kind: str) -> _Codec:
    schema = version_conversion.message_class(api_key, api_version, kind)
    return _Codec(
        schema=schema,
        read=entity_reader(schema),
        write=entity_writer(schema),
        walk=array_bounds.array_walk(schema),
        tagged_header=version_conversion.has_flexible_header(schema),
    )


def peek_api_key(frame: bytes) -> int | None:
    """Return the API key of a request without decoding it, or None for a frame that is too short."""
    return int.from_bytes(frame[:2], "big", signed=True) if len(frame) >= _FIXED_HEADER.size else None


def decode_header(frame: bytes) -> RequestHeader:
    """Return the header alone. Raises UnsupportedVersion and MalformedRequest as `decode_request` does."""
    header, _ = _decode_header(frame)
    _check_version(header)
    return header


def decode_request(frame: bytes, most_items: int = sys.maxsize) -> tuple[RequestHeader, object]:
    """Decode one request.

    Bytes after the request are ignored, as Kafka does.

    Args:
        frame: one request without its length.
        most_items: limit of the items that all arrays and tagged fields of the request have together.

    Returns:
        The header, and the request as an object of the newest class of its API.

    Raises:
        UnsupportedVersion: the API or its version is outside SUPPORTED.
        OversizedRequest: there are more than `most_items` items. No object was built.
        MalformedRequest: anything else is wrong with the bytes.
    """
    # 1. The header is read by hand: its layout up to the client id is the same in all versions, and an unsupported
    #    version must be reported with its correlation id (KIP-511).
    header, position = _decode_header(frame)
    api_key = _check_version(header)
    # 2. Bounds before objects: see `array_bounds`. The budget counts tagged fields of the header too.
    codec = _codec(api_key, header.api_version, "request")
    budget = array_bounds.ItemBudget(most_items)
    try:
        if codec.tagged_header:
            position = _skip_tagged_fields(frame, position, budget)
        if codec.walk is not None:
            codec.walk(frame, position, budget)
        # 3. kio builds the message of the wire's version, 4. which becomes one of the newest class.
        message = _read(codec, frame, position, budget)
        return header, version_conversion.upgrade_request(api_key, header.api_version, message)
    except array_bounds.TooManyItems as error:
        raise OversizedRequest(header, f"{api_key.kafka_name} v{header.api_version}: {error}") from None
    except Exception as error:
        raise MalformedRequest(header, f"{api_key.kafka_name} v{header.api_version}: {error}") from error


def encode_response(header: RequestHeader, response: object) -> bytes:
    """Encode a response as a frame with its length, in the version of the request with that `header`.

    ApiVersions has two exceptions: its response header never has tagged fields, and a request with an unknown version
    is answered in the layout of version 0 (KIP-511).
    """
    api_key = ApiKey(header.api_key)
    api_version = header.api_version
    if api_key is ApiKey.API_VERSIONS and api_version not in SUPPORTED[api_key]:
        # Version 0 has the code and the ranges, in the one layout that every client knows.
        api_version = 0
    if api_key is ApiKey.PRODUCE:
        by_hand = fast_path.produce_response(
            api_version, header.correlation_id, cast("m.produce_response.ProduceResponse", response)
        )
        # None: a shape that is not written by hand (errors, other leaders); kio writes it.
        if by_hand is not None:
            return by_hand
    if api_key is ApiKey.FETCH:
        pieces = fast_path.fetch_response(
            api_version, header.correlation_id, cast("m.fetch_response.FetchResponse", response)
        )
        if pieces is not None:
            return b"".join(cast("list[bytes]", pieces))
    if api_key is ApiKey.STREAMS_GROUP_DESCRIBE:
        described = cast("m.streams_group_describe_response.StreamsGroupDescribeResponse", response)
        body = _MEMBER_BYTES.encode(
            api_version, described, lambda part: b"".join(_by_codec(api_key, api_version, header, part)[1:])
        )
        if body is not None:
            return len(body).to_bytes(4, "big") + body
    return b"".join(_by_codec(api_key, api_version, header, response))


def encode_pieces(header: RequestHeader, response: object) -> list[Sized]:
    """Encode a response as `encode_response` does, as a list of consecutive pieces.

    In a Fetch response the records may be spans of a file. Each span is a piece of its own, so that the connection can
    send it with sendfile(2).
    """
    if header.api_key == ApiKey.FETCH:
        by_hand = fast_path.fetch_response(
            header.api_version, header.correlation_id, cast("m.fetch_response.FetchResponse", response)
        )
        if by_hand is not None:
            return list(by_hand)
        return list(_by_codec(ApiKey.FETCH, header.api_version, header, response))
    return [encode_response(header, response)]


def _by_codec(api_key: ApiKey, api_version: int, header: RequestHeader, response: object) -> list[bytes]:
    """Encode a response with kio's writer."""
    codec = _codec(api_key, api_version, "response")
    buffer = _Parts()
    buffer.write(_CORRELATION_ID.pack(header.correlation_id))
    if codec.tagged_header:
        buffer.write(_NO_TAGGED_FIELDS)
    codec.write(buffer, version_conversion.downgrade_response(api_key, api_version, response))
    return buffer.pieces()


def encode_request(
    api_key: ApiKey, api_version: int, correlation_id: int, client_id: str | None, request: object
) -> bytes:
    """Encode a request as a frame with its length.

    Args:
        api_key: API of the request.
        api_version: version to encode.
        correlation_id: repeated in the response.
        client_id: name of the client; None: null.
        request: message object of the newest version.

    Raises:
        ValueError: the request uses a feature that `api_version` does not have.
    """
    codec = _codec(api_key, api_version, "request")
    client_id_bytes = b"" if client_id is None else client_id.encode()
    # An int16 length in every version: the client id stayed in the older form when headers became flexible (KIP-482).
    length = _NO_CLIENT_ID if client_id is None else len(client_id_bytes)
    buffer = io.BytesIO()
    # Room for the length, which is known at the end (`_with_length`).
    buffer.write(b"\x00\x00\x00\x00")
    buffer.write(_FIXED_HEADER.pack(api_key, api_version, correlation_id, length))
    buffer.write(client_id_bytes)
    if codec.tagged_header:
        buffer.write(_NO_TAGGED_FIELDS)
    codec.write(buffer, version_conversion.downgrade_request(api_key, api_version, request))
    return _with_length(buffer)


def decode_response(api_key: ApiKey, api_version: int, frame: bytes) -> tuple[int, object]:
    """Decode one response.

    Returns:
        The correlation id, and the response as an object of the newest class of its API.

    Raises:
        MalformedResponse: the bytes are not a response of this API and version.
    """
    codec = _codec(api_key, api_version, "response")
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        position = _CORRELATION_ID.size
        unbounded = array_bounds.ItemBudget(sys.maxsize)
        if codec.tagged_header:
            position = _skip_tagged_fields(frame, position, unbounded)
        if codec.walk is not None:
            codec.walk(frame, position, unbounded)
        message = _read(codec, frame, position, unbounded)
        return correlation_id, version_conversion.upgrade_response(api_key, api_version, message)
    except Exception as error:
        raise MalformedResponse(f"{api_key.kafka_name} v{api_version}: {error}") from error


def _read(codec: _Codec, frame: bytes, position: int, budget: array_bounds.ItemBudget) -> object:
    """Read an entity with kio, if needed without the tagged fields that Kafka accepts and kio refuses."""
    try:
        return codec.read(frame, position)[0]
    except (KeyError, UnexpectedNull):  # an unknown tagged field; null in one, or where null is wrong
        if codec.walk is None:  # otherwise the caller's walk has counted the tagged fields already
            array_bounds.entity_walk(codec.schema)(frame, position, budget)
        if not codec.schema.__flexible__:
            raise
        return codec.read(strip_tagged_fields(codec.schema, frame, position), position)[0]


def _check_version(header: RequestHeader) -> ApiKey:
    try:
        api_key = ApiKey(header.api_key)
    except ValueError:
        raise UnsupportedVersion(header) from None
    lowest, highest = SUPPORTED[api_key]
    if not lowest <= header.api_version <= highest:
        raise UnsupportedVersion(header)
    return api_key


def _decode_header(frame: bytes) -> tuple[RequestHeader, int]:
    try:
        api_key, api_version, correlation_id, length = _FIXED_HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedRequest(None, f"a frame of {len(frame)} bytes holds no request header") from None
    position = _FIXED_HEADER.size
    if length == _NO_CLIENT_ID:
        client_id = None
    else:
        end = position + length
        if length < 0 or end > len(frame):
            raise MalformedRequest(None, f"a client id of {length} bytes in a frame of {len(frame)}")
        try:
            client_id = frame[position:end].decode()
        except UnicodeDecodeError:
            raise MalformedRequest(None, "the client id is not UTF-8") from None
        position = end
    header = RequestHeader(api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=client_id)
    return header, position


def _skip_tagged_fields(frame: bytes, position: int, budget: array_bounds.ItemBudget) -> int:
    """Return the position after a header's tagged fields. No header defines any, so all are skipped."""
    count, position = _read_unsigned_varint(frame, position)
    budget.take(count)
    for _ in range(count):
        _, position = _read_unsigned_varint(frame, position)
        size, position = _read_unsigned_varint(frame, position)
        # Sizes are added and checked, not walked: no header defines a tagged field.
        position += size
        if position > len(frame):
            raise ValueError("a tagged field of the header ends behind the frame")
    return position


def _read_unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a varint of more than five bytes in the header")


class _Parts:
    """Output of kio's writers. The parts are joined once at the end, so that large records are copied once."""

    __slots__ = ("_parts", "write")

    def __init__(self) -> None:
        self._parts: list[bytes] = [b""]
        self.write = self._parts.append

    def pieces(self) -> list[bytes]:
        """Return the frame: its length, then all parts."""
        self._parts[0] = sum(map(len, self._parts)).to_bytes(4, "big")
        return self._parts


def _with_length(buffer: io.BytesIO) -> bytes:
    frame = buffer.getbuffer()
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    frame.release()
    return buffer.getvalue()
