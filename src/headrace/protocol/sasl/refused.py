"""The one error of SASL exchanges."""

from __future__ import annotations

__all__ = ["SaslRefused"]


class SaslRefused(Exception):
    """The other side is not who it says, or does not speak the mechanism. `told`: its words may reach the client."""

    def __init__(self, message: str, *, told: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.told = told
