"""Responses as clients of older versions see them."""

from __future__ import annotations

import uuid
from typing import Any

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import (
    RequestHeader,
    decode_response,
    encode_response,
)

TOPIC_ID = uuid.UUID("0b5f3d9e-8f6b-4a7e-9d0c-3b1a2c4d5e6f")


NO_THROTTLE = from_ms(0)


def response_at(api_key: ApiKey, version: int, response: Any) -> Any:
    """What the client sees of a response that the broker sends in this version."""
    header = RequestHeader(api_key=api_key, api_version=version, correlation_id=1, client_id=None)
    return decode_response(api_key, version, encode_response(header, response)[4:])[1]
