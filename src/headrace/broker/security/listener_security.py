"""Security of a listener, prepared at the start: its TLS context, its SASL mechanisms, its users.

Invalid settings are reported at the start, not when the first client comes. What TLS and SASL need is imported where a
listener has them (`secured_listener`).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.config.listener_configuration import ListenerConfiguration
from headrace.broker.requests.request_context import ANONYMOUS, Principal

if TYPE_CHECKING:
    from headrace.broker.security.certificate_name import MappingRule
    from headrace.broker.security.credentials import Credentials, LoginExchange

__all__ = [
    "ListenerSecurity",
    "listener_security",
    "principal_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """`tls` None: nothing is encrypted; `mechanisms` empty: clients do not log in."""

    tls: ssl.SSLContext | None
    mapping_rules: tuple[MappingRule, ...]
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    receive_bytes: int
    reauth_ms: int

    def __repr__(self) -> str:
        # The generated form would print `plain_users` with their passwords into logs and tracebacks.
        return f"ListenerSecurity(tls={self.tls is not None}, mechanisms={self.mechanisms})"

    def login(self, mechanism: str, credentials: Credentials) -> LoginExchange:
        """Begin an exchange of one of `mechanisms`."""
        from headrace.broker.security.secured_listener import login_by

        return login_by(mechanism, self.plain_users, credentials)


def listener_security(listener: ListenerConfiguration) -> ListenerSecurity:
    """Read the security of a listener. Raises ConfigError `bad-value`."""
    tls: ssl.SSLContext | None = None
    mechanisms: tuple[str, ...] = ()
    plain_users: Mapping[str, str] = {}
    # Certificates and users are read here, at the start: a broker that opens its port and then refuses every handshake
    # is harder to diagnose than one that does not start.
    if listener.uses_tls or listener.uses_sasl:
        from headrace.broker.security import secured_listener as secured

        mechanisms = secured.mechanisms_of(listener) if listener.uses_sasl else ()
        tls = secured.server_context(listener) if listener.uses_tls else None
        plain_users = secured.plain_users_of(listener) if secured.PLAIN in mechanisms else {}
    return ListenerSecurity(
        tls=tls,
        mapping_rules=_mapping_rules(listener),
        mechanisms=mechanisms,
        plain_users=plain_users,
        receive_bytes=int(str(listener.get("sasl.server.max.receive.size"))),
        reauth_ms=int(str(listener.get("connections.max.reauth.ms"))),
    )


def principal_of(security: ListenerSecurity, certificate: bytes | None) -> Principal | None:
    """Return the principal of a client's certificate (DER); ANONYMOUS without one. None where no rule fits its name."""
    # ssl.client.auth=requested lets a client without a certificate in; as in Kafka it is ANONYMOUS then, and access
    # rules decide what that means.
    if certificate is None:
        return ANONYMOUS
    from headrace.broker.security.certificate_name import map_name, subject_name

    name = map_name(security.mapping_rules, subject_name(certificate))
    return None if name is None else Principal(name=name)


def _mapping_rules(listener: ListenerConfiguration) -> tuple[MappingRule, ...]:
    """Parse the rules. Without TLS there are no certificates, but invalid rules are reported all the same."""
    text = str(listener.get("ssl.principal.mapping.rules"))
    if text == "DEFAULT" and not listener.uses_tls:
        return ()
    from headrace.broker.security.certificate_name import parse_mapping_rules

    return parse_mapping_rules(text)
