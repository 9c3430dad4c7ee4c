"""SASL PLAIN (RFC 4616): one message that holds the password in clear text, so it needs TLS."""

from __future__ import annotations

from headrace.protocol.sasl.errors import SaslError

__all__ = ["plain_message", "read_plain_message"]


def plain_message(username: str, password: str) -> bytes:
    """Return the client's only message: an empty authorization id, the user name and the password."""
    return f"\0{username}\0{password}".encode()


def read_plain_message(message: bytes) -> tuple[str, str, str]:
    """(authorization id, user name, password). Raises SaslError in Kafka's words."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise SaslError("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise SaslError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}", is_for_client=True)
    authorization_id, username, password = parts
    if not username:
        raise SaslError("Authentication failed: username not specified", is_for_client=True)
    if not password:
        raise SaslError("Authentication failed: password not specified", is_for_client=True)
    return authorization_id, username, password
