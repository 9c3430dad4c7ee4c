"""`bootstrap.servers`: the addresses a client begins with, and what to say when nobody answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.client.connection import BrokerAddress, ConnectionLost, NotKafka
from headrace.errors import CannotConnect, ConfigError

__all__ = ["parse_bootstrap_servers", "unreachable"]

DEFAULT_PORT: Final = 9092
_CLOSED: Final = "the broker closed the connection"


def parse_bootstrap_servers(servers: str | Sequence[str]) -> tuple[BrokerAddress, ...]:
    """`"host:port,host:port"` or a sequence of them; without a port 9092. Raises ConfigError `bad-value`."""
    listed = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = tuple(_address(entry.strip()) for entry in listed if entry.strip())
    if not addresses:
        raise ConfigError("bad-value", "bootstrap.servers names no broker", "give host:port, e.g. localhost:9092")
    return addresses


def _address(entry: str) -> BrokerAddress:
    host, colon, port = entry.rpartition(":")
    if not colon or (entry.count(":") > 1 and not entry.startswith("[")):
        return BrokerAddress(entry.strip("[]"), DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise ConfigError("bad-value", f"bootstrap.servers has {entry!r}, which is no host:port", "e.g. localhost:9092")
    return BrokerAddress(host.strip("[]"), int(port))


def unreachable(error: ConnectionLost, bootstrap: Sequence[BrokerAddress], tried_ms: float | None) -> CannotConnect:
    """The error a user meets; `tried_ms` None where trying again would not help."""
    known = ", ".join(str(address) for address in bootstrap)
    where = str(error.address) if error.address.port else known
    tried = "" if tried_ms is None else f", tried for {max(1, round(tried_ms / 1000))} s"
    fix = f"start a broker there, or set bootstrap.servers (now {known}) to one that runs"
    if error.address.port and error.address not in bootstrap:
        fix = f"the brokers at {known} name this address: check advertised.listeners, and that the broker runs"
    elif error.why.startswith(_CLOSED):
        # Listeners with another protocol than the client's close without an answer; so does a broker that stops.
        expected = "may not speak TLS" if "TLS" in error.why else "may expect TLS or a login"
        fix = f"check security.protocol: the listener at {where} {expected}"
    elif isinstance(error, NotKafka):
        fix = f"set bootstrap.servers (now {known}) to the address of a Kafka broker"
    return CannotConnect(
        "broker-unreachable",
        f"nobody answers as a Kafka broker at {where} ({error.why}{tried})",
        fix,
        bootstrap_servers=known,
        why=error.why,
    )
