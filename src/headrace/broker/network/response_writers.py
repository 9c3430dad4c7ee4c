"""Writers of responses whose records lie in files: `sendfile` on plain sockets, encrypted chunks with TLS.

`SendfileWriter` has the kernel send records out of its page cache; they are not copied here. One response at a time,
and the transport writes nothing meanwhile (`ClientConnection.ready`), so responses keep their order. What the transport
still holds goes first. A client that reads slowly costs a descriptor and no memory.

`ChunkedWriter` is for TLS: the kernel cannot encrypt, and a whole response passed to the transport would lie in memory
until its client has read it. So only a few chunks do: one that the socket has not taken, one that is encrypted, and
what the transport's limit lets in between. The transport reports through the connection when it needs more.

A file that ends early, or cannot be read, ends the connection: its client has half a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from headrace.storage.file_system import FileSpan

__all__ = ["PIECE_BYTES", "ChunkedWriter", "SendfileWriter"]


logger = logging.getLogger("headrace.broker")

TURN_BYTES = 4 * 1024 * 1024  # then others have their turn
_NOT_FROM_THIS_FILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EOVERFLOW})
_CLIENT_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT, errno.ECONNABORTED})
_READ_BYTES = 256 * 1024  # at once, of a file that the kernel does not send by itself


class SendfileWriter:
    """One connection's. Mutable: what is left of the answer under way.

    It has a descriptor of its own for the socket, because event loops do not let others wait for that of a transport.
    """

    def __init__(self, transport: asyncio.Transport, done: Callable[[], None]) -> None:
        """`done` is called when an answer that `send` could not end at once is out, or nothing of it can be sent."""
        self._transport = transport
        self._done = done
        self._socket: socket.socket | None = None
        self._left: deque[bytes | memoryview | FileSpan] = deque()
        self._waits = False

    @property
    def is_sending(self) -> bool:
        return bool(self._left)

    def send(self, pieces: Sequence[bytes | FileSpan]) -> None:
        """Begin with what the socket takes now; see `is_sending`."""
        if self._socket is None:
            # A duplicate of the descriptor, because event loops refuse `add_writer` on a transport's own.
            whole: socket.socket = self._transport.get_extra_info("socket")
            self._socket = socket.socket(whole.family, whole.type, whole.proto, fileno=os.dup(whole.fileno()))
            self._socket.setblocking(False)
        self._left.extend(pieces)
        self._go_on()

    def close(self) -> None:
        """Drop what is left: the connection is lost."""
        self._left.clear()
        self._stop_waiting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _writable(self) -> None:
        self._go_on()
        if not self._left:
            self._done()

    def _go_on(self) -> None:
        try:
            # 1. The transport may still hold the end of the response before: its bytes go first, and `_writable` comes
            #    back.
            if self._transport.get_write_buffer_size() == 0:
                self._send_some()
        # 2. The socket is full: the loop calls again when it takes more.
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # 3. Half a response is out, so nothing sensible can follow. A client that left is no error of ours.
            self._left.clear()
            if error.errno not in _CLIENT_GONE:
                logger.error("Closing a connection within a Fetch response: its records could not be read (%s).", error)
            self._transport.abort()
        # 4. Wait only while something is left, or the loop would spin on a writable socket.
        if self._left and not self._waits and self._socket is not None:
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._writable)
            self._waits = True
        elif not self._left:
            self._stop_waiting()

    def _send_some(self) -> None:
        """Send until the socket is full or the turn is over. Raises OSError."""
        sent = 0
        while self._left and sent < TURN_BYTES and self._socket is not None:
            piece = self._left[0]
            if isinstance(piece, FileSpan):
                sent += self._send_span(piece, self._socket)
                continue
            # Heads and records of one response share a packet: TCP_NODELAY is set, so without MSG_MORE each head would
            # be a packet of its own.
            more = socket.MSG_MORE if len(self._left) > 1 else 0
            size = self._socket.send(piece, more)
            if size == len(piece):
                self._left.popleft()
            else:
                self._left[0] = memoryview(piece)[size:]

    def _send_span(self, span: FileSpan, to: socket.socket) -> int:
        try:
            size = os.sendfile(to.fileno(), span.descriptor.number, span.position, span.size)
        # Some file systems (and spans beyond 2 GiB on old kernels) have no sendfile; their records are copied.
        except OSError as error:
            if error.errno not in _NOT_FROM_THIS_FILE:
                raise
            size = to.send(FileSpan(span.descriptor, span.position, min(span.size, _READ_BYTES)).read())
        # Retention and compaction replace segments as a whole, so another program has cut the file.
        if size == 0:
            raise OSError(errno.EIO, "the file is shorter than it was")
        if size == span.size:
            self._left.popleft()
        else:
            self._left[0] = FileSpan(span.descriptor, span.position + size, span.size - size)
        return size

    def _stop_waiting(self) -> None:
        if self._waits and self._socket is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
        self._waits = False


PIECE_BYTES = 128 * 1024
_CHUNKED_TURN_BYTES = 1024 * 1024  # then others have their turn


class ChunkedWriter:
    """One connection's. Mutable: what is left of the answer under way. Used as `SendfileWriter` is."""

    def __init__(self, transport: asyncio.Transport, done: Callable[[], None], writable: Callable[[], bool]) -> None:
        """`done`: when an answer that `send` could not end at once is out. `writable`: the transport wants more."""
        self._transport = transport
        self._done = done
        self._writable = writable
        self._left: deque[bytes | FileSpan] = deque()
        self._turn: asyncio.Handle | None = None

    @property
    def is_sending(self) -> bool:
        return bool(self._left)

    def send(self, pieces: Sequence[bytes | FileSpan]) -> None:
        """Begin with what the transport takes now; see `is_sending`."""
        self._left.extend(pieces)
        self._go_on()

    def wanted(self) -> None:
        """Write more: the transport has room."""
        if self._left and self._turn is None:
            self._take_turn()

    def close(self) -> None:
        """Drop what is left: the connection is lost."""
        self._left.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _take_turn(self) -> None:
        self._turn = None
        self._go_on()
        if not self._left:
            self._done()

    def _go_on(self) -> None:
        sent = 0
        while self._left and self._writable() and not self._transport.is_closing():
            if sent >= _CHUNKED_TURN_BYTES:
                self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
                return
            try:
                piece = self._next_piece()
            except OSError as error:
                logger.error("Closing a connection within a Fetch response: its records could not be read (%s).", error)
                self._left.clear()
                self._transport.abort()
                return
            self._transport.write(piece)
            sent += len(piece)

    def _next_piece(self) -> bytes:
        """Return the next piece. Raises OSError."""
        piece = self._left.popleft()
        if not isinstance(piece, FileSpan):
            return piece
        size = min(piece.size, PIECE_BYTES)
        read = FileSpan(piece.descriptor, piece.position, size).read()
        if len(read) < size:
            raise OSError("the file is shorter than it was")
        # The rest stays in front, so a chunk is all that is in memory.
        if size < piece.size:
            self._left.appendleft(FileSpan(piece.descriptor, piece.position + size, piece.size - size))
        return read
