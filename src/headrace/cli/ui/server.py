"""The HTTP server of the page: uvicorn with limits, on a thread.

The exporter's server (`metrics.http_exporter`) was not taken: it has a thread per connection, which an open stream of
each browser would hold, and no limit on their number.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.ui.cluster_login import ClusterLogin
    from headrace.cli.ui.web_application import WebPage

__all__ = ["PageServer"]

# Streams and requests of some dozen browsers; others get 503.
MOST_CONNECTIONS = 200
LONGEST_HEADER_BYTES = 16_384
# Uvicorn waits for ever for a first request that does not come, or comes a byte at a time.
REQUEST_SECONDS = 10.0
SHUTDOWN_SECONDS = 2


class _ImpatientProtocol(H11Protocol):
    """HTTP/1.1 whose connections end when the head of a request takes too long. Mutable."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(REQUEST_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # IDLE: the head is not complete. Between two requests uvicorn's own timer runs, until the first byte.
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class PageServer:
    """A server of a page on a thread of its own. A context manager."""

    def __init__(
        self,
        page: WebPage | ClusterLogin,
        *,
        host: str,
        port: int,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        """Bind the port.

        Args:
            page: The application.
            host: Address to listen on.
            port: Port to listen on; 0 for a free one.
            certificate: Certificate chain in PEM, for HTTPS.
            key: Private key in PEM; None if it is in the file of the certificate.

        Raises:
            ConfigError: `port-taken`; `bad-value` for a certificate that cannot be read.
        """
        self._page = page
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise ConfigError(
                "port-taken",
                f"The page cannot be served on {host}:{port}: {error}",
                "give another --port, or 0 for a free one",
            ) from error
        config = uvicorn.Config(
            page.application,
            http=_ImpatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",  # failures alone: the command itself prints the address
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing depends on the address of a client
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=LONGEST_HEADER_BYTES,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except OSError as error:  # also ssl.SSLError
            self._socket.close()
            raise ConfigError(
                "bad-value", f"Certificate {certificate} cannot be used: {error}", "Name files in PEM."
            ) from error
        self._server = _Server(config, page)
        # uvicorn leaves signals alone when it is not on the main thread.
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="headrace-ui", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that the page is served on."""
        return int(self._socket.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, page: WebPage | ClusterLogin) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> Any:
        # Streams end by themselves; otherwise the shutdown would wait for them and cancel them.
        self._page.close()
        await super().shutdown(sockets)
