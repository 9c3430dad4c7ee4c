"""One blocking connection that speaks exactly what it is told."""

from __future__ import annotations

import socket
from typing import Any

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import decode_response, encode_request
from headrace.protocol.supported_versions import SUPPORTED

__all__ = ["WireClient"]


class WireClient:
    """Raises OSError, EOFError when the connection ends."""

    def __init__(self, port: int, *, timeout_seconds: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, api_key: ApiKey, request: object) -> Any:
        version = SUPPORTED[api_key].highest
        self._socket.sendall(encode_request(api_key, version, 7, "durability", request))
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        return decode_response(api_key, version, frame)[1]

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise EOFError("the broker closed the connection")
            data += part
        return bytes(data)
