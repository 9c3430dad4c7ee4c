"""`bootstrap.servers`: the addresses a client begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.client.connection import BrokerAddress
from penstock.errors import ConfigError

__all__ = ["parse_bootstrap_servers"]

DEFAULT_PORT: Final = 9092


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
