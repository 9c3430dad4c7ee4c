"""Takes in connections of a TLS listener: counted from their first moment, and ended when the handshake takes too long.

asyncio's own TLS server shows a connection only behind its handshake; a stranger who says nothing would be in no count.
Hence the sockets are accepted here, and `connection_made` of a connection comes when TLS stands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from headrace.broker.monitoring.server_metrics import CloseReason, Login

__all__ = ["AcceptedConnection", "TlsAcceptor"]

logger = logging.getLogger("headrace.broker")

_PAUSE_S: Final = 0.1  # when the process has no file left for another socket
_NOT_TLS: Final = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


class AcceptedConnection(Protocol):
    """The part of a `ClientConnection` that listeners use; it is an asyncio protocol as well.

    Declared here rather than imported, so that listeners, and the services that know them, do not depend on
    connections.
    """

    peer: tuple[str, int]
    close_reason: CloseReason

    def arrived(self, peer: tuple[str, int], local: tuple[str, int]) -> bool:
        """Count the connection; False if a limit refuses it."""

    def count_login(self, login: Login) -> None:
        """Count the outcome of a login or a handshake."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback: the connection is closed."""


class TlsAcceptor:
    """Mutable: one listener. `close` ends it and the handshakes under way; who is in stays."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        *,
        timeout_ms: int,
        newcomer: Callable[[], AcceptedConnection],
    ) -> None:
        self._listening = listening
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._newcomer = newcomer
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in tuple(self._handshakes):
            handshake.cancel()
        # Not before the loop has let go of it.
        self._accepting.add_done_callback(lambda _: self._listening.close())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                logger.error("A connection could not be taken in: %s.", error.strerror or error)
                await asyncio.sleep(_PAUSE_S)
                continue
            handshake = loop.create_task(self._shake_hands(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        connection = self._newcomer()
        accepted.setblocking(False)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer, local = accepted.getpeername(), accepted.getsockname()
        except OSError:  # it left before it was looked at
            accepted.close()
            return
        if not connection.arrived(peer, local):
            accepted.close()
            return
        done = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: cast("asyncio.BaseProtocol", connection),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
            done = True
        except (OSError, ssl.SSLError) as error:  # TimeoutError and ConnectionError among them
            logger.warning("Closed the connection of %s:%s: %s.", *connection.peer, _why(error))
            connection.close_reason = "not-authenticated"
            if isinstance(error, ssl.SSLError):
                connection.count_login("failed-authentication")
        finally:
            if not done:
                accepted.close()
                connection.connection_lost(None)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "it does not speak TLS, and this listener does"
        return f"the TLS handshake failed ({(error.reason or str(error)).lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError) or "longer than" in str(error):
        return "the TLS handshake took too long"
    return "it left during the TLS handshake"
