"""TLS and SASL settings of a listener: certificates, mechanisms, users; and the logins themselves.

Imported where a listener uses them: a broker on plain TCP does without.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.broker.network.listener_configuration import ListenerConfiguration
from headrace.broker.security.jaas import jaas_options, read_users, users_of
from headrace.broker.security.login import Credentials, LoginExchange
from headrace.broker.security.settings import listener_prefix
from headrace.client.security import load_identity, load_trusted, set_versions
from headrace.errors import ConfigError
from headrace.protocol.sasl.errors import SaslError
from headrace.protocol.sasl.plain import read_plain_message
from headrace.protocol.sasl.scram import MECHANISMS, ScramServer
from headrace.settings import list_of

__all__ = ["PLAIN", "login_by", "mechanisms_of", "plain_users_of", "server_context"]

PLAIN: Final = "PLAIN"
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_KEY = secrets.token_bytes(32)


def login_by(mechanism: str, plain_users: Mapping[str, str], credentials: Credentials) -> LoginExchange:
    """A new exchange, see `ListenerSecurity.login`."""
    if mechanism == PLAIN:
        return _PlainLogin(plain_users)
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
            raise SaslError("Authentication failed: Invalid username or password", is_for_client=True)
        if authorization_id and authorization_id != username:
            raise SaslError(
                "Authentication failed: Client requested an authorization id that is different from username",
                is_for_client=True,
            )
        self.username, self.complete = username, True
        return b""


def server_context(listener: ListenerConfiguration) -> ssl.SSLContext:
    """Raises ConfigError `bad-value`, as the others here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    set_versions(context, str(listener.get("ssl.enabled.protocols")))
    if not load_identity(context, listener.get):
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} speaks TLS and has no certificate.",
            "Set ssl.keystore.location to a PEM file with certificate and key, or ssl.keystore.certificate.chain and "
            "ssl.keystore.key (docs/how-to/security.md makes one in five minutes).",
        )
    # As Kafka: who logs in by SASL needs a certificate only where the listener's own settings require it.
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


def mechanisms_of(listener: ListenerConfiguration) -> tuple[str, ...]:
    """Return the enabled SASL mechanisms of a listener."""
    named = list_of(str(listener.get("sasl.enabled.mechanisms")))
    wrong = [name for name in named if name != PLAIN and name not in MECHANISMS]
    if wrong or not named:
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} cannot offer {', '.join(wrong) or 'no mechanism at all'}.",
            f"Set sasl.enabled.mechanisms to some of {', '.join((PLAIN, *MECHANISMS))}.",
        )
    return tuple(dict.fromkeys(named))


def plain_users_of(listener: ListenerConfiguration) -> dict[str, str]:
    """Return the PLAIN users of a listener, name → password."""
    setting = f"{listener_prefix(listener.name)}plain.sasl.jaas.config"
    text, file = listener.own("plain.sasl.jaas.config"), listener.get("headrace.sasl.plain.users.file")
    users = read_users(Path(str(file))) if file else {}
    if text:
        users |= users_of(jaas_options(setting, str(text)))
    if not users:
        raise ConfigError(
            "bad-value",
            f"The listener {listener.name} offers PLAIN and knows no user.",
            f"Set `{setting}` as Kafka has it, or headrace.sasl.plain.users.file to a file of name=password.",
        )
    return users
