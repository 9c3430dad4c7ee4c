"""What a listener asks of its clients, made ready at the start: the TLS context, the SASL mechanisms, the users.

Everything that cannot be is told at the start, not when the first client comes.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.broker.listener_configuration import ListenerConfiguration
from penstock.broker.security.certificate_name import MappingRule, map_name, parse_mapping_rules, subject_name
from penstock.broker.security.jaas import jaas_options, read_users, users_of
from penstock.broker.security.principal import ANONYMOUS, Principal
from penstock.broker.security.settings import listener_prefix
from penstock.client.tls_files import load_identity, load_trusted, set_versions
from penstock.errors import ConfigError
from penstock.protocol.sasl.plain import read_plain_message
from penstock.protocol.sasl.refused import SaslRefused
from penstock.protocol.sasl.scram import MECHANISMS, ScramCredential, ScramServer
from penstock.settings import list_of

__all__ = ["Credentials", "ListenerSecurity", "Login", "listener_security", "principal_of"]

PLAIN: Final = "PLAIN"
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Credentials(Protocol):
    """Who may log in by SCRAM; `scram_credentials` of the broker."""

    def credential(self, username: str, mechanism: str) -> ScramCredential | None: ...
    @property
    def secret(self) -> bytes: ...


class Login(Protocol):
    """One SASL exchange; `username` counts once it is complete."""

    username: str
    complete: bool

    def evaluate(self, message: bytes) -> bytes:
        """The answer. Raises SaslRefused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """`tls` None: nothing is encrypted; `mechanisms` empty: nobody is asked who they are."""

    tls: ssl.SSLContext | None
    mapping_rules: tuple[MappingRule, ...]
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    receive_bytes: int
    reauth_ms: int

    def __repr__(self) -> str:
        return f"ListenerSecurity(tls={self.tls is not None}, mechanisms={self.mechanisms})"

    def login(self, mechanism: str, credentials: Credentials) -> Login:
        """A new exchange of one of `mechanisms`."""
        if mechanism == PLAIN:
            return _PlainLogin(self.plain_users)
        return ScramServer(
            MECHANISMS[mechanism],
            nonce=secrets.token_urlsafe(24),
            credential=lambda username: credentials.credential(username, mechanism),
            secret=credentials.secret,
        )


class _PlainLogin:
    """One login by PLAIN."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.username = ""
        self.complete = False

    def evaluate(self, message: bytes) -> bytes:
        authorization_id, username, password = read_plain_message(message)
        expected = self._users.get(username)
        # Digests, so that neither the length nor the missing of a password shows in the time.
        given, wanted = (hmac.digest(_KEY, text.encode(), "sha256") for text in (password, expected or ""))
        if not hmac.compare_digest(given, wanted) or expected is None:
            raise SaslRefused("Authentication failed: Invalid username or password", told=True)
        if authorization_id and authorization_id != username:
            raise SaslRefused(
                "Authentication failed: Client requested an authorization id that is different from username",
                told=True,
            )
        self.username, self.complete = username, True
        return b""


_KEY = secrets.token_bytes(32)


def listener_security(listener: ListenerConfiguration) -> ListenerSecurity:
    """Raises ConfigError `bad-value`."""
    mechanisms = _mechanisms(listener) if listener.uses_sasl else ()
    return ListenerSecurity(
        tls=_server_context(listener) if listener.uses_tls else None,
        mapping_rules=parse_mapping_rules(str(listener.get("ssl.principal.mapping.rules"))),
        mechanisms=mechanisms,
        plain_users=_plain_users(listener) if PLAIN in mechanisms else {},
        receive_bytes=int(str(listener.get("sasl.server.max.receive.size"))),
        reauth_ms=int(str(listener.get("connections.max.reauth.ms"))),
    )


def principal_of(security: ListenerSecurity, certificate: bytes | None) -> Principal | None:
    """Who a client is by its certificate (DER); ANONYMOUS without one. None where no rule fits its name."""
    if certificate is None:
        return ANONYMOUS
    name = map_name(security.mapping_rules, subject_name(certificate))
    return None if name is None else Principal(name=name)


def _server_context(listener: ListenerConfiguration) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    set_versions(context, str(listener.get("ssl.enabled.protocols")))
    if not load_identity(context, listener.get):
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} speaks TLS and has no certificate.",
            "Set ssl.keystore.location to a PEM file with certificate and key, or ssl.keystore.certificate.chain and "
            "ssl.keystore.key (docs/security.md makes one in five minutes).",
        )
    # As Kafka: who logs in by SASL needs a certificate only where the listener itself says so.
    wanted = listener.own("ssl.client.auth") if listener.uses_sasl else listener.get("ssl.client.auth")
    trusted = load_trusted(context, listener.get)
    context.verify_mode = _VERIFY[str(wanted or "none")]
    if context.verify_mode is not ssl.CERT_NONE and not trusted:
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} asks clients for certificates and trusts none.",
            "Set ssl.truststore.location or ssl.truststore.certificates to the PEM of the authority that signs them.",
        )
    return context


def _mechanisms(listener: ListenerConfiguration) -> tuple[str, ...]:
    named = list_of(str(listener.get("sasl.enabled.mechanisms")))
    wrong = [name for name in named if name != PLAIN and name not in MECHANISMS]
    if wrong or not named:
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} cannot offer {', '.join(wrong) or 'no mechanism at all'}.",
            f"Set sasl.enabled.mechanisms to some of {', '.join((PLAIN, *MECHANISMS))}.",
        )
    return tuple(dict.fromkeys(named))


def _plain_users(listener: ListenerConfiguration) -> dict[str, str]:
    setting = f"{listener_prefix(listener.name)}plain.sasl.jaas.config"
    text, file = listener.own("plain.sasl.jaas.config"), listener.get("penstock.sasl.plain.users.file")
    users = read_users(Path(str(file))) if file else {}
    if text:
        users |= users_of(jaas_options(setting, str(text)))
    if not users:
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} offers PLAIN and knows no user.",
            f"Set `{setting}` as Kafka has it, or penstock.sasl.plain.users.file to a file of name=password.",
        )
    return users
