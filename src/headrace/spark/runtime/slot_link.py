"""The links between the driver and a resident slot: TCP connections, JSON messages behind their length.

A stage of a slot connects to the driver and says hello with the token that its pickled function carries; the driver
closes any other connection. Then the driver sends plans, and reports come back. The end of a connection is a message as
well: a slot whose driver ended ends, and a slot whose worker died is noticed at once, not at Spark's next heartbeat.

The listener is bound to the loopback address, because slots of a local master run on the driver's host.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

__all__ = ["MOST_BYTES", "LinkAddress", "LinkClosed", "SlotLink", "SlotListener"]

MOST_BYTES = 256 * 1024 * 1024  # of a message: a plan names every task of its slot, and records that are skipped
_HELLO_BYTES = 4096  # of the first message, before anything is known about its sender
_HELLO_S = 5.0
_ACCEPT_S = 0.1
_LENGTH = struct.Struct(">I")

LinkAddress = tuple[str, int]


class LinkClosed(ConnectionError):
    """The other end of a link is gone."""


class SlotLink:
    """One end of a link. Mutable: a socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a plan is one small message: send it now
        self._socket = connected
        self.pid = 0  # of the slot's worker, at the driver's end

    @classmethod
    def connect(cls, address: LinkAddress, token: str, name: str) -> Self:
        """Connect to the driver, and say hello as `name`."""
        link = cls(socket.create_connection(address, timeout=_HELLO_S))
        link._socket.settimeout(None)
        link.send({"token": token, "name": name, "pid": os.getpid()})
        return link

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The socket's file descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            LinkClosed: the other end is gone.
        """
        body = json.dumps(message).encode()
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self, *, most_bytes: int = MOST_BYTES, within_s: float | None = None) -> dict[str, Any] | None:
        """Wait for a message.

        Args:
            most_bytes: a longer message is not read.
            within_s: for the message as a whole, so that a byte a second does not extend it; None: for ever.

        Returns:
            The message; None if the other end closed the link, was too slow, or sent something that is no message.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
            if length > most_bytes:
                return None
            message = json.loads(self._read(length, deadline))
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close the link, also while another thread waits for a message."""
        # `close` alone does not wake a thread in `recv`; `shutdown` does.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(size - len(parts))
            if not part:
                raise LinkClosed("the other end closed the link")
            parts += part
        return bytes(parts)


class SlotListener:
    """The driver's end: accepts the slots of one subtopology. Mutable: a listening socket."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(32)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(_ACCEPT_S)

    @property
    def address(self) -> LinkAddress:
        """Host and port that slots connect to."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def accept(self, names: set[str], *, gives_up: Callable[[], bool]) -> dict[str, SlotLink]:
        """Wait until each of `names` has said hello.

        Args:
            names: who is awaited.
            gives_up: Called about ten times a second; True ends the wait.

        Returns:
            The links by name; fewer than awaited if `gives_up` ended the wait.
        """
        links: dict[str, SlotLink] = {}
        while links.keys() != names and not gives_up():
            try:
                # A client without the token costs one local connection. The hello is small and has its own deadline, so
                # none can hold the loop for longer than `_HELLO_S`.
                link = SlotLink(self._socket.accept()[0])
            except TimeoutError:
                continue
            except OSError:  # closed meanwhile
                break
            hello = link.receive(most_bytes=_HELLO_BYTES, within_s=_HELLO_S)
            name = self._name_of(hello)
            if hello is None or name not in names or name in links:
                link.close()
            else:
                link.pid = int(hello["pid"])
                links[name] = link
        return links

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _name_of(self, hello: Mapping[str, Any] | None) -> str:
        """Return the name in a hello with the token; empty for any other token."""
        # Compared in constant time, so that the token cannot be guessed byte by byte.
        if hello is None or not hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode()):
            return ""
        return str(hello.get("name"))
