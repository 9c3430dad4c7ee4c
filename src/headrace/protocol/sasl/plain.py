"""SASL PLAIN (RFC 4616): one message with the password in it, so only for ways that nobody can read."""

from __future__ import annotations

from headrace.protocol.sasl.refused import SaslRefused

__all__ = ["plain_message", "read_plain_message"]


def plain_message(username: str, password: str) -> bytes:
    return f"\0{username}\0{password}".encode()


def read_plain_message(message: bytes) -> tuple[str, str, str]:
    """(authorization id, user name, password). Raises SaslRefused in Kafka's words."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslRefused("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise SaslRefused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}", told=True)
    authorization_id, username, password = parts
    if not username:
        raise SaslRefused("Authentication failed: username not specified", told=True)
    if not password:
        raise SaslRefused("Authentication failed: password not specified", told=True)
    return authorization_id, username, password
