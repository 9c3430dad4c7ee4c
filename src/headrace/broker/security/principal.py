"""The principal of a client, as access rules name it: `User:alice` (KafkaPrincipal). Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANONYMOUS", "Principal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`type` is "User" for every client; `name` is the SASL user name or comes from the certificate."""

    type: str = "User"
    name: str = "ANONYMOUS"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal()
