"""Kafka's protocol on a blocking socket, one request at a time, without a client library in between."""

from __future__ import annotations

import socket
from typing import Any

from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.request_codec import decode_response, encode_request

__all__ = ["SOCKET_TIMEOUT_S", "WireClient", "encode_varint", "read_exactly", "read_frame"]

SOCKET_TIMEOUT_S = 60.0
LARGEST_READ_BYTES = 1 << 20


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes.

    Raises:
        EOFError: The other side closed the connection before.
    """
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), LARGEST_READ_BYTES))
        if not part:
            raise EOFError(f"the broker closed the connection after {len(data)} of {size} bytes")
        data += part
    return bytes(data)


def read_frame(connection: socket.socket) -> bytes:
    """Return the next frame, without its length."""
    return read_exactly(connection, int.from_bytes(read_exactly(connection, 4), "big"))


def encode_varint(number: int) -> bytes:
    """Return an unsigned integer as Kafka writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


class WireClient:
    """One connection that sends the requests it is given, in the version it is given.

    Raises OSError and EOFError when the connection fails or ends.
    """

    def __init__(self, port: int, *, client_id: str = "test-client", timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation_id = 0

    def send(self, api_key: ApiKey, request: object, version: int | None = None) -> tuple[ApiKey, int]:
        """Send a request, in the newest version by default. Return what `receive` needs to read the response."""
        self._correlation_id += 1
        chosen = SUPPORTED[api_key].highest if version is None else version
        self.socket.sendall(encode_request(api_key, chosen, self._correlation_id, self._client_id, request))
        return api_key, chosen

    def receive(self, sent: tuple[ApiKey, int]) -> Any:
        """Return the response to the oldest request without one."""
        correlation_id, response = decode_response(*sent, self.read_frame())
        assert correlation_id <= self._correlation_id
        return response

    def call(self, api_key: ApiKey, request: object, version: int | None = None) -> Any:
        """Send a request and return its response."""
        return self.receive(self.send(api_key, request, version))

    def read_frame(self) -> bytes:
        """Return the next frame, without its length."""
        return read_frame(self.socket)

    def read_exactly(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        return read_exactly(self.socket, size)

    def is_closed_by_peer(self) -> bool:
        """Wait until the broker closes the connection, or return False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
