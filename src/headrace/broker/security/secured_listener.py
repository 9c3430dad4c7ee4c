"""TLS and SASL settings of a listener: certificates, mechanisms, users; and the logins themselves.

Imported where a listener uses them: a broker on plain TCP does without. `jaas_options` reads the text of
`sasl.jaas.config`: `org.….PlainLoginModule required username="a" user_a="secret";`. No password stands in any error.
"""

from __future__ import annotations

import hmac
import re
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.broker.config.listener_configuration import ListenerConfiguration, listener_prefix
from headrace.broker.security.credentials import AddedUser, Credentials, LoginExchange
from headrace.client.security import load_identity, load_trusted, set_versions
from headrace.errors import ConfigError
from headrace.protocol.sasl import SaslError
from headrace.protocol.sasl.mechanisms import (
    MAX_STORED_ITERATIONS,
    MECHANISMS,
    ScramServer,
    credential_of,
    read_plain_message,
    salted_password,
)
from headrace.settings import list_of

__all__ = [
    "PLAIN",
    "jaas_options",
    "login_by",
    "mechanisms_of",
    "parse_added_user",
    "plain_users_of",
    "read_users",
    "server_context",
    "users_of",
]


PLAIN: Final = "PLAIN"
_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# Random per process: digests of passwords must not be comparable between processes or be looked up in tables.
_KEY = secrets.token_bytes(32)


def login_by(mechanism: str, plain_users: Mapping[str, str], credentials: Credentials) -> LoginExchange:
    """Begin an exchange, see `ListenerSecurity.login`."""
    if mechanism == PLAIN:
        return _PlainLogin(plain_users)
    return ScramServer(
        MECHANISMS[mechanism],
        # 24 random bytes as printable ASCII without a comma, as RFC 5802 requires of a nonce.
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
    """Build the TLS context. Raises ConfigError `bad-value`, as the others here."""
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
    # The JAAS text wins over the file where both name a user: it is the more specific setting, of one listener.
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


_TOKEN = re.compile(r'\s*(?:([A-Za-z0-9_.$-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+)))')
_MODULE = re.compile(r"\s*([A-Za-z0-9_.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)


def jaas_options(setting: str, text: str) -> dict[str, str]:
    """Return the options of the login module. Raises ConfigError `bad-value`."""
    module = _MODULE.match(text)
    if module is None:
        raise _invalid_jaas(setting)
    options: dict[str, str] = {}
    position = module.end()
    while (found := _TOKEN.match(text, position)) is not None:
        quoted, bare = found[2], found[3]
        options[found[1]] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    # Text that the tokens did not consume is refused: an option that was silently skipped would be a user who cannot
    # log in.
    if text[position:].strip() != ";":
        raise _invalid_jaas(setting)
    return options


def users_of(options: dict[str, str]) -> dict[str, str]:
    """Return passwords by user name, of a broker's PlainLoginModule."""
    return {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}


def read_users(path: Path) -> dict[str, str]:
    """Read a file of lines `name=password`; `#` begins a comment. Raises ConfigError `bad-value`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is not UTF-8").lower()
        raise ConfigError("bad-value", f"{path} cannot be read: {reason}.", "Name a file of name=password.") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, password = line.partition("=")
        if not separator or not name.strip() or not password:
            raise ConfigError("bad-value", f"Line {number} of {path} is no name=password.", "Write one user per line.")
        users[name.strip()] = password
    return users


def _invalid_jaas(setting: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"`{setting}` is not understood.",
        'Write it as Kafka does: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="…";',
        setting=setting,
    )


_SALT_BYTES = 20


def parse_added_user(text: str) -> AddedUser:
    """`SCRAM-SHA-512=[name=alice,password=secret,iterations=8192]`, as kafka-storage takes it: user, mechanism,
    credential. Raises ConfigError `bad-value`, which never repeats the text."""
    name, separator, rest = text.strip().partition("=")
    mechanism = MECHANISMS.get(name.strip())
    if mechanism is None or not separator or not (rest.startswith("[") and rest.endswith("]")):
        raise _invalid_user("it is not understood")
    # The same text as kafka-storage's --add-scram, so that scripts carry over.
    options = dict(part.partition("=")[::2] for part in rest[1:-1].split(","))
    strange = set(options) - {"name", "password", "iterations"}
    if strange or not options.get("name") or not options.get("password"):
        raise _invalid_user("name and password are needed, iterations are possible")
    iterations = options.get("iterations", str(mechanism.min_iterations))
    if not iterations.isdigit() or not mechanism.min_iterations <= int(iterations) <= MAX_STORED_ITERATIONS:
        raise _invalid_user(f"iterations must be a number from {mechanism.min_iterations} to {MAX_STORED_ITERATIONS}")
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, options["password"], salt, int(iterations))
    return options["name"], mechanism.name, credential_of(mechanism, salted, salt, int(iterations))


def _invalid_user(why: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"A SCRAM user that was to be added cannot be read: {why}.",
        "Write it as kafka-storage takes it: SCRAM-SHA-512=[name=alice,password=…].",
    )
