"""The link between the driver and a resident slot: one TCP connection, JSON messages behind their length.

A slot connects to the driver and says hello with the token that its pickled function carries; the driver closes any
other connection. Then the driver sends plans, and the slot answers each with its reports. The end of the connection is
a message as well: a slot whose driver ended ends, and a slot whose worker died is noticed at once, not at Spark's next
heartbeat.

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
    def connect(cls, address: LinkAddress, token: str, slot: int) -> Self:
        """Connect a slot to its driver, and say hello."""
        link = cls(socket.create_connection(address, timeout=_HELLO_S))
        link._socket.settimeout(None)
        link.send({"token": token, "slot": slot, "pid": os.getpid()})
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

    def accept(self, slots: set[int], *, gives_up: Callable[[], bool]) -> dict[int, SlotLink]:
        """Wait until each of `slots` has said hello.

        Args:
            slots: Numbers of the awaited slots.
            gives_up: Called about ten times a second; True ends the wait.

        Returns:
            The links by slot; fewer than awaited if `gives_up` ended the wait.
        """
        links: dict[int, SlotLink] = {}
        while links.keys() != slots and not gives_up():
            try:
                link = SlotLink(self._socket.accept()[0])
            except TimeoutError:
                continue
            except OSError:  # closed meanwhile
                break
            hello = link.receive(most_bytes=_HELLO_BYTES, within_s=_HELLO_S)
            slot = self._slot_of(hello)
            if hello is None or slot is None or slot not in slots or slot in links:
                link.close()
            else:
                link.pid = int(hello["pid"])
                links[slot] = link
        return links

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _slot_of(self, hello: Mapping[str, Any] | None) -> int | None:
        """Return the slot of a hello with the token; None for a stranger's."""
        if hello is None or not hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode()):
            return None
        slot = hello.get("slot")
        return slot if isinstance(slot, int) else None
