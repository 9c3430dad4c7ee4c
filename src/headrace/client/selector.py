"""Waiting for responses of several brokers and for a signal of another thread at the same time."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable
from contextlib import suppress

from headrace.client.connection import PendingReply

__all__ = ["WakeupSignal", "is_readable", "wait_for"]


class WakeupSignal:
    """Signal from any thread to one that waits in `wait_for`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._reader.fileno()

    def set(self) -> None:
        """Wake the waiting thread. From any thread; signals that were not consumed yet merge into one."""
        with suppress(BlockingIOError, OSError):
            self._writer.send(b"w")

    def clear(self) -> None:
        """Consume the signal."""
        with suppress(BlockingIOError, OSError):
            self._reader.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._reader.close()
        self._writer.close()


def wait_for(replies: Iterable[PendingReply], wake: WakeupSignal, timeout_s: float) -> list[PendingReply]:
    """Wait for responses and return those whose connection has something to read, or has ended.

    Returns none when `wake` was set or the time is up.
    """
    # Replies that `poll` would not report come first: those read ahead with another reply of the same connection, and
    # bytes that TLS decrypted already. Waiting for their sockets could wait for ever.
    listed = list(replies)
    ready = [reply for reply in listed if _has_arrived(reply)]
    if ready:
        return ready
    poller = select.poll()
    poller.register(wake.fileno(), select.POLLIN)
    by_file = {reply.connection.fileno(): reply for reply in listed}
    for file in by_file:
        poller.register(file, select.POLLIN)
    # `poll` instead of `select`: descriptors above 1,024 are usual in a driver of Spark.
    events = poller.poll(max(0.0, timeout_s) * 1000)
    if any(file == wake.fileno() for file, _ in events):
        wake.clear()
    return [by_file[file] for file, _ in events if file in by_file]


def is_readable(reply: PendingReply) -> bool:
    """Return whether the response, or the end of its connection, can be read without waiting."""
    if _has_arrived(reply):
        return True
    poller = select.poll()
    poller.register(reply.connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def _has_arrived(reply: PendingReply) -> bool:
    return reply.done or reply.connection.closed or reply.connection.has_read_ahead
