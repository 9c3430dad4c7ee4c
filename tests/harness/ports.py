"""Loopback ports for servers whose port must be known before they start."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["find_free_port", "find_free_ports"]


def find_free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports on which no process listens.

    Another process may take a port before the caller does. Bind to port 0 instead where the server can report its port.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def find_free_port() -> int:
    """Return one such port."""
    return find_free_ports(1)[0]
