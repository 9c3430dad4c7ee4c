"""Listening sockets: bound before anything on the disk is touched, so a taken port costs nothing.

`TlsAcceptor` takes in the connections of a TLS listener: counted from their first moment, and ended when the handshake
takes too long. asyncio's own TLS server shows a connection only behind its handshake; a client that sends nothing
would not be counted. Hence the sockets are accepted here, and `connection_made` comes when TLS stands.

`ConnectionLimits` counts connections and the bytes held for them: `max.connections`, `max.connections.per.ip` with
overrides, `max.connection.creation.rate`, the quota `connection_creation_rate` of addresses. A connection that is too
many is closed at once. Time is an argument.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.config.listener_configuration import ListenerConfiguration
from headrace.broker.requests.quotas import MOST_METERS, Rate
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.listener_security import ListenerSecurity, listener_security
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.broker.monitoring.server_metrics import CloseReason, Login

__all__ = ["AcceptedConnection", "ConnectionLimits", "Listener", "Listeners", "TlsAcceptor", "bind", "is_loopback"]


EVERYWHERE = ("0.0.0.0", "::")

# Connections that the kernel completes before they are accepted. After a restart all clients connect again at the same
# time, and with a full queue their SYNs are dropped and repeated only after 1 s.
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
        """Take the ports and make TLS and SASL ready; return the first listener's port. Raises ConfigError."""
        try:
            # Certificates and users are read before the port is taken: a mistake in them leaves nothing to undo.
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
        """Accept clients; a TLS handshake may take `timeout_ms`."""
        loop = asyncio.get_running_loop()
        for listener, bound in zip(self.listeners.values(), tuple(self._sockets), strict=True):
            new, context = partial(newcomer, listener), listener.security.tls
            if context is None:
                self._open.append(await loop.create_server(cast("Callable[[], asyncio.BaseProtocol]", new), sock=bound))
            else:
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
        # 1. What the operator set, for clients behind NAT or in other containers.
        if configuration.advertised is not None:
            host, port = configuration.advertised
            return host, port or listener.port
        # 2. A wildcard address is none that a client could use: the one it reached us at works for it.
        if configuration.host in EVERYWHERE:
            return context.local_address[0], listener.port
        return configuration.host, listener.port

    def open_to_the_world(self) -> tuple[ListenerConfiguration, ...]:
        """Return the listeners that are reachable from outside and neither encrypt nor ask who comes."""
        return tuple(
            each for each in self._configurations if each.protocol == "PLAINTEXT" and not is_loopback(each.host)
        )


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket. Port 0 takes a free one. Connections wait in its backlog.

    Raises:
        ConfigError: port-taken, bad-value.
    """
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted broker must not wait for TIME_WAIT of its former connections.
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


logger = logging.getLogger("headrace.broker")

_PAUSE_S: Final = 0.1  # when the process has no file left for another socket
# The reasons by which OpenSSL refuses a first record that is none of TLS: HTTP, or Kafka's protocol in plain text.
_NOT_TLS: Final = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


class AcceptedConnection(Protocol):
    """The part of a `ClientConnection` that listeners use; it is an asyncio protocol as well.

    Declared here rather than imported, so that listeners, and the services that know them, do not depend on
    connections.
    """

    peer: tuple[str, int]
    close_reason: CloseReason

    def accept_peer(self, peer: tuple[str, int], local: tuple[str, int]) -> bool:
        """Count the connection; False if a limit refuses it."""

    def count_login(self, login: Login) -> None:
        """Count the outcome of a login or a handshake."""

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback: the connection is closed."""


class TlsAcceptor:
    """Mutable: one listener. `close` ends it and the handshakes under way; who is in stays."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        *,
        timeout_ms: int,
        newcomer: Callable[[], AcceptedConnection],
    ) -> None:
        self._listening = listening
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._newcomer = newcomer
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in tuple(self._handshakes):
            handshake.cancel()
        # Not before the loop has let go of it.
        self._accepting.add_done_callback(lambda _: self._listening.close())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            # EMFILE and its like: the socket stays in the backlog. Without the pause this loop would take a whole core.
            except OSError as error:
                logger.error("A connection could not be accepted (%s); retrying.", error.strerror or error)
                await asyncio.sleep(_PAUSE_S)
                continue
            handshake = loop.create_task(self._do_handshake(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _do_handshake(self, accepted: socket.socket) -> None:
        connection = self._newcomer()
        accepted.setblocking(False)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer, local = accepted.getpeername(), accepted.getsockname()
        except OSError:  # it left before it was looked at
            accepted.close()
            return
        # Limits count the connection before its handshake, which is the expensive part of it.
        if not connection.accept_peer(peer, local):
            accepted.close()
            return
        done = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: cast("asyncio.BaseProtocol", connection),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout_s,
            )
            done = True
        except (OSError, ssl.SSLError) as error:  # TimeoutError and ConnectionError among them
            logger.warning("Closed the connection of %s:%s: %s.", *connection.peer, _handshake_failure(error))
            connection.close_reason = "not-authenticated"
            if isinstance(error, ssl.SSLError):
                connection.count_login("failed-authentication")
        finally:
            if not done:
                accepted.close()
                connection.connection_lost(None)


def _handshake_failure(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "it does not speak TLS, and this listener does"
        return f"the TLS handshake failed ({(error.reason or str(error)).lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError) or "longer than" in str(error):
        return "the TLS handshake took too long"
    return "it left during the TLS handshake"


class ConnectionLimits:
    """Mutable: one broker's count."""

    def __init__(self, configuration: BrokerConfiguration) -> None:
        self._configuration = configuration
        self._by_address: dict[str, int] = {}
        self._total = 0
        # By address; "" is the rate of the whole broker.
        self._rates: dict[str, Rate] = {}
        self.receiving_bytes = 0
        self.unsent_bytes = 0

    def admit(self, address: str, now_ms: float, rate_of_address: float | None) -> bool:
        """Return whether one more connection of an address is allowed; if so, count it until `release`.

        Args:
            address: host of the client.
            now_ms: time of a steady clock.
            rate_of_address: allowed new connections per second of this address; None: no quota.
        """
        configuration = self._configuration
        there = self._by_address.get(address, 0)
        if self._total >= configuration.integer("max.connections") or there >= self._most(address):
            return False
        if self._too_fast("", configuration.integer("max.connection.creation.rate"), now_ms):
            return False
        if rate_of_address is not None and self._too_fast(address, rate_of_address, now_ms):
            return False
        self._by_address[address] = there + 1
        self._total += 1
        return True

    def release(self, address: str) -> None:
        """Forget a connection that was admitted."""
        self._total -= 1
        there = self._by_address[address] - 1
        if there:
            self._by_address[address] = there
        else:
            del self._by_address[address]

    def receiving(self, change: int) -> bool:
        """Account for bytes of incomplete requests of a connection; return whether it may hold them."""
        # The sum over all connections: one limit per connection would multiply by their number.
        self.receiving_bytes += change
        return change <= 0 or self.receiving_bytes <= self._configuration.integer("headrace.receiving.max.bytes")

    def unsent(self, change: int) -> bool:
        """Account for bytes of answers that a client has not read; return whether it may have them."""
        self.unsent_bytes += change
        return change <= 0 or self.unsent_bytes <= self._configuration.integer("headrace.unsent.max.bytes")

    def _most(self, address: str) -> int:
        for part in str(self._configuration.get("max.connections.per.ip.overrides") or "").split(","):
            host, _, number = part.strip().rpartition(":")
            if host == address and number.isdigit():
                return int(number)
        return self._configuration.integer("max.connections.per.ip")

    def _too_fast(self, whose: str, per_second: float, now_ms: float) -> bool:
        """Counts this one, unless it is refused."""
        # Kafka's default of this setting is `Int.MaxValue`, which stands for no limit.
        if per_second >= 2**31 - 1:
            return False
        rate = self._rates.get(whose)
        if rate is None:
            # Forgetting all meters lets an address off once; keeping one for every address that ever came would not
            # end.
            if len(self._rates) >= MOST_METERS:
                self._rates.clear()
            windows = self._configuration.integer("quota.window.num")
            rate = self._rates[whose] = Rate(windows, self._configuration.integer("quota.window.size.seconds") * 1000)
        if rate.throttle_ms(per_second, now_ms) > 0:
            return True
        # Refused connections are not counted: a client that retries faster than allowed would never be let in again.
        rate.record(1, now_ms)
        return False
