"""Interfaces between a SASL session and the mechanisms: the credentials of users, and one login exchange.

Separate from `listener_security`, which imports the mechanisms only where a listener offers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.protocol.sasl.scram_credential import ScramCredential

__all__ = ["Credentials", "LoginExchange"]


class Credentials(Protocol):
    """The SCRAM credentials of the broker (`scram_credentials`)."""

    def credential(self, username: str, mechanism: str) -> ScramCredential | None: ...
    @property
    def secret(self) -> bytes: ...


class LoginExchange(Protocol):
    """One SASL exchange; `username` counts once it is complete."""

    username: str
    complete: bool

    def evaluate(self, message: bytes) -> bytes:
        """The answer. Raises SaslError."""
