"""SASL OAUTHBEARER (RFC 7628, KIP-255), the client's side: one message with a token in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.protocol.sasl.errors import SaslError

__all__ = ["OAUTHBEARER", "bearer_message"]

OAUTHBEARER = "OAUTHBEARER"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


def bearer_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """The first message of the client. Raises SaslError for what the RFC does not allow; it names no secret."""
    if not _TOKEN.fullmatch(token):
        raise SaslError("the token provider gave something that is no bearer token (RFC 6750)")
    pairs = []
    for name, value in (extensions or {}).items():
        if name == "auth" or not _EXTENSION.fullmatch(name) or not _VALUE.fullmatch(value):
            raise SaslError(f"the token provider gave an extension {name!r} that RFC 7628 does not allow")
        pairs.append(f"{name}={value}\x01")
    return f"n,,\x01auth=Bearer {token}\x01{''.join(pairs)}\x01".encode()
