"""Settings of listeners, TLS and SASL: Kafka's names, types and defaults. Most may be set for one listener alone.

`listener.name.<listener>.<setting>` comes before `<setting>`; the JAAS text of a mechanism exists in that form only:
`listener.name.<listener>.<mechanism>.sasl.jaas.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.settings import Kind, Setting, Value

__all__ = ["SECURITY_SETTINGS", "listener_prefix", "prefixed_setting"]

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
    if name.endswith(_JAAS):
        return Setting(name=name, kind="password", default=None)
    setting = _BY_NAME.get(rest)
    if setting is None:
        return None
    return Setting(
        name=name, kind=setting.kind, default=setting.default, minimum=setting.minimum, choices=setting.choices
    )
