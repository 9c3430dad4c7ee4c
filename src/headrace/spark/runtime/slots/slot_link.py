"""The links between the driver and a resident slot: TCP connections, JSON messages behind their length.

A stage of a slot connects to the driver and says hello with the token that its pickled function carries; the driver
closes any other connection. Then the driver sends plans, and reports come back. The end of a connection is a message as
well: a slot whose driver ended ends, and a slot whose worker died is noticed at once, not at Spark's next heartbeat.

Slots of a local master run on the driver's host: the listener is bound to the loopback address. Slots of a cluster come
from other hosts, and a host that is cut off sends no end of a connection. There both ends send a *beat* every second,
and an end that hears nothing for the length of a lease closes the link.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

__all__ = ["BEAT_S", "MOST_BYTES", "LinkAddress", "LinkClosed", "SlotLink", "SlotListener"]

BEAT_S = 1.0

MOST_BYTES = 256 * 1024 * 1024  # of a message: a plan names every task of its slot, and records that are skipped
_HELLO_BYTES = 4096  # of the first message, before anything is known about its sender
_HELLO_S = 5.0
_ACCEPT_S = 0.1
_MOST_STRANGERS = 64  # connections without a hello at a time, each for `_HELLO_S` at most
_LENGTH = struct.Struct(">I")

LinkAddress = tuple[str, int]


class LinkClosed(ConnectionError):
    """The other end of a link is gone."""


class SlotLink:
    """One end of a link. Mutable: a socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a plan is one small message: send it now
        self._socket = connected
        self._sending = threading.Lock()  # beats are sent by a thread of their own
        self.pid = 0  # of the slot's worker, at the driver's end
        self.hello: Mapping[str, Any] = {}  # what else it said in its hello

    @classmethod
    def connect(cls, address: LinkAddress, token: str, name: str, **facts: str) -> Self:
        """Connect to the driver, and say hello as `name`."""
        link = cls(socket.create_connection(address, timeout=_HELLO_S))
        link._socket.settimeout(None)
        link.send({"token": token, "name": name, "pid": os.getpid(), **facts})
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
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def beat(self) -> None:
        """Send a sign of life, unless a message is being sent: that is one.

        Raises:
            LinkClosed: the other end is gone.
        """
        if not self._sending.locked():
            self.send({"beat": True})

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Send beats in a thread, as long as the block runs."""
        ended = threading.Event()

        def run() -> None:
            with contextlib.suppress(LinkClosed):
                while not ended.wait(BEAT_S):
                    self.beat()

        thread = threading.Thread(target=run, name="headrace-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(BEAT_S)

    def messages(self, lease_s: float | None) -> Iterator[dict[str, Any]]:
        """Yield messages without beats, until the other end closes the link or is silent for `lease_s`."""
        while (message := self.receive(within_s=lease_s)) is not None:
            if "beat" not in message:
                yield message

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
            # The time limit of a socket would hold for a thread that sends, too.
            if deadline is not None and not _is_readable(self._socket, deadline - time.monotonic()):
                raise LinkClosed("the other end is silent")
            part = self._socket.recv(size - len(parts))
            if not part:
                raise LinkClosed("the other end closed the link")
            parts += part
        return bytes(parts)


class SlotListener:
    """The driver's end: accepts the slots of one subtopology. Mutable: a listening socket."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """`host`: the address to listen on, in its own family."""
        self.token = secrets.token_hex(32)
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.settimeout(_ACCEPT_S)
        self._strangers = threading.Semaphore(_MOST_STRANGERS)

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
            name = self._greet(link)
            if name not in names or name in links:
                link.close()
            else:
                links[name] = link
        return links

    def serve(self, take: Callable[[str, SlotLink], None]) -> None:
        """Accept slots until `close`.

        Args:
            take: Called with the name and the link of each, in a thread of its own; closes links that it does not keep.
        """

        def greet(link: SlotLink) -> None:
            try:
                name = self._greet(link)
            finally:
                self._strangers.release()
            if name:
                take(name, link)
            else:
                link.close()

        while True:
            try:
                link = SlotLink(self._socket.accept()[0])
            except TimeoutError:
                continue
            except OSError:  # closed meanwhile
                return
            # A hello is read beside the others: on a network, a stranger that sends nothing must not hold up slots.
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=greet, args=(link,), name="headrace-hello", daemon=True).start()
            else:
                link.close()

    def _greet(self, link: SlotLink) -> str:
        """Read the hello of a new connection. Return its name; empty for a stranger."""
        hello = link.receive(most_bytes=_HELLO_BYTES, within_s=_HELLO_S)
        name = self._name_of(hello)
        if hello is not None and name:
            link.pid = int(hello["pid"])
            link.hello = {key: value for key, value in hello.items() if key != "token"}
        return name

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _name_of(self, hello: Mapping[str, Any] | None) -> str:
        """Return the name in a hello with the token; empty for any other token."""
        # Compared in constant time, so that the token cannot be guessed byte by byte.
        if hello is None or not hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode()):
            return ""
        return str(hello.get("name"))


def _is_readable(connected: socket.socket, within_s: float) -> bool:
    # `select.select` takes file descriptors below 1024 only.
    poller = select.poll()
    poller.register(connected, select.POLLIN)
    return bool(poller.poll(max(0.0, within_s) * 1000))
