"""`listeners`, `advertised.listeners`, `listener.security.protocol.map`: where the broker listens, and how.

One entry each: `NAME://host:port`. The name says which protocol is spoken (the map), and which settings count
(`listener.name.<name>.…`, see `security.settings`). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from headrace.broker.security.settings import SECURITY_SETTINGS, listener_prefix, prefixed_setting
from headrace.errors import ConfigError
from headrace.settings import Value, list_of

__all__ = ["ListenerConfiguration", "SecurityProtocol", "listeners_of", "parse_addresses"]

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
Address = tuple[str, int]

_ENTRY = re.compile(r"([A-Za-z0-9_-]+)://(.*):([0-9]{1,5})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfiguration:
    """One listener. Port 0 takes a free one; `advertised` is the address for its clients, where that was set."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: Address | None
    values: Mapping[str, Value]

    def get(self, setting: str) -> Value | None:
        """The listener's own value, else the broker's, else the default."""
        own = self.own(setting)
        if own is not None:
            return own
        row = SECURITY_SETTINGS[setting]
        return self.values.get(setting, row.default)

    def own(self, setting: str) -> Value | None:
        """The settings under `listener.name.<name>.`."""
        return self.values.get(listener_prefix(self.name) + setting)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def parse_addresses(setting: str, text: str) -> dict[str, Address]:
    """Listener name, in capitals → address, in order. Raises ConfigError `bad-value`."""
    addresses: dict[str, Address] = {}
    for entry in list_of(text):
        found = _ENTRY.match(entry)
        if found is None or int(found[3]) > 65535:
            raise _bad(setting, f"`{entry}` is not understood", f"`{setting}=PLAINTEXT://127.0.0.1:9092`")
        name = found[1].upper()
        if name in addresses:
            raise _bad(setting, f"the listener {name} stands there twice", "one entry for each name")
        addresses[name] = (found[2].strip("[]"), int(found[3]))
    if not addresses:
        raise _bad(setting, "no listener is named", f"`{setting}=PLAINTEXT://127.0.0.1:9092`")
    return addresses


def listeners_of(
    values: Mapping[str, Value], default: str, *, host: str | None = None, port: int | None = None
) -> tuple[ListenerConfiguration, ...]:
    """All listeners in order. `host` and `port` come before what the first one says. Raises ConfigError `bad-value`."""
    addresses = parse_addresses("listeners", str(values.get("listeners", default)))
    advertised: dict[str, Address] = {}
    if "advertised.listeners" in values:
        advertised = parse_addresses("advertised.listeners", str(values["advertised.listeners"]))
    elsewhere = {name.upper() for name in list_of(str(values.get("controller.listener.names", "")))}
    wanted = [name for name in addresses if name not in elsewhere]
    if not wanted:
        raise _bad("listeners", "only listeners of a controller are named", "at least one for clients")
    strange = [name for name in advertised if name not in addresses]
    if strange:
        raise _bad(
            "advertised.listeners", f"{strange[0]} is not among `listeners`", f"names out of {', '.join(addresses)}"
        )
    _check_prefixes(values, addresses)
    protocols = _protocols(values)
    listeners = []
    for position, name in enumerate(wanted):
        own_host, own_port = addresses[name]
        if position == 0:
            own_host, own_port = host or own_host, own_port if port is None else port
        listeners.append(
            ListenerConfiguration(
                name=name,
                protocol=_protocol(name, protocols),
                host=own_host or "0.0.0.0",
                port=own_port,
                advertised=advertised.get(name),
                values=values,
            )
        )
    ports = [listener.port for listener in listeners if listener.port]
    if len(set(ports)) != len(ports) and len({(each.host, each.port) for each in listeners}) != len(listeners):
        raise _bad("listeners", "two listeners have the same address", "another port for each")
    return tuple(listeners)


def _protocols(values: Mapping[str, Value]) -> dict[str, str]:
    setting = "listener.security.protocol.map"
    protocols = {}
    for entry in list_of(str(values.get(setting, SECURITY_SETTINGS[setting].default))):
        name, _, protocol = entry.partition(":")
        if protocol.upper() not in PROTOCOLS:
            raise _bad(setting, f"`{entry}` is not understood", f"NAME:PROTOCOL, the protocol {', '.join(PROTOCOLS)}")
        protocols[name.upper()] = protocol.upper()
    return protocols


def _protocol(name: str, protocols: Mapping[str, str]) -> SecurityProtocol:
    if name not in protocols:
        raise _bad(
            "listeners", f"no protocol is known for {name}", f"`listener.security.protocol.map` with {name}:PLAINTEXT"
        )
    return cast("SecurityProtocol", protocols[name])


def _check_prefixes(values: Mapping[str, Value], addresses: Mapping[str, Address]) -> None:
    """A setting of a listener that is not there would silently do nothing."""
    prefixes = tuple(listener_prefix(name) for name in addresses)
    for name in values:
        if prefixed_setting(name) is not None and not name.startswith(prefixes):
            raise _bad(name, "there is no such listener", f"the name of one out of {', '.join(addresses)}")


def _bad(setting: str, why: str, wanted: str) -> ConfigError:
    return ConfigError("bad-value", f"`{setting}` cannot be: {why}.", f"Give it {wanted}.", setting=setting)
