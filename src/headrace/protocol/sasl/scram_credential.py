"""The stored form of a SCRAM password (RFC 5802, section 3). A client cannot log in with it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ScramCredential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Salt, keys and iteration count that a server stores instead of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"
