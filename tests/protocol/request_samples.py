"""A frame of every message in every version, and what it says."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

from kio.serial import entity_writer
from tests.protocol.message_samples import message_id, sample

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from headrace.protocol.version_conversion import has_flexible_header, message_class

Message = tuple[ApiKey, int, str]


def sender_of(message: Message, seed: int) -> tuple[bytes, Any]:
    """The frame, without length, that a peer of exactly this version would send, and what it says."""
    api_key, version, kind = message
    schema = message_class(api_key, version, kind)
    entity = sample(schema, random.Random(zlib.crc32(message_id(message).encode()) + seed))
    header_is_flexible = has_flexible_header(schema)
    buffer = io.BytesIO()
    if kind == "request":
        buffer.write(struct.pack(">hhih", api_key, version, 77, 2) + b"me")
    else:
        buffer.write(struct.pack(">i", 77))
    if header_is_flexible:
        buffer.write(b"\x00")
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue(), entity


def decode(message: Message, frame: bytes) -> Any:
    api_key, version, kind = message
    if kind == "request":
        header, decoded = decode_request(frame)
        assert header == RequestHeader(api_key=api_key, api_version=version, correlation_id=77, client_id="me")
        return decoded
    correlation_id, decoded = decode_response(api_key, version, frame)
    assert correlation_id == 77
    return decoded


def encode(message: Message, decoded: Any) -> bytes:
    api_key, version, kind = message
    if kind == "request":
        frame = encode_request(api_key, version, 77, "me", decoded)
    else:
        header = RequestHeader(api_key=api_key, api_version=version, correlation_id=77, client_id="me")
        frame = encode_response(header, decoded)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


HEARTBEAT = (ApiKey.STREAMS_GROUP_HEARTBEAT, 1, "request")
