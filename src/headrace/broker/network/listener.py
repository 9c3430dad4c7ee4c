"""The listening sockets: bound before anything on the disk is touched, so a taken port costs nothing."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from headrace.broker.network.listener_configuration import ListenerConfiguration
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.listener_security import ListenerSecurity, listener_security
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.security.tls_acceptor import AcceptedConnection, TlsAcceptor

__all__ = ["Listener", "Listeners", "bind", "is_loopback"]

EVERYWHERE = ("0.0.0.0", "::")

BACKLOG = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener that is bound; `port` is the one in fact taken."""

    configuration: ListenerConfiguration
    security: ListenerSecurity
    port: int

    @property
    def name(self) -> str:
        return self.configuration.name


class Listeners:
    """Mutable: all listeners of one broker, from `bind` to `close`."""

    def __init__(self, configurations: tuple[ListenerConfiguration, ...]) -> None:
        self._configurations = configurations
        self._sockets: list[socket.socket] = []
        self._open: list[asyncio.Server | TlsAcceptor] = []
        self.listeners: dict[str, Listener] = {}

    def bind(self) -> int:
        """Takes the ports and makes TLS and SASL ready; the first listener's port. Raises ConfigError."""
        try:
            for each in self._configurations:
                security = listener_security(each)
                bound = bind(each.host, each.port)
                self._sockets.append(bound)
                port = int(bound.getsockname()[1])
                self.listeners[each.name] = Listener(configuration=each, security=security, port=port)
        except BaseException:
            self.close()
            raise
        return next(iter(self.listeners.values())).port

    async def open(self, newcomer: Callable[[Listener], AcceptedConnection], *, timeout_ms: int) -> None:
        """From now on clients are taken in; a TLS handshake may take `timeout_ms`."""
        loop = asyncio.get_running_loop()
        for listener, bound in zip(self.listeners.values(), tuple(self._sockets), strict=True):
            new, context = partial(newcomer, listener), listener.security.tls
            if context is None:
                self._open.append(await loop.create_server(cast("Callable[[], asyncio.BaseProtocol]", new), sock=bound))
            else:
                from headrace.broker.security.tls_acceptor import TlsAcceptor

                self._open.append(TlsAcceptor(bound, context, timeout_ms=timeout_ms, newcomer=new))
            self._sockets.remove(bound)

    def close(self) -> None:
        """Accept no new connections; open ones stay."""
        for each in (*self._open, *self._sockets):
            each.close()
        self._open.clear()
        self._sockets.clear()

    def address(self, context: RequestContext) -> tuple[str, int]:
        """Return the address that a client shall connect to: its listener's advertised address, or the one it has
        reached us at."""
        listener = self.listeners.get(context.listener_name)
        if listener is None:
            return context.local_address
        configuration = listener.configuration
        if configuration.advertised is not None:
            host, port = configuration.advertised
            return host, port or listener.port
        if configuration.host in EVERYWHERE:
            return context.local_address[0], listener.port
        return configuration.host, listener.port

    def open_to_the_world(self) -> tuple[ListenerConfiguration, ...]:
        """Those that are reachable from outside and neither encrypt nor ask who comes."""
        return tuple(
            each for each in self._configurations if each.protocol == "PLAINTEXT" and not is_loopback(each.host)
        )


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
    """Whether the host is a loopback address."""
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
