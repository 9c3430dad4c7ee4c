"""SASL exchanges as data in, data out; both sides use them. The mechanisms are in `mechanisms`.

The error and the stored credential are here, because a broker imports them at start and needs the mechanisms only if a
listener asks for SASL.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SaslError", "ScramCredential"]


class SaslError(Exception):
    """A SASL exchange failed: wrong proof, malformed message or unsupported mechanism.

    Args:
        message: the cause. It never holds a secret.
        is_for_client: the message may be sent to the client. All others are answered with a text that does not
            reveal whether the user exists.
    """

    def __init__(self, message: str, *, is_for_client: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_for_client = is_for_client


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Salt, keys and iteration count that a server stores instead of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"
