"""HTTP server of queries: an event loop in a thread of its own, and a few threads that answer.

Reading heads and writing bodies is the event loop's, so a slow client costs a connection and no thread. Lookups are
done in threads, since LMDB, Arrow and Spark block. What a client can take is bounded: connections, requests at a time,
scans among them, the time of each, and the bytes of a head.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus

from headrace.broker.network.listener import bind
from headrace.client.deadline import Deadline
from headrace.errors import HeadraceError
from headrace.spark.queries.http_requests import (
    MOST_HEAD_BYTES,
    Answer,
    BadRequest,
    Request,
    check_access,
    problem,
    read_head,
)

__all__ = ["HttpServer", "ServerLimits"]

log = logging.getLogger("headrace.spark")

IDLE_SECONDS = 30.0  # for a head, and between two requests of a connection
CLOSE_WAIT_S = 5.0
DRAIN_BYTES = 1 << 20  # of a body that wait for the client


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of what clients take at a time."""

    requests: int = 8
    connections: int = 64
    timeout_s: float = 30.0  # of a request


Handler = Callable[[Request, Deadline], Answer]


class HttpServer:
    """Mutable: the listener, its connections and its threads. `start` and `close` belong to one thread."""

    def __init__(self, handler: Handler, *, token: str | None, limits: ServerLimits) -> None:
        """`handler` is called in threads of the server; it may raise HeadraceError."""
        self._handler, self._token, self._limits = handler, token, limits
        self._own_host = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-queries", daemon=True)
        self._pool = ThreadPoolExecutor(limits.requests, thread_name_prefix="headrace-query")
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._running = 0

    def start(self, host: str, port: int, *, own_host: str) -> int:
        """Listen, and return the port.

        Args:
            host: Address to listen on.
            port: 0 takes a free one.
            own_host: Name under which clients reach this server.

        Raises:
            ConfigError: port-taken, bad-value.
        """
        self._own_host = own_host.lower()
        bound = bind(host, port)
        self._thread.start()
        starting = asyncio.start_server(self._serve, sock=bound, limit=MOST_HEAD_BYTES)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        return int(bound.getsockname()[1])

    def close(self) -> None:
        """Stop to listen, and cut off all clients."""
        if self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._abort(), self._loop).result(CLOSE_WAIT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_WAIT_S)
        # Lookups under way end by themselves. Their answers have no connection any more.
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._loop.is_running():
            self._loop.close()

    async def _abort(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in tuple(self._connections):
            client.transport.abort()
        tasks = tuple(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections[writer] = task
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            writer.transport.abort()
        # By `close`. Python 3.11 logs the cancellation of such a task as an error, so it ends here.
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception:
            log.exception("a query failed")
            writer.transport.abort()
        finally:
            del self._connections[writer]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether the connection stays open."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            request = read_head(head)
            check_access(request, token=self._token, own_host=self._own_host)
        except asyncio.LimitOverrunError:
            await self._write(writer, problem(431, "bad-value", "The head of the request is too long."), False)
            return False
        except BadRequest as refused:
            await self._write(writer, refused.answer, False)
            return False
        deadline = Deadline.after_ms(self._limits.timeout_s * 1000)
        if self._running >= self._limits.requests:
            busy = f"{self._limits.requests} queries are being answered at the moment."
            await self._write(writer, problem(503, "state-query-busy", busy, "Ask again.", Retry_After="1"), True)
            return request.keeps_open
        answer = await self._answer_in_time(request, deadline)
        async with asyncio.timeout(deadline.remaining_s + 1):
            await self._write(writer, answer, request.keeps_open)
            if answer.pieces is not None:
                return await self._write_pieces(writer, answer, deadline) and request.keeps_open
        return request.keeps_open

    async def _answer_in_time(self, request: Request, deadline: Deadline) -> Answer:
        try:
            return await asyncio.wait_for(self._in_thread(self._answered, request, deadline), deadline.remaining_s)
        except TimeoutError:
            return problem(
                503,
                "state-query-timeout",
                f"The query took longer than {self._limits.timeout_s:g} s.",
                "Ask for less, or raise headrace.state.query.timeout.ms.",
                Retry_After="1",
            )

    def _answered(self, request: Request, deadline: Deadline) -> Answer:
        try:
            return self._handler(request, deadline)
        except BadRequest as refused:
            return refused.answer
        except HeadraceError as error:
            return problem(500, error.code, error.message, error.fix)
        except Exception:
            log.exception("the query %s failed", request.target)
            return problem(500, "unexpected", "The query failed; the application's log has the cause.")

    async def _in_thread(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a function in a thread. Its place is taken until it returns, whether or not the client still waits."""
        self._running += 1
        future = self._loop.run_in_executor(self._pool, function, *arguments)
        future.add_done_callback(self._leave)
        return await asyncio.shield(future)

    def _leave(self, future: asyncio.Future[Answer]) -> None:
        self._running -= 1
        if not future.cancelled():
            future.exception()  # of a query whose client has gone

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer, keeps_open: bool) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *answer.headers,
            ("Connection", "keep-alive" if keeps_open else "close"),
        ]
        if answer.pieces is None:
            headers.append(("Content-Length", str(len(answer.body))))
        else:
            headers.append(("Transfer-Encoding", "chunked"))
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}", *(f"{n}: {v}" for n, v in headers)]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + answer.body)
        await writer.drain()

    async def _write_pieces(self, writer: asyncio.StreamWriter, answer: Answer, deadline: Deadline) -> bool:
        """Send the pieces of a body as they are made. Return False after an error, which cuts the body off."""
        pieces = answer.pieces
        assert pieces is not None
        self._running += 1
        sending = self._loop.run_in_executor(self._pool, self._send_pieces, pieces, writer, deadline)
        sending.add_done_callback(lambda _: self._end_pieces())
        is_whole = await asyncio.shield(sending)
        if not is_whole:
            # Without the last chunk a client knows that rows are missing.
            writer.transport.abort()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _end_pieces(self) -> None:
        self._running -= 1

    def _send_pieces(self, pieces: object, writer: asyncio.StreamWriter, deadline: Deadline) -> bool:
        try:
            for piece in pieces:  # type: ignore[attr-defined]
                if deadline.passed:
                    return False
                if not piece:  # an empty chunk would end the body
                    continue
                chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
                sent = asyncio.run_coroutine_threadsafe(self._send(writer, chunk), self._loop)
                sent.result(deadline.remaining_s)
        except Exception as error:  # noqa: BLE001 - the status is sent already, so the body ends early
            log.warning("a scan was cut off: %r", error)
            return False
        finally:
            close = getattr(pieces, "close", None)  # of a generator: it gives the store back
            if close is not None:
                close()
        return True

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        writer.write(chunk)
        await writer.drain()
