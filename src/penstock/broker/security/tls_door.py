"""The TLS handshake in front of a connection: counted from its first moment, and ended when it takes too long.

asyncio's own TLS server shows a connection only behind its handshake; a stranger who says nothing would be in no
count. Hence the bare connection is accepted here, and TLS begins on it. What arrives between the end of the handshake
and the hand-over is kept; at most what one read gives.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from penstock.broker.connection import ClientConnection

__all__ = ["TlsDoor"]

logger = logging.getLogger("penstock.broker")


class TlsDoor(asyncio.Protocol):
    """Mutable: one connection until its handshake is over. Then the transport belongs to `connection`."""

    def __init__(self, connection: ClientConnection, context: ssl.SSLContext, timeout_ms: int) -> None:
        self._connection = connection
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._lost = False
        self._handed_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._handshake is not None or not self._connection.arrived(cast("asyncio.Transport", transport)):
            return
        bare = cast("asyncio.Transport", transport)
        bare.pause_reading()
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(bare))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Before the hand-over."""
        self._lost = True
        if not self._handed_over:
            self._connection.connection_lost(exc)

    async def _shake_hands(self, bare: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                bare, self, self._context, server_side=True, ssl_handshake_timeout=self._timeout_s
            )
        except (OSError, ssl.SSLError) as error:  # TimeoutError and ConnectionError among them
            logger.warning("Closed the connection of %s:%s: %s.", *self._connection.peer, _why(error))
            bare.abort()
            if not self._lost:
                self._connection.close_reason = "not-authenticated"
                self._connection.connection_lost(error)
            return
        if secured is None or self._lost:
            return
        self._handed_over = True
        secured.set_protocol(self._connection)
        self._connection.secured(secured)
        if self._early:
            self._connection.data_received(b"".join(self._early))


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"):
            return "it does not speak TLS, and this listener does"
        return f"the TLS handshake failed ({(error.reason or str(error)).lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError) or "handshake" in str(error):
        return "the TLS handshake took too long"
    return "it left during the TLS handshake"
