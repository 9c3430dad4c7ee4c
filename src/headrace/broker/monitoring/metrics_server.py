"""`--metrics-port`: GET /metrics over HTTP/1.1 for Prometheus, and /health/live and /health/ready. Nothing else.

One answer per connection. A client that sends more than a few kilobytes, or takes longer than a few seconds, is cut
off; more than a few at once are turned away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from headrace.broker.network.listener import bind

__all__ = ["JSON", "TEXT", "MetricsServer", "Page"]

MOST_BYTES = 8192
MOST_CONNECTIONS = 16
PATIENCE_SECONDS = 5.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


Page = tuple[bool, str, str]
"""Whether all is well (200, else 503), the body, its content type."""


class MetricsServer:
    """Mutable: the listener. Belongs to the event loop it was started on."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        """`pages`: path → a function that makes the page when it is requested."""
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> int:
        """The port in fact bound. Raises ConfigError: port-taken, bad-value."""
        bound = bind(host, port)
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=MOST_BYTES)
        return int(bound.getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for client in tuple(self._clients):
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._clients[writer] = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (asyncio.LimitOverrunError, ValueError):
            writer.write(_response("400 Bad Request", "The request's head is too long.\n"))
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            writer.transport.abort()
        finally:
            del self._clients[writer]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "This is not an HTTP/1.1 request.\n")
        method, path = parts[0], parts[1].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "Only GET and HEAD are answered here.\n", "Allow: GET, HEAD\r\n")
        page = self._pages.get(path.decode(errors="replace"))
        with_body = method == b"GET"
        if page is None:
            known = ", ".join(self._pages)
            return _response("404 Not Found", f"Here are {known}.\n", with_body=with_body)
        fine, text, kind = page()
        status = "200 OK" if fine else "503 Service Unavailable"
        return _response(status, text, kind=kind, with_body=with_body)


def _response(status: str, text: str, more_headers: str = "", *, kind: str = TEXT, with_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more_headers}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
