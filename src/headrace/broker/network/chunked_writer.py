"""Answers that lie in files, for connections with TLS: read and encrypted piece by piece, as fast as the client reads.

The kernel cannot encrypt (see `sendfile_writer`), and a whole answer handed to the transport would lie in memory until
its client has read it. So only a few pieces do: one that the socket has not taken, one that is encrypted, and
what the transport's limit lets in between. The transport says through the connection when it wants more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from headrace.storage.file_system import FileSpan

__all__ = ["PIECE_BYTES", "ChunkedWriter"]

logger = logging.getLogger("headrace.broker")

PIECE_BYTES = 128 * 1024
TURN_BYTES = 1024 * 1024  # then others have their turn


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
    def under_way(self) -> bool:
        return bool(self._left)

    def send(self, pieces: Sequence[bytes | FileSpan]) -> None:
        """Begins with what the transport takes now; see `under_way`."""
        self._left.extend(pieces)
        self._go_on()

    def wanted(self) -> None:
        """The transport wants more."""
        if self._left and self._turn is None:
            self._take_turn()

    def close(self) -> None:
        """The connection is lost."""
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
            if sent >= TURN_BYTES:
                self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
                return
            try:
                piece = self._next_piece()
            except OSError as error:
                logger.error("A connection ends in the midst of an answer, whose records could not be sent: %s", error)
                self._left.clear()
                self._transport.abort()
                return
            self._transport.write(piece)
            sent += len(piece)

    def _next_piece(self) -> bytes:
        """Raises OSError."""
        piece = self._left.popleft()
        if not isinstance(piece, FileSpan):
            return piece
        size = min(piece.size, PIECE_BYTES)
        read = FileSpan(piece.descriptor, piece.position, size).read()
        if len(read) < size:
            raise OSError("the file is shorter than it was")
        if size < piece.size:
            self._left.appendleft(FileSpan(piece.descriptor, piece.position + size, piece.size - size))
        return read
