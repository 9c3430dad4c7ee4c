"""Security of client connections: `security.protocol`, `ssl.*`, `sasl.*`, by Kafka's names. No secret is printed.

TLS verifies the certificate against `ssl.truststore.*`, or the system's authorities without it, and the host name
unless `ssl.endpoint.identification.algorithm` is empty. SASL: PLAIN, SCRAM, and OAUTHBEARER with tokens of a callback;
a login for each connection, repeated before the broker's session ends (KIP-368).

Kafka accepts PEM as text in the settings (`ssl.keystore.certificate.chain`, `ssl.keystore.key`,
`ssl.truststore.certificates`) or as a file (`ssl.keystore.location`, `ssl.truststore.location`). Java's own formats
cannot be read without Java; the error contains the command that converts them. Broker and client both load certificates
with `load_identity` and `load_trusted`.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from headrace.errors import CannotConnect, ConfigError, UserCodeError
from headrace.protocol.sasl import SaslError
from headrace.protocol.sasl.mechanisms import MECHANISMS, OAUTHBEARER, ScramClient, bearer_message, plain_message

__all__ = [
    "PLAINTEXT",
    "ClientSecurity",
    "TokenProvider",
    "authentication_failed",
    "load_identity",
    "load_trusted",
    "set_versions",
    "tls_failed",
]

Get = Callable[[str], object]

_BEGIN: Final = "-----BEGIN"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def load_identity(context: ssl.SSLContext, get: Get) -> bool:
    """Load this side's certificate and key into a context; return whether there are any.

    Raises:
        ConfigError: `bad-value`.
    """
    # PEM as text (KIP-651) comes before files, as in Kafka's `DefaultSslEngineFactory`.
    chain, key, location = _text(get, "ssl.keystore.certificate.chain"), _text(get, "ssl.keystore.key"), None
    if chain or key:
        if not (chain and key):
            missing = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
            raise ConfigError("bad-value", f"{missing} is missing beside the other half.", f"Set {missing} too.")
        pem, where = f"{key}\n{chain}\n", "ssl.keystore.certificate.chain and ssl.keystore.key"
    else:
        location = _text(get, "ssl.keystore.location")
        if not location:
            return False
        pem, where = _read_pem("ssl.keystore", location, get), location
    password = _text(get, "ssl.key.password") or _text(get, "ssl.keystore.password")
    try:
        if location:
            context.load_cert_chain(location, password=password)
        else:
            _load_text(context, pem, password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            "bad-value",
            f"The certificate and key of {where} cannot be used: {_reason(error, key_password=bool(password))}.",
            "Both must be PEM and belong together; an encrypted key needs the right ssl.key.password.",
        ) from None
    return True


def load_trusted(context: ssl.SSLContext, get: Get) -> bool:
    """Load the trusted authorities into a context; return whether there are any.

    Raises:
        ConfigError: `bad-value`.
    """
    pem, where = _text(get, "ssl.truststore.certificates"), "ssl.truststore.certificates"
    if not pem:
        location = _text(get, "ssl.truststore.location")
        if not location:
            return False
        pem, where = _read_pem("ssl.truststore", location, get), location
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            "bad-value",
            f"The certificates of {where} cannot be read: {_reason(error)}.",
            "Give PEM: one `-----BEGIN CERTIFICATE-----` block for each.",
        ) from None
    return True


def set_versions(context: ssl.SSLContext, protocols: str) -> None:
    """Set the TLS versions of `ssl.enabled.protocols`.

    Raises:
        ConfigError: `bad-value` for versions before TLS 1.2.
    """
    named = [part.strip() for part in protocols.split(",") if part.strip()]
    wrong = [name for name in named if name not in _VERSIONS]
    if wrong or not named:
        raise ConfigError(
            "bad-value",
            f"Invalid ssl.enabled.protocols '{protocols}': only TLS 1.2 and 1.3 are supported.",
            "Set `ssl.enabled.protocols=TLSv1.2,TLSv1.3`.",
        )
    versions = [_VERSIONS[name] for name in named]
    # OpenSSL has a range, Kafka a list; with two versions the list is a range.
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _text(get: Get, name: str) -> str:
    value = get(name)
    return "" if value is None else str(value)


def _read_pem(store: str, location: str, get: Get) -> str:
    kind = _text(get, f"{store}.type").upper()
    try:
        content = Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(
            "bad-value",
            f"{store}.location={location} cannot be read: {(error.strerror or str(error)).lower()}.",
            "Check the path and its rights.",
        ) from None
    if _BEGIN.encode() in content:
        return content.decode("ascii", "replace")
    name = "PKCS12" if kind == "PKCS12" or location.endswith((".p12", ".pfx")) else kind or "JKS"
    first = (
        ""
        if name == "PKCS12"
        else f"keytool -importkeystore -srckeystore {location} -destkeystore store.p12 -deststoretype PKCS12, then "
    )
    source = location if name == "PKCS12" else "store.p12"
    # A trust store has certificates alone; a key store's key is written without a password (`-nodes`).
    only = " -nokeys" if store == "ssl.truststore" else " -nodes"
    raise ConfigError(
        "bad-value",
        f"{store}.location={location} is no PEM file: Java's key stores ({name}) cannot be read here.",
        f"Convert it: {first}openssl pkcs12 -in {source}{only} -out store.pem; then {store}.type=PEM and "
        f"{store}.location=store.pem.",
    )


def _load_text(context: ssl.SSLContext, pem: str, password: str) -> None:
    """Load a key from memory: OpenSSL reads only files, so it is written to a file of mode 0600 for a moment."""
    handle, path = tempfile.mkstemp(prefix="headrace-", suffix=".pem")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        # An empty password, not None: OpenSSL would ask the terminal for one.
        context.load_cert_chain(path, password=password)
    finally:
        Path(path).unlink()


def _reason(error: Exception, *, key_password: bool = False) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(error, ssl.SSLError) and not reason:
        return "the key's password is wrong" if key_password else "no key and certificate in PEM were found"
    return str(reason or getattr(error, "strerror", None) or error).lower().replace("_", " ")


PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN: Final = "PLAIN"
_FILES: Final = frozenset({"ssl.truststore.location", "ssl.keystore.location"})
# `username="…"` and `password="…"` of a JAAS line; a backslash escapes a quote. The class name before them is ignored:
# the mechanism says what it is.
_OPTION = re.compile(r'\b(username|password)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+))')

Ask = Callable[[bytes], bytes]
TokenProvider = Callable[[], str | tuple[str, Mapping[str, str]]]
"""Returns a bearer token, with SASL extensions if there are any; called at every login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """Security settings of a client, checked when created. `values` holds the given settings by Kafka's name."""

    protocol: str = "PLAINTEXT"
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    token_provider: TokenProvider | None = field(default=None, repr=False)

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, object], *, token_provider: TokenProvider | None = None
    ) -> ClientSecurity:
        """Create from client settings; settings that do not concern security, and empty ones, are ignored.

        Args:
            settings: Settings by Kafka's name.
            token_provider: Returns bearer tokens, for OAUTHBEARER.

        Raises:
            ConfigError: `bad-value`.
        """
        protocol = str(settings.get("security.protocol") or "PLAINTEXT").strip().upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(
                "bad-value",
                f"Invalid security.protocol {protocol!r}.",
                "Set one of " + ", ".join(PROTOCOLS) + ".",
                key="security.protocol",
            )
        # Empty is "not set", except for the host name check, where empty turns it off (below).
        kept = {name: str(value) for name, value in settings.items() if name.startswith(("ssl.", "sasl.")) and value}
        for name in _FILES & kept.keys():
            kept[name] = str(Path(kept[name]).absolute())  # other processes may work in other directories
        if settings.get("ssl.endpoint.identification.algorithm") == "":
            kept["ssl.endpoint.identification.algorithm"] = ""
        security = cls(protocol=protocol, values=kept, token_provider=token_provider)
        # Build everything once, so that a wrong file or password is reported at the user's line instead of by the first
        # connection on some thread.
        if security.uses_tls:
            security._context()
        if security.uses_sasl:
            security._check_mechanism()
        return security

    def to_settings(self) -> dict[str, str]:
        """Return settings from which `from_settings` creates the same; they contain secrets."""
        return {"security.protocol": self.protocol, **self.values}

    def __reduce__(self) -> tuple[object, ...]:
        # An SSLContext cannot be pickled: workers get the settings and build their own.
        return (_rebuild, (self.to_settings(), self.token_provider))

    @property
    def uses_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections log in."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; Kafka's default is GSSAPI."""
        return self.values.get("sasl.mechanism", "GSSAPI")

    def secure(self, connected: socket.socket, host: str) -> ssl.SSLSocket:
        """Perform the TLS handshake, within the socket's timeout.

        Raises:
            ssl.SSLError: The handshake failed.
            OSError: The connection broke.
        """
        return self._context().wrap_socket(connected, server_hostname=host)

    def log_in(self, ask: Ask) -> None:
        """Perform one SASL exchange.

        Args:
            ask: Sends a token and returns the broker's.

        Raises:
            SaslError: The broker's proof is wrong, or it refuses the token.
            UserCodeError: The token provider raised an exception.
        """
        if self.mechanism == OAUTHBEARER:
            self._log_in_with_token(ask)
            return
        username, password = self._credentials()
        if self.mechanism == PLAIN:
            ask(plain_message(username, password))
            return
        # `verify` checks the broker's signature: SCRAM proves both sides, and a server without
        # a valid signature does not have the password (RFC 5802).
        client = ScramClient(MECHANISMS[self.mechanism], username, password, secrets.token_urlsafe(24))
        client.verify(ask(client.final(ask(client.first()))))

    def _log_in_with_token(self, ask: Ask) -> None:
        assert self.token_provider is not None
        try:
            given = self.token_provider()
        except Exception as error:
            # Only the exception's type: its text may contain the token.
            raise UserCodeError(
                "user-code",
                f"the token provider raised {type(error).__name__}",
                "it is called at every login: let it try again by itself, and return a token",
            ) from error
        token, extensions = (given, None) if isinstance(given, str) else given
        if ask(bearer_message(token, extensions)):
            # The broker's answer is a JSON error; it refuses the login when the client acknowledged that with one byte
            # (RFC 7628, section 3.2.3).
            ask(b"\x01")
            raise SaslError("the broker does not take the token")

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        set_versions(context, self.values.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3"))
        named = self.values.get("ssl.endpoint.identification.algorithm", "https").lower()
        if named not in ("https", ""):
            raise ConfigError(
                "bad-value",
                f"Invalid ssl.endpoint.identification.algorithm {named!r}.",
                "Set https, or leave it empty to accept a certificate for any host.",
            )
        # Turned off, the certificate is still verified against the authorities.
        context.check_hostname = named == "https"
        if not load_trusted(context, self.values.get):
            context.load_default_certs()
        load_identity(context, self.values.get)
        return context

    def _check_mechanism(self) -> None:
        if self.mechanism == OAUTHBEARER:
            if self.token_provider is None:
                raise ConfigError(
                    "bad-value",
                    "sasl.mechanism=OAUTHBEARER needs a token provider",
                    "give token_provider=, a function that returns a token, to the client; files cannot name one",
                    key="sasl.mechanism",
                )
            return
        if self.mechanism != PLAIN and self.mechanism not in MECHANISMS:
            raise ConfigError(
                "bad-value",
                f"Unsupported sasl.mechanism {self.mechanism!r}.",
                f"Set one of {', '.join((PLAIN, *MECHANISMS, OAUTHBEARER))}.",
                key="sasl.mechanism",
            )
        if not all(self._credentials()):
            raise ConfigError(
                "bad-value",
                f"sasl.mechanism={self.mechanism} needs a user name and a password",
                "set sasl.username and sasl.password, or sasl.jaas.config as Kafka's Java clients have it",
                key="sasl.jaas.config",
            )

    def _credentials(self) -> tuple[str, str]:
        """Return user name and password, from librdkafka's two settings or from Java's JAAS line."""
        options = {
            name: bare or re.sub(r"\\(.)", r"\1", quoted)
            for name, quoted, bare in _OPTION.findall(self.values.get("sasl.jaas.config", ""))
        }
        return (
            self.values.get("sasl.username") or options.get("username", ""),
            self.values.get("sasl.password") or options.get("password", ""),
        )


PLAINTEXT: Final = ClientSecurity()


def _rebuild(settings: dict[str, str], token_provider: TokenProvider | None) -> ClientSecurity:
    return ClientSecurity.from_settings(settings, token_provider=token_provider)


def tls_failed(address: object, error: Exception) -> CannotConnect:
    """Return the error for a broker with the wrong certificate, or without TLS."""
    why, fix = _tls_reason(error)
    return CannotConnect("tls-failed", f"no TLS connection to the broker at {address}: {why}", fix, why=why)


def authentication_failed(address: object, security: ClientSecurity, why: str) -> CannotConnect:
    """Return the error for a refused login, or a broker that could not prove itself. `why` contains no secret."""
    return CannotConnect(
        "authentication-failed",
        f"authentication at the broker at {address} with {security.mechanism} failed: {why}",
        "Check sasl.mechanism, the user name and the password, and that the broker has these credentials.",
        mechanism=security.mechanism,
        why=why,
    )


def _tls_reason(error: Exception) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message or str(error)
        if "mismatch" in text.lower() or "not valid for" in text.lower():
            return text.rstrip("."), "connect by a name that is in the certificate, or issue one with this name"
        if "expired" in text or "not yet valid" in text:
            return text, "the broker needs a new certificate, or a clock is wrong"
        return text, "set ssl.truststore.location to the PEM of the authority that signed the broker's certificate"
    reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    # OpenSSL reports a plaintext answer as a wrong TLS version.
    if "wrong version number" in reason or "record layer" in reason:
        return (
            "the broker's listener does not use TLS",
            "use a listener with TLS, or security.protocol=PLAINTEXT or SASL_PLAINTEXT",
        )
    if "certificate" in reason or "unknown ca" in reason or "handshake failure" in reason:
        return reason, "the broker requires a client certificate: set ssl.keystore.location to a PEM file with one"
    return reason, "check that the broker's listener speaks TLS, and its log"
