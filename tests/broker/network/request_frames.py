"""Frames of requests, byte by byte."""

from __future__ import annotations

import struct

from headrace.protocol import messages as m


def header(api_key: int, version: int, correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, -1)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


API_VERSIONS = m.api_versions_request.ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
