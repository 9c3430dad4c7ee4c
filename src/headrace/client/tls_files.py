"""Certificates and keys as Kafka's `ssl.*` settings name them, put into an SSLContext. Broker and client both use it.

Kafka takes PEM as text in the settings (`ssl.keystore.certificate.chain`, `ssl.keystore.key`,
`ssl.truststore.certificates`) or as a file (`ssl.keystore.location`, `ssl.truststore.location`). Java's own formats
cannot be read without Java; the error says how to convert them. No secret stands in any error.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

__all__ = ["load_identity", "load_trusted", "set_versions"]

Get = Callable[[str], object]

_BEGIN: Final = "-----BEGIN"
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def load_identity(context: ssl.SSLContext, get: Get) -> bool:
    """The own certificate and key, if there are any. Raises ConfigError `bad-value`."""
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
    """Whom we believe, if that is said. Raises ConfigError `bad-value`."""
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
    """`ssl.enabled.protocols`. Raises ConfigError for what is older than TLS 1.2."""
    named = [part.strip() for part in protocols.split(",") if part.strip()]
    wrong = [name for name in named if name not in _VERSIONS]
    if wrong or not named:
        raise ConfigError(
            "bad-value",
            f"ssl.enabled.protocols={protocols} cannot be: only TLS 1.2 and 1.3 are spoken here.",
            "Set `ssl.enabled.protocols=TLSv1.2,TLSv1.3`.",
        )
    versions = [_VERSIONS[name] for name in named]
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
    only = " -nokeys" if store == "ssl.truststore" else " -nodes"
    raise ConfigError(
        "bad-value",
        f"{store}.location={location} is no PEM file: Java's key stores ({name}) cannot be read here.",
        f"Convert it: {first}openssl pkcs12 -in {source}{only} -out store.pem; then {store}.type=PEM and "
        f"{store}.location=store.pem.",
    )


def _load_text(context: ssl.SSLContext, pem: str, password: str) -> None:
    """OpenSSL reads files only: one of our own, which nobody else can read, for a moment."""
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
