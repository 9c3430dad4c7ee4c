"""One client's socket: what of it is held in memory, what goes out, when it is read, how it ends.

What is said on it is `connection`'s. A client that does not read its answers is not read from either; what of answers
and of half requests lies in memory is counted over all connections (`connection_limits`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Protocol, cast

from headrace.broker.network.response_writers import ChunkedWriter, SendfileWriter
from headrace.protocol.framing import FrameBuffer

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.monitoring.server_metrics import CloseReason
    from headrace.broker.network.listener import ConnectionLimits, Listener
    from headrace.storage.file_system import FileSpan

__all__ = ["ClientSocket", "SocketServices"]

logger = logging.getLogger("headrace.broker")

# An answer waits for at most so many others, and for the work on at most so many bytes of requests.
_MOST_GATHERED, _MOST_BYTES_GATHERED = 8, 64 << 10


class SocketServices(Protocol):
    """The part of the server that sockets use."""

    @property
    def configuration(self) -> BrokerConfiguration: ...
    @property
    def limits(self) -> ConnectionLimits: ...


class ClientSocket(asyncio.Protocol):
    """Mutable: the state of one socket, and the requests that wait on it."""

    def __init__(self, server: SocketServices, listener: Listener | None = None) -> None:
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
        # What this connection held returns to the common account, or the broker would refuse clients for bytes that no
        # longer exist.
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
