"""The error of SASL exchanges."""

from __future__ import annotations

__all__ = ["SaslError"]


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
