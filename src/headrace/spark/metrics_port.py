"""`headrace.metrics.port`: a running application's /metrics, /health/live and /health/ready, on a thread of its own.

The pages are those of the broker's port, by the same server. Several instances on one machine may be given the same
port: like Spark's UI, each takes the next free one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Final

from headrace.broker.monitoring.metrics_server import MetricsServer, Page
from headrace.errors import ConfigError

__all__ = ["MetricsPort"]

TRIES: Final = 16


class MetricsPort:
    """HTTP listener for metrics and health checks, and the thread that runs its event loop. Mutable."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._server = MetricsServer(pages)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-metrics", daemon=True)

    def start(self, host: str, port: int) -> str:
        """Start to listen, and return the URL with the port that was bound.

        Raises:
            ConfigError: port-taken, if none of 16 ports is free.
        """
        self._thread.start()
        try:
            bound = asyncio.run_coroutine_threadsafe(self._first_free(host, port), self._loop).result()
        except BaseException:
            self.close()
            raise
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}"

    async def _first_free(self, host: str, port: int) -> int:
        for candidate in range(port, min(65_535, port + TRIES - 1) + 1):
            try:
                return await self._server.start(host, candidate)
            except ConfigError as error:
                if error.code != "port-taken":
                    raise
        raise ConfigError(
            "port-taken",
            f"headrace.metrics.port: {host}:{port} and the {TRIES - 1} ports after it are taken",
            "Name another one; 0 turns it off.",
        )

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
        if not self._loop.is_running():
            self._loop.close()
