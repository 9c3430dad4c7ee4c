"""The listening socket: bound before anything on the disk is touched, so a taken port costs nothing."""

from __future__ import annotations

import errno
import ipaddress
import socket

from penstock.errors import ConfigError

__all__ = ["bind", "is_loopback"]

BACKLOG = 512


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; port 0 takes a free one. Raises ConfigError: port-taken, bad-value."""
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise _refusal(error, host, port) from error
    listening.setblocking(False)
    return listening


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int] | tuple[str, int, int, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(
            "bad-value",
            f"The broker cannot listen on {host}: {error.strerror}.",
            "Give it an address of this machine.",
            host=host,
        ) from error
    # IPv4 first: what most clients try for `localhost`.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address  # type: ignore[return-value]


def _refusal(error: OSError, host: str, port: int) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            "port-taken",
            f"Port {port} on {host} is taken: another process listens there.",
            f"Stop that process (`lsof -i :{port}` names it), or choose another port: --port {port % 65535 + 1}.",
            host=host,
            port=port,
        )
    if error.errno == errno.EACCES:
        return ConfigError(
            "bad-value", f"This user may not listen on port {port}.", "Choose a port above 1023.", host=host, port=port
        )
    return ConfigError(
        "bad-value",
        f"The broker cannot listen on {host}:{port}: {error.strerror}.",
        "Give it an address of this machine.",
        host=host,
        port=port,
    )
