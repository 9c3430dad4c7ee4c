"""Credentials of users for SASL, and the interface of one login.

SCRAM credentials are read at every login and changed by AlterUserScramCredentials; a change is on the disk before it
counts. Kept apart from `secured_listener`, which has the mechanisms and is imported only where a listener offers them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Protocol

from headrace.protocol.sasl import ScramCredential
from headrace.storage.directory_metadata import ScramCatalog
from headrace.storage.log_directory import LogDirectory

__all__ = ["AddedUser", "Credentials", "LoginExchange", "ScramCredentials"]


class Credentials(Protocol):
    """The part of `ScramCredentials` that logins use."""

    def credential(self, username: str, mechanism: str) -> ScramCredential | None: ...
    @property
    def secret(self) -> bytes: ...


class LoginExchange(Protocol):
    """One SASL exchange; `username` counts once it is complete."""

    username: str
    complete: bool

    def evaluate(self, message: bytes) -> bytes:
        """Return the response to a message. Raises SaslError."""


AddedUser = tuple[str, str, ScramCredential]
"""User, mechanism, credential."""


class ScramCredentials:
    """Mutable: the one place that changes them."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        # An unknown user is shown a salt as well (RFC 5802 leaks otherwise which users exist). It is derived from this
        # secret and the name, so that it is the same at each attempt; the secret is stored with the first credential,
        # because a restart would change all salts but those of real users.
        self._secret = directory.scram_credentials.secret or secrets.token_bytes(32)

    @property
    def secret(self) -> bytes:
        """The secret from which the salts of unknown users are derived."""
        return self._secret

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """User name → mechanism → credential."""
        return self._directory.scram_credentials.users

    def credential(self, username: str, mechanism: str) -> ScramCredential | None:
        return self.users.get(username, {}).get(mechanism)

    def replace(self, changes: Iterable[tuple[str, str, ScramCredential | None]]) -> None:
        """(user, mechanism, None to take it away), all together. Raises StorageFull, OSError; nothing changed then."""
        # A copy that replaces the whole: logins on other connections read the old users until the disk has the new
        # ones.
        users = {name: dict(mechanisms) for name, mechanisms in self.users.items()}
        for username, mechanism, credential in changes:
            if credential is None:
                users.get(username, {}).pop(mechanism, None)
            else:
                users.setdefault(username, {})[mechanism] = credential
        kept = {name: mechanisms for name, mechanisms in users.items() if mechanisms}
        self._directory.replace_scram_credentials(ScramCatalog(users=kept, secret=self._secret))
