"""HTTP server for the Prometheus page of a client, in a thread: clients have no event loop that could serve it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from headrace.errors import ConfigError

__all__ = ["MetricsPage"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Each connection has a thread of its own. Without a timeout, a port scanner that connects and sends nothing would hold
# its thread as long as the program runs.
REQUEST_TIMEOUT_SECONDS = 5


class MetricsPage:
    """A context manager that serves `GET /metrics`.

    Example:
        with Consumer(...) as consumer, MetricsPage(consumer.prometheus, port=9404):
            ...
    """

    def __init__(self, text: Callable[[], str], *, port: int = 0, host: str = "127.0.0.1") -> None:
        """Bind the port.

        Args:
            text: Called for each request, in the thread of the server; returns the page.
            port: Port to listen on; 0 for a free one.
            host: Address to listen on.

        Raises:
            ConfigError: port-taken: another process listens there.
        """

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_SECONDS

            def do_GET(self) -> None:
                # `params` of a scrape configuration come as a query string; the page has no use for them, but must not
                # answer 404.
                found = self.path.partition("?")[0] == "/metrics"
                body = (text() if found else "Here is /metrics.\n").encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            # The handler of the standard library writes a line to stderr for each request: with Prometheus, one in
            # every scrape interval.
            def log_message(self, *_: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                "port-taken",
                f"metrics cannot be served on {host}:{port}: {error}",
                "give another port, or 0 for a free one",
            ) from error
        # `server_close` joins threads that are no daemons, so a scraper that reads slowly would hold up the end of the
        # program.
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace-metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that the page is served on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
