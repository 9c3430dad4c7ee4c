"""The routes of the page: one shell for all screens, its files, JSON documents, and a stream of new frames.

The stream carries numbers of frames only. A browser fetches the document of its screen when a number arrives, so one
document serves all browsers with the same screen, and a browser in the background costs nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.cli.ui.access import Access, AccessRules
from headrace.cli.ui.cluster_watch import ClusterWatch, Frame
from headrace.cli.ui.group_documents import group_document, groups_document
from headrace.cli.ui.overview_document import overview_document
from headrace.cli.ui.paging import Paging
from headrace.cli.ui.topic_documents import topic_document, topics_document
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot

__all__ = ["MOST_STREAMS", "WebPage"]

PAGES = Path(__file__).parent / "pages"
SCREENS = ("/", "/groups", "/group", "/topics", "/topic")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MOST_STREAMS = 64
# Proxies close connections that are silent for a minute; and only a write finds a browser that is gone.
HEARTBEAT_SECONDS = 15.0
# The browser opens a new one by itself. A login that was changed ends an old stream that way.
STREAM_SECONDS = 3600.0
MOST_DOCUMENTS = 64
SMALLEST_COMPRESSED = 1_000


class _NotFound(Exception):
    """The group or topic of a request does not exist."""


class WebPage:
    """The ASGI application of one cluster. Mutable: it keeps documents of the last frame and counts streams."""

    def __init__(self, watch: ClusterWatch, rules: AccessRules) -> None:
        """Register with the collector.

        Args:
            watch: The collector.
            rules: Hosts and the login.
        """
        self._watch = watch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._streams = 0
        self._documents: OrderedDict[str, tuple[int, bytes, bytes]] = OrderedDict()
        self._files = {f"/{path.name}": path.read_bytes() for path in PAGES.iterdir() if path.suffix in _TYPES}
        self._tags = {name: f'"{sha256(content).hexdigest()[:16]}"' for name, content in self._files.items()}
        routes = [Route(path, self._screen) for path in SCREENS]
        routes += [Route(name, self._file) for name in self._files if name != "/index.html"]
        routes += [
            Route("/api/overview", self._document_route(self._overview)),
            Route("/api/groups", self._document_route(self._groups)),
            Route("/api/group", self._document_route(self._group)),
            Route("/api/topics", self._document_route(self._topics)),
            Route("/api/topic", self._document_route(self._topic)),
            Route("/api/frames", self._frames),
        ]
        self.application: ASGIApp = Access(
            Starlette(routes=routes, exception_handlers={404: _missing, Exception: _failed}), rules
        )
        watch.add_listener(self._on_frame)

    def close(self) -> None:
        """End all streams. On the thread of the server."""
        self._closing = True
        self._changed.set()

    # Files.

    async def _screen(self, request: Request) -> Response:
        return self._send_file(request, "/index.html")

    async def _file(self, request: Request) -> Response:
        return self._send_file(request, request.url.path)

    def _send_file(self, request: Request, name: str) -> Response:
        # `no-cache` means: ask before use. A new version of Headrace is seen at once, and costs one small answer.
        headers = {"ETag": self._tags[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self._tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(self._files[name], media_type=_TYPES[Path(name).suffix], headers=headers)

    # Documents.

    def _document_route(self, make: Callable[[Frame, ClusterSnapshot, Mapping[str, str]], dict[str, Any]]) -> Any:
        async def respond(request: Request) -> Response:
            frame = self._watch.frame
            key = f"{request.url.path}?{request.url.query}"
            known = self._documents.get(key)
            if known is None or known[0] != frame.version:
                try:
                    body, packed = await run_in_threadpool(self._make, make, frame, dict(request.query_params))
                except _NotFound as error:
                    return _error(404, "missing", str(error))
                except HeadraceError as error:
                    return _error(400, error.code, f"{error.message} {error.fix}")
                known = (frame.version, body, packed)
                self._documents[key] = known
                while len(self._documents) > MOST_DOCUMENTS:
                    self._documents.popitem(last=False)
            _, body, packed = known
            if packed and "gzip" in request.headers.get("accept-encoding", ""):
                return Response(
                    packed,
                    media_type="application/json",
                    headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"},
                )
            return Response(body, media_type="application/json")

        return respond

    def _make(
        self,
        make: Callable[[Frame, ClusterSnapshot, Mapping[str, str]], dict[str, Any]],
        frame: Frame,
        query: Mapping[str, str],
    ) -> tuple[bytes, bytes]:
        document: dict[str, Any] = {
            "version": frame.version,
            "is_up": frame.is_up,
            "error": frame.error,
            "collected_at_ms": frame.collected_at_ms,
            "collection_seconds": round(frame.collection_seconds, 3),
            "interval_seconds": self._watch.interval_seconds,
        }
        if frame.snapshot is not None:
            # The series belong to the last frame; a frame that arrived meanwhile makes this document newer, not wrong.
            with self._watch.lock:
                document |= make(frame, frame.snapshot, query)
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        return body, gzip.compress(body, 5) if len(body) >= SMALLEST_COMPRESSED else b""

    def _overview(self, frame: Frame, snapshot: ClusterSnapshot, _: Mapping[str, str]) -> dict[str, Any]:
        return overview_document(snapshot, self._watch.series, frame.obstacles)

    def _groups(self, frame: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        return groups_document(
            snapshot,
            self._watch.series,
            self._watch.history,
            frame.obstacles,
            Paging.from_query(query),
            now_ms=self._watch.now_ms,
            group_type=query.get("type", ""),
            state=query.get("state", ""),
        )

    def _group(self, frame: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        name = query.get("id", "")
        group = snapshot.groups.get(name)
        if group is None:
            code = snapshot.refused.get(name)
            raise _NotFound(
                "There is no such group." if code is None else f"The cluster refused to describe it ({code})."
            )
        return group_document(
            snapshot,
            self._watch.series,
            self._watch.history,
            frame.obstacles,
            group,
            Paging.from_query(query, "members."),
            Paging.from_query(query, "partitions."),
            now_ms=self._watch.now_ms,
        )

    def _topics(self, _: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        return topics_document(
            snapshot,
            self._watch.series,
            Paging.from_query(query),
            include_internal=query.get("internal") == "1",
        )

    def _topic(self, _: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        topic = snapshot.topics.get(query.get("name", ""))
        if topic is None:
            raise _NotFound("There is no such topic.")
        return topic_document(snapshot, self._watch.series, topic, Paging.from_query(query, "partitions."))

    # Streams.

    def _on_frame(self) -> None:
        loop = self._loop
        if loop is not None:
            # The loop is closed when the server has ended before its collector.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # Those who wait hold the old event.
        self._changed.set()
        self._changed = asyncio.Event()

    async def _frames(self, _: Request) -> Response:
        self._loop = asyncio.get_running_loop()
        if self._streams >= MOST_STREAMS:
            return _error(503, "too-many-streams", f"{MOST_STREAMS} browsers are connected already.")
        self._streams += 1
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends = loop.time() + STREAM_SECONDS
        try:
            yield b"retry: 2000\n\n"
            sent = None
            while not self._closing and loop.time() < ends:
                changed = self._changed
                frame = self._watch.frame
                if frame.version != sent:
                    sent = frame.version
                    data = json.dumps({"version": frame.version, "is_up": frame.is_up})
                    yield f"event: frame\ndata: {data}\n\n".encode()
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._streams -= 1


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)


async def _missing(_: Request, __: Exception) -> Response:
    return PlainTextResponse("There is no such page.\n", status_code=404)


async def _failed(_: Request, __: Exception) -> Response:
    # The server logs the exception; a browser gets nothing of it.
    return _error(500, "internal", "The request failed; the log of headrace ui has the reason.")
