"""Settings of listeners, TLS and SASL, and what `listeners` means by them. Pure.

The settings have Kafka's names, types and defaults; most may be set for one listener alone:
`listener.name.<listener>.<setting>` comes before `<setting>`. The JAAS text of a mechanism exists in that form only:
`listener.name.<listener>.<mechanism>.sasl.jaas.config`.

`listeners`, `advertised.listeners`, `listener.security.protocol.map` have one entry each: `NAME://host:port`. The name
selects the protocol (the map), and the settings that count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, cast

from headrace.errors import ConfigError
from headrace.settings import Kind, Setting, Value, list_of

__all__ = [
    "SECURITY_SETTINGS",
    "ListenerConfiguration",
    "SecurityProtocol",
    "listener_prefix",
    "listeners_of",
    "parse_addresses",
    "prefixed_setting",
]


_PREFIX: Final = "listener.name."
_JAAS: Final = ".sasl.jaas.config"


def listener_prefix(listener_name: str) -> str:
    """Return the prefix of a listener's own settings."""
    return f"{_PREFIX}{listener_name.lower()}."


def _row(
    name: str,
    kind: Kind,
    default: Value | None = None,
    minimum: int | None = None,
    *,
    choices: tuple[str, ...] = (),
    doc: str = "",
) -> Setting:
    return Setting(name=name, kind=kind, default=default, minimum=minimum, choices=choices, documentation=doc)


# Two groups, because only these may be set under `listener.name.<listener>.`; the settings of `_OF_BROKER` describe the
# listeners together.
_OF_LISTENERS: Final = (
    _row("ssl.keystore.type", "string", "JKS", doc="What is PEM is read as PEM; JKS and PKCS12 have to be converted."),
    _row("ssl.keystore.location", "string"),
    _row("ssl.keystore.password", "password"),
    _row("ssl.key.password", "password"),
    _row("ssl.keystore.certificate.chain", "password"),
    _row("ssl.keystore.key", "password"),
    _row("ssl.truststore.type", "string", "JKS"),
    _row("ssl.truststore.location", "string"),
    _row("ssl.truststore.password", "password"),
    _row("ssl.truststore.certificates", "password"),
    _row(
        "ssl.client.auth",
        "string",
        "none",
        choices=("required", "requested", "none"),
        doc="As in Kafka, SASL_SSL listeners go by it only under their own prefix.",
    ),
    _row("ssl.enabled.protocols", "list", "TLSv1.2,TLSv1.3"),
    _row("ssl.principal.mapping.rules", "string", "DEFAULT"),
    _row("sasl.enabled.mechanisms", "list", "GSSAPI", doc="Of PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512."),
    _row("sasl.server.max.receive.size", "int", 524288, 1),
    _row("connections.max.reauth.ms", "long", 0, 0),
    _row(
        "headrace.sasl.plain.users.file",
        "string",
        doc="A file of lines `name=password` for SASL PLAIN, beside or instead of the JAAS text.",
    ),
)
_OF_BROKER: Final = (
    _row(
        "listener.security.protocol.map",
        "string",
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    ),
    _row("inter.broker.listener.name", "string", doc="There are no other brokers: taken, and nothing depends on it."),
    _row("security.inter.broker.protocol", "string", "PLAINTEXT", doc="As inter.broker.listener.name."),
    _row("sasl.mechanism.inter.broker.protocol", "string", "GSSAPI", doc="As inter.broker.listener.name."),
    _row("controller.listener.names", "list", doc="Listeners that are not opened: there is no controller beside us."),
    _row("connection.failed.authentication.delay.ms", "int", 100, 0),
    _row(
        "headrace.authentication.timeout.ms",
        "int",
        10000,
        1,
        doc="So long a TLS handshake may take, and so long a SASL login: who says nothing is closed.",
    ),
)

SECURITY_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {setting.name: setting for setting in (*_OF_BROKER, *_OF_LISTENERS)}
)
_BY_NAME: Final = {setting.name: setting for setting in _OF_LISTENERS}


def prefixed_setting(name: str) -> Setting | None:
    """Return the setting behind `listener.name.<listener>.<setting>`; None for every other name."""
    if not name.startswith(_PREFIX):
        return None
    _, dot, rest = name.removeprefix(_PREFIX).partition(".")
    if not dot:
        return None
    # Three parts lie between the prefixes here (listener, mechanism), so the name cannot be looked up in the table.
    if name.endswith(_JAAS):
        return Setting(name=name, kind="password", default=None)
    setting = _BY_NAME.get(rest)
    if setting is None:
        return None
    return Setting(
        name=name, kind=setting.kind, default=setting.default, minimum=setting.minimum, choices=setting.choices
    )


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
        """Return the listener's own value, the broker's, or the default."""
        own = self.own(setting)
        if own is not None:
            return own
        row = SECURITY_SETTINGS[setting]
        return self.values.get(setting, row.default)

    def own(self, setting: str) -> Value | None:
        """Return the settings under `listener.name.<name>.`."""
        return self.values.get(listener_prefix(self.name) + setting)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def parse_addresses(setting: str, text: str) -> dict[str, Address]:
    """Return the addresses by listener name in capitals, in order. Raises ConfigError `bad-value`."""
    addresses: dict[str, Address] = {}
    for entry in list_of(text):
        found = _ENTRY.match(entry)
        if found is None or int(found[3]) > 65535:
            raise _invalid(setting, f"`{entry}` is not understood", f"`{setting}=PLAINTEXT://127.0.0.1:9092`")
        name = found[1].upper()
        if name in addresses:
            raise _invalid(setting, f"the listener {name} occurs twice", "one entry for each name")
        # IPv6 addresses stand in brackets in a URL and without them in a socket call.
        addresses[name] = (found[2].strip("[]"), int(found[3]))
    if not addresses:
        raise _invalid(setting, "no listener is named", f"`{setting}=PLAINTEXT://127.0.0.1:9092`")
    return addresses


def listeners_of(
    values: Mapping[str, Value], default: str, *, host: str | None = None, port: int | None = None
) -> tuple[ListenerConfiguration, ...]:
    """Return all listeners in order. `host` and `port` replace those of the first. Raises ConfigError `bad-value`."""
    addresses = parse_addresses("listeners", str(values.get("listeners", default)))
    advertised: dict[str, Address] = {}
    if "advertised.listeners" in values:
        advertised = parse_addresses("advertised.listeners", str(values["advertised.listeners"]))
    # Properties of a combined broker and controller are common; the controller's listeners are not opened.
    elsewhere = {name.upper() for name in list_of(str(values.get("controller.listener.names", "")))}
    wanted = [name for name in addresses if name not in elsewhere]
    if not wanted:
        raise _invalid("listeners", "only listeners of a controller are named", "at least one for clients")
    strange = [name for name in advertised if name not in addresses]
    if strange:
        raise _invalid(
            "advertised.listeners", f"{strange[0]} is not among `listeners`", f"names out of {', '.join(addresses)}"
        )
    _check_prefixes(values, addresses)
    protocols = _protocols(values)
    listeners = []
    for position, name in enumerate(wanted):
        own_host, own_port = addresses[name]
        # --host and --port on the command line mean the first listener.
        if position == 0:
            own_host, own_port = host or own_host, own_port if port is None else port
        listeners.append(
            ListenerConfiguration(
                name=name,
                protocol=_protocol(name, protocols),
                # An empty host means all addresses of the machine, as in Kafka; the default of `listeners` names the
                # loopback.
                host=own_host or "0.0.0.0",
                port=own_port,
                advertised=advertised.get(name),
                values=values,
            )
        )
    ports = [listener.port for listener in listeners if listener.port]
    # One port on two different addresses is allowed; port 0 is left out, since each 0 becomes another port.
    if len(set(ports)) != len(ports) and len({(each.host, each.port) for each in listeners}) != len(listeners):
        raise _invalid("listeners", "two listeners have the same address", "another port for each")
    return tuple(listeners)


def _protocols(values: Mapping[str, Value]) -> dict[str, str]:
    setting = "listener.security.protocol.map"
    protocols = {}
    for entry in list_of(str(values.get(setting, SECURITY_SETTINGS[setting].default))):
        name, _, protocol = entry.partition(":")
        if protocol.upper() not in PROTOCOLS:
            raise _invalid(
                setting, f"`{entry}` is not understood", f"NAME:PROTOCOL, the protocol {', '.join(PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol.upper()
    return protocols


def _protocol(name: str, protocols: Mapping[str, str]) -> SecurityProtocol:
    if name not in protocols:
        raise _invalid(
            "listeners", f"no protocol is known for {name}", f"`listener.security.protocol.map` with {name}:PLAINTEXT"
        )
    return cast("SecurityProtocol", protocols[name])


def _check_prefixes(values: Mapping[str, Value], addresses: Mapping[str, Address]) -> None:
    """A setting of a listener that is not there would silently do nothing."""
    prefixes = tuple(listener_prefix(name) for name in addresses)
    for name in values:
        if prefixed_setting(name) is not None and not name.startswith(prefixes):
            raise _invalid(name, "there is no such listener", f"the name of one out of {', '.join(addresses)}")


def _invalid(setting: str, why: str, wanted: str) -> ConfigError:
    return ConfigError("bad-value", f"`{setting}` cannot be: {why}.", f"Give it {wanted}.", setting=setting)
