"""The routes of the page: one shell for all screens, its files, JSON documents, and a stream of new frames.

The stream carries numbers of frames only. A browser fetches the document of its screen when a number arrives, so one
document serves all browsers with the same screen, and a browser in the background costs nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
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
from headrace.cli.ui.application_document import application_document, endpoints_of
from headrace.cli.ui.cluster_watch import ClusterWatch, Frame
from headrace.cli.ui.group_documents import group_document, groups_document
from headrace.cli.ui.instance_client import ApplicationAccess, read_instances
from headrace.cli.ui.overview_document import overview_document
from headrace.cli.ui.paging import Paging, one_of, read_number
from headrace.cli.ui.record_browser import MOST_RECORDS, Rendering, read_newest_records, record_document
from headrace.cli.ui.topic_documents import topic_document, topics_document
from headrace.cli.ui.transaction_document import HangingTransactions, transactions_document
from headrace.client.fetch_loop import IsolationLevel
from headrace.errors import BrokerError, CannotConnect, ConfigError, HeadraceError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot
    from headrace.client.admin import Admin

__all__ = ["MOST_STREAMS", "WebPage"]

PAGES = Path(__file__).parent / "pages"
SCREENS = ("/", "/groups", "/group", "/application", "/topics", "/topic", "/records", "/transactions")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
RENDERINGS: tuple[Rendering, ...] = ("auto", "text", "hex")
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
MOST_STREAMS = 64
# Requests of browsers that read from the cluster, at a time.
MOST_READERS = 2
READER_WAIT_SECONDS = 5.0
# Proxies close connections that are silent for a minute; and only a write finds a browser that is gone.
HEARTBEAT_SECONDS = 15.0
# The browser opens a new one by itself. A login that was changed ends an old stream that way.
STREAM_SECONDS = 3600.0
MOST_DOCUMENTS = 64
SMALLEST_COMPRESSED = 1_000


_Make = Callable[[Frame, "ClusterSnapshot", Mapping[str, str]], dict[str, Any]]
_Document = tuple[int, bytes, bytes]  # version of the frame, JSON, compressed JSON (empty for a short one)


class WebPage:
    """The ASGI application of one cluster. Mutable: it keeps documents of the last frame and counts streams."""

    def __init__(
        self,
        watch: ClusterWatch,
        rules: AccessRules,
        open_admin: Callable[[], Admin],
        *,
        shows_records: bool = True,
        applications: ApplicationAccess | None = None,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """Register with the collector.

        Args:
            watch: The collector.
            rules: Hosts and the login.
            open_admin: Opens the cluster for records and transactions, which are read when a browser asks.
            shows_records: Whether records of topics may be read.
            applications: Hosts of applications that are asked for their internals; None: the loopback.
            wall_clock_ms: The time that ages of transactions count from.
        """
        self._watch = watch
        self._open_admin = open_admin
        self._shows_records = shows_records
        self._applications = applications or ApplicationAccess()
        self._wall_clock_ms = wall_clock_ms
        self._hanging = HangingTransactions()
        self._readers = asyncio.Semaphore(MOST_READERS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._streams = 0
        self._documents: OrderedDict[str, _Document] = OrderedDict()
        self._files = {f"/{path.name}": path.read_bytes() for path in PAGES.iterdir() if path.suffix in _TYPES}
        self._tags = {name: f'"{sha256(content).hexdigest()[:16]}"' for name, content in self._files.items()}
        routes = [Route(path, self._screen) for path in SCREENS]
        routes += [Route(name, self._file) for name in self._files if name != "/index.html"]
        routes += [
            Route("/api/overview", self._document_route(self._overview)),
            Route("/api/groups", self._document_route(self._groups)),
            Route("/api/group", self._document_route(self._group)),
            Route("/api/application", self._reader_route(self._application, is_kept=True)),
            Route("/api/topics", self._document_route(self._topics)),
            Route("/api/topic", self._document_route(self._topic)),
            Route("/api/transactions", self._reader_route(self._transactions, is_kept=True)),
            Route("/api/records", self._reader_route(self._records, is_kept=False)),
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

    def _document_route(self, make: _Make) -> Any:
        async def respond(request: Request) -> Response:
            frame = self._watch.frame
            key = f"{request.url.path}?{request.url.query}"
            known = self._documents.get(key)
            if known is None or known[0] != frame.version:
                try:
                    known = await run_in_threadpool(self._make, make, frame, dict(request.query_params))
                except HeadraceError as error:
                    return _refusal(error)
                self._keep(key, known)
            return _document_response(request, known)

        return respond

    def _keep(self, key: str, document: _Document) -> None:
        self._documents[key] = document
        while len(self._documents) > MOST_DOCUMENTS:
            self._documents.popitem(last=False)

    def _make(self, make: _Make, frame: Frame, query: Mapping[str, str]) -> _Document:
        document = self._frame_document(frame)
        if frame.snapshot is not None:
            # The series belong to the last frame; a frame that arrived meanwhile makes this document newer, not wrong.
            with self._watch.lock:
                document |= make(frame, frame.snapshot, query)
        return _encode(frame.version, document)

    def _frame_document(self, frame: Frame) -> dict[str, Any]:
        return {
            "version": frame.version,
            "is_up": frame.is_up,
            "error": frame.error,
            "collected_at_ms": frame.collected_at_ms,
            "collection_seconds": round(frame.collection_seconds, 3),
            "interval_seconds": self._watch.interval_seconds,
        }

    def _reader_route(self, read: _Make, *, is_kept: bool) -> Any:
        """Return a route whose document is read from the cluster, a few at a time.

        With `is_kept` it is read once per frame for all browsers.
        """

        async def respond(request: Request) -> Response:
            key = f"{request.url.path}?{request.url.query}"
            try:
                await asyncio.wait_for(self._readers.acquire(), READER_WAIT_SECONDS)
            except TimeoutError:
                return _error(503, "busy", "Other browsers are reading from the cluster; try again.")
            try:
                frame = self._watch.frame
                known = self._documents.get(key) if is_kept else None
                if known is None or known[0] != frame.version:
                    known = await run_in_threadpool(self._read, read, frame, dict(request.query_params))
                    if is_kept:
                        self._keep(key, known)
            except HeadraceError as error:
                return _refusal(error)
            finally:
                self._readers.release()
            return _document_response(request, known)

        return respond

    def _read(self, read: _Make, frame: Frame, query: Mapping[str, str]) -> _Document:
        document = self._frame_document(frame)
        if frame.snapshot is not None:
            document |= read(frame, frame.snapshot, query)
        return _encode(frame.version, document)

    def _transactions(self, _: Frame, snapshot: ClusterSnapshot, __: Mapping[str, str]) -> dict[str, Any]:
        with self._open_admin() as admin:
            return transactions_document(
                admin, snapshot, self._hanging, now_ms=self._watch.now_ms, wall_clock_ms=self._wall_clock_ms()
            )

    def _records(self, _: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        if not self._shows_records:
            raise BrokerError("not-authorized", "Records are not shown.", "Start headrace ui without --no-records.")
        topic = snapshot.topics.get(query.get("topic", ""))
        number = read_number(query, "partition", default=0)
        if topic is None or number not in topic.partitions:
            raise BrokerError("topic-missing", "There is no such topic or partition.", "")
        rendering: Rendering = one_of(query, "as", RENDERINGS)
        level: IsolationLevel = one_of(query, "isolation", ISOLATION_LEVELS)
        before = read_number(query, "before", default=-1, most=2**63 - 1)
        with self._open_admin() as admin:
            found = read_newest_records(
                admin,
                topic.name,
                number,
                count=read_number(query, "count", default=20, least=1, most=MOST_RECORDS),
                before=None if before < 0 else before,
                isolation_level=level,
            )
        return {
            "topic": topic.name,
            "partition": number,
            "partitions": len(topic.partitions),
            "start": found.start,
            "end": found.end,
            "is_cut": found.is_cut,
            "records": [record_document(record, rendering) for record in found.records],
        }

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

    def _application(self, _: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        group = _group_of(snapshot, query)
        answers = read_instances(group.group_id, endpoints_of(group), self._applications)
        with self._watch.lock:
            return application_document(
                group, answers, snapshot, self._watch.series, Paging.from_query(query, "tasks.")
            )

    def _group(self, frame: Frame, snapshot: ClusterSnapshot, query: Mapping[str, str]) -> dict[str, Any]:
        group = _group_of(snapshot, query)
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
            raise BrokerError("topic-missing", "There is no such topic.", "")
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


def _encode(version: int, document: dict[str, Any]) -> _Document:
    # Client ids and file names of other systems may hold lone surrogates, which UTF-8 has no bytes for.
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return version, body, gzip.compress(body, 5) if len(body) >= SMALLEST_COMPRESSED else b""


def _document_response(request: Request, document: _Document) -> Response:
    _, body, packed = document
    if packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            packed, media_type="application/json", headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        )
    return Response(body, media_type="application/json")


def _group_of(snapshot: ClusterSnapshot, query: Mapping[str, str]) -> GroupSnapshot:
    name = query.get("id", "")
    group = snapshot.groups.get(name)
    if group is None:
        code = snapshot.refused.get(name)
        raise _missing_error(
            "There is no such group." if code is None else f"The cluster refused to describe it ({code})."
        )
    return group


def _missing_error(message: str) -> BrokerError:
    return BrokerError("group-missing", message, "")


def _refusal(error: HeadraceError) -> Response:
    status = 400 if isinstance(error, ConfigError) else 503 if isinstance(error, CannotConnect) else 502
    status = {"group-missing": 404, "topic-missing": 404, "not-authorized": 403}.get(error.code, status)
    return _error(status, error.code, f"{error.message} {error.fix}".strip())


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)


async def _missing(_: Request, __: Exception) -> Response:
    return PlainTextResponse("There is no such page.\n", status_code=404)


async def _failed(_: Request, __: Exception) -> Response:
    # The server logs the exception; a browser gets nothing of it.
    return _error(500, "internal", "The request failed; the log of headrace ui has the reason.")
