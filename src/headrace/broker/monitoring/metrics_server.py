"""`--metrics-port`: GET /metrics over HTTP/1.1 for Prometheus, /health/live and /health/ready. Nothing else.

One response per connection. A client that sends more than a few kilobytes, or takes longer than a few seconds, is cut
off; more than a few at once are turned away.

*Live*: the process answers, so a restart would not help. *Ready*: it may be sent requests: loaded, not stopping, disk
good. Reasons are returned as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from headrace.broker.network.listener import bind

__all__ = ["JSON", "TEXT", "Condition", "Health", "HealthSource", "LoopLag", "MetricsServer", "Page"]


MOST_BYTES = 8192
# Prometheus, a second one and a kubelet's probes need about three.
MOST_CONNECTIONS = 16
# Covers the whole exchange, reading and writing: a client that sends one byte per second would otherwise hold one of
# the 16 places for hours ("slowloris").
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
        """Start the server, and return its port. Raises ConfigError: port-taken, bad-value."""
        bound = bind(host, port)
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=MOST_BYTES)
        return int(bound.getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        # `Server.close` ends listening only; clients that are being answered would keep the event loop from closing.
        for client in tuple(self._clients):
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The port has no login: it must not be a way to use up the broker's memory.
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


# As long as a heartbeat interval of a streams group: members lose beats then, and no further clients should be sent
# here.
LATE_SECONDS = 5.0

Reason = Literal["loading", "stopping", "disk-failed", "disk-full", "shard-failed", "event-loop-late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something that is not as it should be. `blocks`: the broker is not ready because of it."""

    reason: Reason
    detail: str
    blocks: bool = True


class HealthSource(Protocol):
    """State that is looked up when a probe asks for it."""

    @property
    def is_loading(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    def failed_logs(self) -> list[str]:
        """Partitions whose log does no further work until a restart."""

    def full_disk(self) -> str | None:
        """The operation that a full disk refused; None while appends succeed."""

    def failed_shards(self) -> int:
        """Partitions of __consumer_offsets whose groups are out of service."""

    def loop_lag_seconds(self) -> float:
        """Largest recent delay of the event loop."""


class Health:
    """Answers both questions."""

    def __init__(self, source: HealthSource) -> None:
        self._source = source

    def conditions(self) -> Iterator[Condition]:
        source = self._source
        if source.is_loading:
            yield Condition(reason="loading", detail="The logs and the groups are still being read.")
        if source.is_stopping:
            yield Condition(reason="stopping", detail="The broker is stopping.")
        # A failed log blocks readiness: the partition is out of service until a restart.
        failed = source.failed_logs()
        if failed:
            named = ", ".join(failed[:10]) + (f" and {len(failed) - 10} more" if len(failed) > 10 else "")
            yield Condition(reason="disk-failed", detail=f"The disk failed under {named}; a restart checks the logs.")
        full = source.full_disk()
        if full is not None:
            yield Condition(reason="disk-full", detail=full)
        # Groups of one damaged shard are out of service; all others are served, so it does not block.
        shards = source.failed_shards()
        if shards:
            detail = f"{shards} partitions of __consumer_offsets could not be read; their groups are out of service."
            yield Condition(reason="shard-failed", detail=detail, blocks=False)
        lag = source.loop_lag_seconds()
        if lag >= LATE_SECONDS:
            yield Condition(reason="event-loop-late", detail=f"The event loop was {lag:.1f} s late.")

    def ready(self) -> tuple[bool, str]:
        """Return (whether the broker accepts requests, a JSON document with the reason)."""
        conditions = list(self.conditions())
        fine = not any(condition.blocks for condition in conditions)
        return fine, _health_document("ready" if fine else "not-ready", conditions)

    def live(self) -> tuple[bool, str]:
        """(True, a JSON document): who answers lives. A broken disk does not make it dead, since restarting in a circle
        does not help; a stuck event loop shows in that no answer comes."""
        return True, _health_document("live", [])


class LoopLag:
    """How late an event loop is: mutable, fed by a beat that is due every `interval_seconds`."""

    def __init__(self, interval_seconds: float) -> None:
        self.interval_seconds = interval_seconds
        self._due: float | None = None
        self._recent: list[float] = []

    def beat(self, now: float) -> float:
        """Return how late this beat of the loop was, in seconds."""
        # The beat was due one interval after the last; whatever held the loop shows as its delay.
        late = max(0.0, now - self._due) if self._due is not None else 0.0
        self._due = now + self.interval_seconds
        # Ten beats: a probe that comes once in several seconds must still see a stall that lies between two probes.
        self._recent = [*self._recent[-9:], late]
        return late

    def seconds(self, now: float) -> float:
        """Return the largest delay of the last ten beats, or that of an overdue one."""
        overdue = now - self._due if self._due is not None else 0.0
        return max(0.0, overdue, *self._recent)


def _health_document(status: str, conditions: list[Condition]) -> str:
    return json.dumps({"status": status, "reasons": [asdict(each) for each in conditions]}) + "\n"
