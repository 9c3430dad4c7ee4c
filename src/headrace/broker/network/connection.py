"""One client connection: bytes → frames → handler → answers in the order of the requests.

Rules: at most one request of a connection is in progress; the next begins when its answer is handed to the transport.
Responses that may be repeated (`fast_paths`) are sent before anything is decoded, all of one read in one write; those
of usual Produce requests that came in one read go out a few in a write. A parked request (a long poll) blocks only its
own connection. What cannot be understood closes this connection with one line in the log, and touches no other.

`ClientSocket` is the part without requests: bytes in memory, writes, back pressure, the end. A client that does not
read its responses is not read from either; the bytes of responses and of half requests in memory are counted over all
connections (`listener.ConnectionLimits`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import logging
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from headrace.broker.faults import ConnectionLost, answer_with, client_id_in
from headrace.broker.network.fair_queue import LARGE_ANSWER_BYTES, decode_cheap_request, most_items
from headrace.broker.network.fast_paths import NO_ANSWER, ResponseCache, append_produce, may_skip_handler
from headrace.broker.network.response_writers import PIECE_BYTES, ChunkedWriter, SendfileWriter
from headrace.broker.requests.quotas import throttle_ms
from headrace.broker.requests.request_context import ANONYMOUS, UNKNOWN_SOFTWARE, Principal, RequestContext
from headrace.broker.security.listener_security import principal_of
from headrace.protocol import fast_path
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.framing import FrameBuffer, FrameTooLarge
from headrace.protocol.kio_units import from_ms
from headrace.protocol.request_codec import (
    MalformedRequest,
    OversizedRequest,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    encode_pieces,
    peek_api_key,
)

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.faults import Faults
    from headrace.broker.monitoring.broker_metrics import BrokerMetrics, RequestLog
    from headrace.broker.monitoring.server_metrics import CloseReason, Login
    from headrace.broker.network.fair_queue import FairQueue
    from headrace.broker.network.fast_paths import CacheGeneration
    from headrace.broker.network.listener import ConnectionLimits, Listener
    from headrace.broker.requests.api_table import ApiTable
    from headrace.broker.security.sasl_authenticator import Authentication
    from headrace.broker.services import Services
    from headrace.storage.file_system import FileSpan

__all__ = ["ClientConnection", "ClientSocket", "ConnectionServices"]

logger = logging.getLogger("headrace.broker")

NO_THROTTLE, MILLISECOND = dt.timedelta(0), dt.timedelta(milliseconds=1)
_API = struct.Struct(">hh")
_PRODUCE = b"\0\0"
TURN_SECONDS = 0.02
_TLS_HELLO = b"\x16\x03"
_TLS_HERE = "it speaks TLS, and this listener does not"
# An answer waits for at most so many others, and for the work on at most so many bytes of requests.
_MOST_GATHERED, _MOST_BYTES_GATHERED = 8, 64 << 10


class ConnectionServices(Protocol):
    """The part of the server that connections use.

    Declared here and not imported: the server knows its connections, so an import would close a cycle.
    """

    @property
    def configuration(self) -> BrokerConfiguration: ...
    @property
    def limits(self) -> ConnectionLimits: ...
    @property
    def services(self) -> Services | None:
        """The parts of the broker; None before they are opened and from the stop on."""

    @property
    def faults(self) -> Faults | None: ...
    @property
    def metrics(self) -> BrokerMetrics: ...
    @property
    def request_log(self) -> RequestLog: ...
    @property
    def fair_queue(self) -> FairQueue: ...
    @property
    def cache_generation(self) -> CacheGeneration: ...
    def accept(self, connection: ClientConnection, address: str) -> bool:
        """Count a new connection; False if a limit refuses it."""

    def forget(self, connection: ClientConnection) -> None:
        """Stop counting a connection that is closed."""

    @property
    def apis(self) -> ApiTable | None:
        """The handlers; None before the services are opened."""

    @property
    def next_token(self) -> Callable[[], int]:
        """Return a number that no other request of this broker's life has."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """The clock that sessions are kept on."""

    def api_name(self, api_key: int) -> str: ...
    def topics_in(self, request: object) -> frozenset[str]: ...
    def answer_unsupported_version(self, header: RequestHeader) -> bytes | None: ...
    def refuse_request(self, header: RequestHeader, code: ErrorCode) -> bytes | None: ...


class ClientSocket(asyncio.Protocol):
    """Mutable: the state of one socket, and the requests that wait on it."""

    def __init__(self, server: ConnectionServices, listener: Listener | None = None) -> None:
        """`listener` None: one without TLS and SASL."""
        self._configuration, self._limits = server.configuration, server.limits
        self.listener_name = listener.name if listener is not None else "PLAINTEXT"
        self._security = listener.security if listener is not None else None
        self._secure = self._security is not None and self._security.tls is not None
        self._frames = FrameBuffer(self._configuration.integer("socket.request.max.bytes"))
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._transport: asyncio.Transport | None = None
        self._files: SendfileWriter | ChunkedWriter | None = None
        self._gathered: list[bytes] = []
        self._gathered_for_bytes = 0
        self._held_bytes = 0
        self._unsent_bytes = 0
        self._writable = True
        self._reading = True
        self._leaving = False
        self.peer = ("", 0)
        self._local_address = ("", 0)
        self._client_host = ""
        self.client_information = UNKNOWN_SOFTWARE
        self.last_active = 0.0
        self.close_reason: CloseReason = "client"

    def _advance(self) -> None:
        """The socket takes answers again: what waits may go on."""
        raise NotImplementedError

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if self._files is not None:
            self._files.close()
        # Bytes that this connection held return to the common account. Otherwise the broker would refuse clients for
        # bytes that no longer exist.
        self._limits.receiving(-self._held_bytes)
        self._count_unsent(0)

    def _hold(self, size: int) -> bool:
        """Account for the bytes of an incomplete request. Return False if all connections hold too many."""
        change, self._held_bytes = size - self._held_bytes, size
        return self._limits.receiving(change)

    def _read_on(self, *, wanted: bool) -> None:
        """Resume or pause reading."""
        if self._transport is not None and wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        # asyncio calls this when the write buffer is over its limit. The requests behind wait (`ready`); only when all
        # clients together hold too much does the slow one lose its connection.
        self._writable = False
        if self._transport is not None and not self._count_unsent(self._transport.get_write_buffer_size()):
            self._close_because("headrace.unsent.max.bytes is reached: too many answers that the client does not read")
            self.close_reason = "not-read"
            self.abort()  # the client is gone

    def resume_writing(self) -> None:
        self._writable = True
        self._count_unsent(0)
        if isinstance(self._files, ChunkedWriter):
            self._files.wanted()
        self._advance()

    def _count_unsent(self, size: int) -> bool:
        change, self._unsent_bytes = size - self._unsent_bytes, size
        return self._limits.unsent(change)

    def _gather(self, answer: bytes, request_bytes: int) -> None:
        """Queue an answer, to be written together with those that follow in this turn of the event loop: one system
        call, and one waking of the client, for some. `_hand_over` ends it, at the latest before anything else is
        written.
        """
        # A producer has up to five requests in flight (max.in.flight.requests.per.connection), and a busy broker finds
        # two or three of them in one read. Each write of its own is a system call here and a wake-up there.
        self._gathered.append(answer)
        self._gathered_for_bytes += request_bytes
        if len(self._gathered) >= _MOST_GATHERED or self._gathered_for_bytes >= _MOST_BYTES_GATHERED:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathered:
            answers, self._gathered, self._gathered_for_bytes = self._gathered, [], 0
            self.write(answers[0] if len(answers) == 1 else b"".join(answers))

    def close(self) -> None:
        """Close the connection behind the answers that are already written."""
        self._hand_over()
        # `sendfile` writes beside the transport: closing now would cut the response in two.
        if self._files is not None and self._files.is_sending:
            self._leaving = True  # see `_files_sent`
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        self._hand_over()
        if self._transport is not None:
            self._transport.write(data)

    def _send_files(self, transport: asyncio.Transport, pieces: list[Sized]) -> None:
        self._hand_over()
        # One writer per connection, made with the first response that has spans: most connections never fetch.
        if self._files is None:
            if self._secure:
                self._files = ChunkedWriter(transport, self._files_sent, lambda: self._writable)
            else:
                self._files = SendfileWriter(transport, self._files_sent)
        self._files.send(cast("list[bytes | FileSpan]", pieces))

    def _files_sent(self) -> None:
        self.last_active = time.monotonic()
        if self._leaving:
            self.close()
        elif self._transport is not None and not self._transport.is_closing():
            self._advance()

    def _close_because(self, reason: str) -> None:
        logger.warning("Closed the connection of %s:%s: %s.", *self.peer, reason.rstrip("."))
        self.close_reason = "malformed-request"
        self._waiting.clear()
        self.close()


class ClientConnection(ClientSocket):
    """Mutable: the state of one connection."""

    def __init__(self, server: ConnectionServices, listener: Listener | None = None) -> None:
        """`listener` None: one without TLS and SASL."""
        super().__init__(server, listener)
        self._server = server
        self._authentication: Authentication | None = None
        self._principal = ANONYMOUS
        self._response_cache = ResponseCache(server.cache_generation)
        self._task: asyncio.Task[None] | None = None
        self._context: RequestContext | None = None
        self._request_bytes = 0
        self._muted: asyncio.TimerHandle | None = None
        self._most_items = server.configuration.integer("headrace.request.max.items")
        self._began = 0.0
        self._queued_seconds = 0.0
        self._expensive = False  # the last answer was large
        self._parked_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Two ways lead here: asyncio's own server for plain sockets, and `TlsAcceptor`, which has counted the
        # connection before its handshake.
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:  # `arrived` was asked before the handshake
            self._take_certificate(secured.getpeercert(binary_form=True))
            return
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if peer is None or local is None or not self.accept_peer(peer, local):
            # The peer left before it was looked at, or a connection limit is reached.
            self._transport.abort()
            self._transport = None
            return
        self._begin()

    def accept_peer(self, peer: tuple[str, int], local: tuple[str, int]) -> bool:
        """Take the addresses of a new connection. Returns False if a limit of connections refuses it."""
        # Limits and quotas of connections are asked before anything is allocated for the client.
        if not self._server.accept(self, peer[0]):
            return False
        self.peer, self._local_address = peer[:2], local[:2]
        self._client_host = f"/{peer[0]}"
        self.last_active = time.monotonic()
        return True

    def _take_certificate(self, certificate: bytes | None) -> None:
        assert self._security is not None
        principal = principal_of(self._security, certificate)
        if principal is None:
            self.count_login("failed-authentication")
            self.refuse("no rule of ssl.principal.mapping.rules fits the name of its certificate")
            return
        self._principal = principal
        if not self._security.mechanisms:  # with SASL the login counts, not the handshake before it
            self.count_login("successful-authentication")
        self._begin()

    def _begin(self) -> None:
        assert self._transport is not None
        # Above this many unsent bytes the transport calls `pause_writing`, and no further request is answered.
        unsent = self._server.configuration.integer("headrace.connection.write.buffer.bytes")
        # Behind TLS lies a second buffer, which takes what is encrypted and is counted nowhere.
        self._transport.set_write_buffer_limits(min(unsent, PIECE_BYTES) if self._secure else unsent)
        if self._server.services is None:  # stopped during the handshake
            self._transport.abort()
        elif self._security is not None and self._security.mechanisms:
            from headrace.broker.security.sasl_authenticator import Authentication

            self._authentication = Authentication(
                self, self._server, self._security, self._server.services.scram_credentials
            )
            self._frames.max_frame_bytes = self._security.receive_bytes
        self.last_active = time.monotonic()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._authentication is not None:
            self._authentication.stop()
        if self._task is not None:
            self._task.cancel()
        if self._muted is not None:
            self._muted.cancel()
        self._response_cache.clear()
        super().connection_lost(_exc)
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._leaving or self._transport.is_closing():
            return
        # 1. One reading of the clock serves all requests of this read: as time of arrival, and for the idle check.
        self.last_active = time.monotonic()
        # 2. Cached responses, before frames are even cut. Only while nothing of this connection is in progress: a
        #    cached response must not overtake the response to an earlier request.
        if self._response_cache.known and self.idle and self.ready and not self._frames.buffered_bytes:
            data = self._repeat_answers(data)
            if not data:
                return
        # 3. Whole frames queue up; the rest of a frame stays in the buffer, and is counted over all connections, so
        #    that ten thousand half requests cannot fill the memory (Kafka's counterpart is queued.max.request.bytes).
        self._frames.feed(data)
        try:
            for frame in self._frames.frames():
                self._waiting.append((self.last_active, frame))
        except FrameTooLarge as error:
            # Most often not an attack but a client with the wrong security.protocol, so the reason names that.
            self._close_because(_TLS_HERE if data[:2] == _TLS_HELLO else str(error))
            return
        held = self._frames.buffered_bytes
        if held != self._held_bytes and not self._hold(held):
            self._close_because("headrace.receiving.max.bytes is reached: too many half requests at once")
            return
        self._advance()

    def close_when_answered(self) -> None:
        """Close gracefully: the running request is answered, queued ones are not."""
        self._leaving = True
        self.close_reason = "broker-stopping"
        # Requests that are not begun get no response: their clients retry on another connection.
        self._waiting.clear()
        if self._task is None:
            self.close()

    # Interface of the SASL session.

    def set_principal(self, principal: Principal) -> None:
        """Set the principal of an authenticated client. It applies to all further requests."""
        self._principal = principal
        self._frames.max_frame_bytes = self._server.configuration.integer("socket.request.max.bytes")

    def count_login(self, login: Login) -> None:
        self._server.metrics.server.record_login(self.listener_name, login)

    def forget_answers(self) -> None:
        """Drop the cached answers: they were given to the previous principal."""
        self._response_cache.clear()

    def stop_listening(self) -> None:
        """Ignore everything that the client sends from now on."""
        self._leaving = True
        self._waiting.clear()

    def refuse(self, reason: str) -> None:
        """Close the connection of a client that failed to authenticate, or sent nothing in time."""
        self.close_reason = "not-authenticated"
        self._leaving = True
        self._close_because(reason)

    @property
    def idle(self) -> bool:
        return self._task is None and not self._waiting and self._muted is None

    @property
    def ready(self) -> bool:
        """Whether the next request may be looked at."""
        sending = self._files is not None and self._files.is_sending
        return self._task is None and self._writable and self._muted is None and not sending

    def _advance(self) -> None:
        """Answer what can be answered at once, until a request has to wait or the client stops reading."""
        waiting, began = self._waiting, time.monotonic()
        # A loop and not a task per request: most requests are answered at once, and a task costs more than they do.
        while waiting and self._transport is not None and self.ready:
            arrived, frame = waiting.popleft()
            self._answer(arrived, frame)
            # Requests that came together are not answered together when they are dear: others are next.
            if waiting and time.monotonic() - began > TURN_SECONDS:
                asyncio.get_running_loop().call_soon(self._advance)
                break
        # Responses of the fast path were gathered; nothing follows them in this turn.
        self._hand_over()
        # Back pressure: a client with requests that wait is not read from, so its socket buffer fills and TCP slows it.
        wanted = not self._waiting and self._muted is None
        if wanted != self._reading:
            self._read_on(wanted=wanted)

    def _repeat_answers(self, data: bytes) -> bytes:
        """Answer what the response cache holds; return the rest of `data`."""
        if not may_skip_handler(self._server, self._authentication, meters_bytes=False):
            return data
        faults = self._server.faults
        pieces, position = self._response_cache.repeat(data, self._server.now_ms())
        # One write for all responses of the read.
        if pieces and self._transport is not None:
            self.write(b"".join(pieces))
            # A client speaks one version of an API, so the first request stands for all.
            api_key, api_version = _API.unpack_from(data, 4)
            seconds = time.monotonic() - self.last_active
            self._server.metrics.requests.record_repeats(api_key, api_version, len(pieces) // 3, seconds)
            if faults is not None:
                faults.count_requests(api_key, client_id_in(data), len(pieces) // 3)
        return data[position:]

    def _answer(self, arrived: float, frame: bytes) -> None:
        # 1. The API key is the frame's first two bytes, and Produce is 0. Anything else ends the gathering of responses
        #    first, so that they keep their order.
        is_produce = frame.startswith(_PRODUCE)
        if not is_produce:
            self._hand_over()
        # 2. On a SASL listener the session takes the frame until the client has logged in, and again when it has to log
        #    in anew. Nothing below runs for an unauthenticated client.
        if self._authentication is not None and self._authentication.take(frame):
            return
        # 3. A request that waited behind another one may be cached as well; `data_received` could not answer it then.
        if (
            not is_produce
            and self._response_cache.known
            and not self._repeat_answers(len(frame).to_bytes(4, "big") + frame)
        ):
            return
        # 4. From here on the request's own time counts: what it waited is `queued`, what it will park is added later.
        header: RequestHeader | None = None
        self._began = time.monotonic()
        self._queued_seconds = self._began - arrived
        self._parked_at = 0.0
        try:
            if is_produce and self._append_on_fast_path(frame):
                return
            # 5. The general path. Small requests are decoded here on the loop; those that may hold it for long take a
            #    turn in the fair queue, and so does every request of a connection whose last response was large. Not
            #    all requests go there: a thread switch each way would come on top of every small one.
            most = most_items(peek_api_key(frame), self._most_items)
            decoded = None if self._expensive else decode_cheap_request(frame, most)
            if decoded is None:
                self._task = asyncio.get_running_loop().create_task(self._answer_in_turn(arrived, frame))
                return
            header, request = decoded
            # 6. The handler runs on the loop, without a lock, because only this thread changes state.
            outcome = self._handle(header, request, len(frame))
        # 7. One request's fault must not reach other connections. Only this connection ends.
        except Exception as error:  # noqa: BLE001 - one request's fault must not reach the others; it is logged
            self._refuse_request(header, error)
            return
        # 8. A long poll or a flush is awaited in a task; the connection's next request waits behind it (Kafka's
        #    contract: responses in the order of the requests).
        if isinstance(outcome, Awaitable):
            self._park(header, outcome)
        else:
            self._keep(frame, self._reply(header, outcome))

    async def _answer_in_turn(self, arrived: float, frame: bytes) -> None:
        """Answer a request that may be expensive: in this client's turn, decoded and encoded outside the
        event loop. A parked request has no turn while it waits, and takes another one to be encoded."""
        queue, client = self._server.fair_queue, self._principal.name
        if self._principal is ANONYMOUS:
            client = self._client_host
        header: RequestHeader | None = None
        try:
            # 1. The client's share is that of its principal; clients that do not log in share by address, or a hundred
            #    connections would have a hundred shares.
            async with queue.turn(client):
                self._began = time.monotonic()
                self._queued_seconds = self._began - arrived
                most = most_items(peek_api_key(frame), self._most_items)
                # 2. Pure work runs in the queue's one thread. The handler below runs on the loop again.
                known, request = await queue.run_in_thread(decode_request, frame, most)
                header = known
                # 3. The broker may have stopped while this request waited for its turn.
                if self._server.services is None:
                    raise asyncio.CancelledError  # stopped in the meantime; the connection is being closed
                outcome = self._handle(known, request, len(frame))
                # 4. Encoding belongs to the turn: responses are what makes small requests expensive.
                if not isinstance(outcome, Awaitable):
                    encoded = await self._encode_in_thread(known, outcome)
            # 5. A parked request gives its turn back while it waits, or one long poll would hold up all expensive
            #    requests.
            if isinstance(outcome, Awaitable):
                self._parked_at = time.monotonic()
                outcome = await outcome
                async with queue.turn(client):
                    encoded = await self._encode_in_thread(known, outcome)
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - one request's fault must not reach the others; it is logged
            # 6. The connection is free before anything is written, because writing may advance it.
            self._task = None
            self._refuse_request(header, error)
        else:
            self._task = None
            if encoded is not None:
                self._keep(frame, self._send(*encoded))
        self._go_on()

    async def _encode_in_thread(
        self, header: RequestHeader, response: object | None
    ) -> tuple[RequestHeader, object, list[Sized]] | None:
        """Return the arguments of `_send`; None for a request that asked for no answer (acks=0)."""
        if response is None:
            self._metered(header, None, 0)
            return None
        run_in_thread = self._server.fair_queue.run_in_thread
        encoded = await run_in_thread(encode_pieces, header, response)
        told = self._metered(header, response, sum(map(len, encoded)))
        return header, told, encoded if told is response else await run_in_thread(encode_pieces, header, told)

    def _handle(self, header: RequestHeader, request: object, request_bytes: int) -> object:
        """The answer, or what it is awaited from."""
        apis = self._server.apis
        handler = apis[header.api_key] if apis is not None else None
        if handler is None:
            raise MalformedRequest(header, f"API key {header.api_key} is not one of this broker's")
        self._context = context = self.request_context(header)
        self._request_bytes = request_bytes
        faults = self._server.faults
        # Faults look at decoded requests; `headrace broker` has none.
        taken = faults.intercept(header, request, self._server.topics_in) if faults is not None else ()
        outcome = (
            answer_with(taken, header, request, partial(handler, request, context))
            if taken
            else handler(request, context)
        )
        if header.api_key == ApiKey.API_VERSIONS:
            self.client_information = context.client_information
        return outcome

    def _keep(self, frame: bytes, answer: bytes | None) -> None:
        """Repeat the answer where it may be repeated."""
        # Only a response that went out as one frame, whose rule gave the permission.
        if self._context is not None and self._context.repeatable is not None and answer is not None:
            self._response_cache.keep(frame, answer, self._context.repeatable)

    def _append_on_fast_path(self, frame: bytes) -> bool:
        """Whether a Produce request was dealt with on the fast path; if not, nothing has happened."""
        if not may_skip_handler(self._server, self._authentication, meters_bytes=True):
            return False
        services, faults = self._server.services, self._server.faults
        assert services is not None
        # 1. Read by hand: None for every layout that the fast path does not know, hostile ones among them.
        request = fast_path.produce_request(frame)
        if request is None:
            return False
        # 2. Appended, or None and nothing has happened.
        outcome = append_produce(request, frame, self.request_context, services)
        if outcome is None:
            return False
        if faults is not None:
            faults.count_requests(ApiKey.PRODUCE, request.client_id or "", 1)
        self._context = None
        # 3. A finished frame is gathered with those of the same read; a message goes the way of every response.
        if isinstance(outcome, bytes):
            if outcome is not NO_ANSWER:
                self._gather(outcome, len(frame))
                self.last_active = time.monotonic()
                seconds = self.last_active - self._began
                self._server.request_log.answered_on_fast_path(request, self.peer, seconds, self._queued_seconds)
            return True
        header = request.header
        if isinstance(outcome, Awaitable):
            self._park(header, outcome)
        else:
            self._reply(header, outcome)
        return True

    def _park(self, header: RequestHeader, outcome: Awaitable[object]) -> None:
        self._parked_at = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._finish(header, outcome))

    async def _finish(self, header: RequestHeader, outcome: Awaitable[object]) -> None:
        try:
            response = await outcome
        # The connection is lost: no client is left to answer.
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - one request's fault must not reach the others; it is logged
            self._task = None
            self._refuse_request(header, error)
            return
        self._task = None
        self._reply(header, response)
        self._go_on()

    def _go_on(self) -> None:
        """Continue after a request whose response was awaited."""
        if self._leaving:
            self.close()
        else:
            self._advance()

    def _reply(self, header: RequestHeader, response: object | None) -> bytes | None:
        """The bytes written. A response of None: the request asked for no answer (acks=0)."""
        if self._transport is None:
            return None
        if response is None:
            self._metered(header, None, 0)
            return None
        try:
            encoded = encode_pieces(header, response)
            told = self._metered(header, response, sum(map(len, encoded)))
            if told is not response:
                response, encoded = told, encode_pieces(header, told)
        except Exception as error:  # noqa: BLE001 - one request's fault must not reach the others; logged below
            self._close_after_fault(header, error)
            return None
        return self._send(header, response, encoded)

    def _send(self, header: RequestHeader, response: object, encoded: list[Sized]) -> bytes | None:
        """The bytes written, None for several pieces."""
        if self._transport is None:
            return None
        whole = cast("bytes", encoded[0]) if len(encoded) == 1 else None
        # Remembered for the next request: clients that ask for everything ask again. Fetch is excepted, its records
        # cost no CPU.
        self._expensive = whole is not None and len(whole) > LARGE_ANSWER_BYTES and header.api_key != ApiKey.FETCH
        if whole is not None:
            self.write(whole)
        else:
            self._send_files(self._transport, encoded)
        self._log_response(header, response)
        return whole

    def _log_response(self, header: RequestHeader, response: object) -> None:
        self.last_active = time.monotonic()
        self._server.request_log.log_response(
            header,
            response,
            self.peer,
            seconds=self.last_active - self._began,
            queue_seconds=self._queued_seconds,
            remote_seconds=self.last_active - self._parked_at if self._parked_at else 0.0,
        )

    def _metered(self, header: RequestHeader, response: object, size: int) -> object:
        """The answer, of `size` bytes, with the time that quotas make the client wait; so long the connection is mute
        (KIP-219)."""
        services, context = self._server.services, self._context
        if services is None or context is None or not services.quotas.active:
            return response
        # 1. A handler may have set a throttle time already: that of topic changes (KIP-599).
        told_ms = round(getattr(response, "throttle_time", NO_THROTTLE) / MILLISECOND)
        # 2. The quotas' own: bytes of Produce and Fetch, time of everything. The time counts up to where the request
        #    was parked, since a parked request uses no thread.
        waiting_ms = throttle_ms(
            services.quotas,
            context,
            header.api_key,
            request_bytes=self._request_bytes,
            answer_bytes=size,
            seconds=(self._parked_at or time.monotonic()) - self._began,
            now_ms=self._server.now_ms(),
        )
        # 3. The response carries the longer of the two, and the client waits by itself (KIP-219).
        if waiting_ms > told_ms and response is not None:
            response = dataclasses.replace(cast("Any", response), throttle_time=from_ms(waiting_ms))
        # 4. A client that does not wait finds the connection muted for that long, as Kafka's channels are.
        if max(waiting_ms, told_ms) > 0:
            self._mute(max(waiting_ms, told_ms))
        return response

    def _mute(self, milliseconds: int) -> None:
        # Muting stops reading and answering; what was read already waits.
        self._muted = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)
        self._read_on(wanted=False)

    def _unmute(self) -> None:
        self._muted = None
        self._advance()

    def request_context(self, header: RequestHeader) -> RequestContext:
        faults = self._server.faults
        return RequestContext(
            token=self._server.next_token(),
            client_id=header.client_id or "",
            client_host=self._client_host,
            client_port=self.peer[1],
            client_information=self.client_information,
            api_version=header.api_version,
            local_address=self._local_address,
            principal=self._principal,
            listener_name=self.listener_name,
            secure=self._secure,
            sends_files=header.api_key == ApiKey.FETCH and (faults is None or not faults.active),
        )

    def _refuse_version(self, error: UnsupportedVersion) -> None:
        answer = self._server.answer_unsupported_version(error.header)
        if answer is None:
            self._close_because(str(error))
        else:
            self.write(answer)

    def _refuse_request(self, header: RequestHeader | None, error: Exception) -> None:
        """A request that cannot be decoded, is not to be, or has failed."""
        # Ordered by how much can still be answered: a version error has a response of its own (KIP-511), a size error
        # an error code if the response has such a field, undecodable bytes have none.
        if isinstance(error, UnsupportedVersion):
            self._refuse_version(error)
        elif isinstance(error, OversizedRequest):
            self._refuse_size(error)
        elif isinstance(error, MalformedRequest):
            self._close_because(str(error))
        elif isinstance(error, ConnectionLost):  # a test's wish
            self._waiting.clear()
            self.close_reason = "fault-injected"
            self.close()
        else:
            self._close_after_fault(header, error)

    def _refuse_size(self, error: OversizedRequest) -> None:
        """INVALID_REQUEST for all of the request where its answer can say so, in a few bytes. Else the end of the
        connection, as for a request that cannot be parsed: an answer without the items that were asked about would
        be taken for success, and one with them costs what the bound is there to save."""
        answer = self._server.refuse_request(error.header, ErrorCode.invalid_request)
        if answer is None:
            self._close_because(f"{error} (headrace.request.max.items)")
        else:
            logger.warning("Refused a request of %s:%s: %s (headrace.request.max.items).", *self.peer, error)
            self.write(answer)

    def _close_after_fault(self, header: RequestHeader | None, error: Exception) -> None:
        """Log an internal error with its traceback, and close the connection: the client may reconnect."""
        name = self._server.api_name(header.api_key) if header is not None else "a request"
        logger.error("Closed the connection of %s:%s: internal error in %s.", *self.peer, name, exc_info=error)
        self.close_reason = "request-failed"
        self._waiting.clear()
        self.close()
