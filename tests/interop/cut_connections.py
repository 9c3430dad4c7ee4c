"""A proxy before one broker that loses a chosen request or its answer once, as a broker that is killed at that moment.

Clients connect to it and must be told of it as the broker's address, so it is the broker's advertised listener.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Literal

from tests.harness.wire import read_exactly

__all__ = ["CuttingProxy", "Loss"]

Loss = Literal["request", "answer"]


class CuttingProxy:
    """Mutable. `lose_next` arms it: the next request of that API is not passed on, or passed on and not answered, and
    all connections are cut."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.target = 0
        self.lost = threading.Event()
        self._armed: tuple[int, Loss] | None = None
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self, api_key: int, loss: Loss) -> None:
        self.lost.clear()
        self._armed = int(api_key), loss

    def close(self) -> None:
        self._is_closed = True
        # Closing alone would leave the thread in `accept`, and with it the port: the next client would get through.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target), timeout=30)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, broker}
            if self._is_closed:  # a client came while the proxy was being closed
                self.cut()
                return
            doomed: set[int] = set()
            for source, sink, asks in ((client, broker, True), (broker, client, False)):
                threading.Thread(target=self._pump, args=(source, sink, asks, doomed), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool, doomed: set[int]) -> None:
        try:
            while True:
                head = read_exactly(source, 4)
                frame = read_exactly(source, struct.unpack(">i", head)[0])
                loses = self._is_lost(frame, doomed) if asks else struct.unpack_from(">i", frame)[0] in doomed
                if loses:
                    self.lost.set()
                    self.cut()
                    return
                sink.sendall(head + frame)
        except (OSError, EOFError):
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _is_lost(self, frame: bytes, doomed: set[int]) -> bool:
        """Whether this request ends here; one whose answer is to be lost is noted in `doomed` and passed on."""
        api_key, _, correlation_id = struct.unpack_from(">hhi", frame)
        armed = self._armed
        if armed is None or armed[0] != api_key:
            return False
        self._armed = None
        if armed[1] == "answer":
            doomed.add(correlation_id)
            return False
        return True
