"""Who may log in by SCRAM: read at every login, changed by AlterUserScramCredentials, on the disk before it counts."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from penstock.errors import ConfigError
from penstock.protocol.sasl.scram import (
    MECHANISMS,
    MOST_ITERATIONS,
    ScramCredential,
    credential_of,
    salted_password,
)
from penstock.storage.log_directory import LogDirectory
from penstock.storage.scram_credentials import ScramCatalog

__all__ = ["AddedUser", "ScramCredentials", "parse_added_user"]

AddedUser = tuple[str, str, ScramCredential]

_SALT_BYTES = 20


class ScramCredentials:
    """Mutable: the one place that changes them."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._secret = directory.scram_credentials.secret or secrets.token_bytes(32)

    @property
    def secret(self) -> bytes:
        """What users who do not exist are asked is made from it."""
        return self._secret

    @property
    def users(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        """User name → mechanism → credential."""
        return self._directory.scram_credentials.users

    def credential(self, username: str, mechanism: str) -> ScramCredential | None:
        return self.users.get(username, {}).get(mechanism)

    def replace(self, changes: Iterable[tuple[str, str, ScramCredential | None]]) -> None:
        """(user, mechanism, None to take it away), all together. Raises StorageFull, OSError; nothing changed then."""
        users = {name: dict(mechanisms) for name, mechanisms in self.users.items()}
        for username, mechanism, credential in changes:
            if credential is None:
                users.get(username, {}).pop(mechanism, None)
            else:
                users.setdefault(username, {})[mechanism] = credential
        kept = {name: mechanisms for name, mechanisms in users.items() if mechanisms}
        self._directory.replace_scram_credentials(ScramCatalog(users=kept, secret=self._secret))


def parse_added_user(text: str) -> AddedUser:
    """`SCRAM-SHA-512=[name=alice,password=secret,iterations=8192]`, as kafka-storage takes it: user, mechanism,
    credential. Raises ConfigError `bad-value`, which never repeats the text."""
    name, separator, rest = text.strip().partition("=")
    mechanism = MECHANISMS.get(name.strip())
    if mechanism is None or not separator or not (rest.startswith("[") and rest.endswith("]")):
        raise _refusal("it is not understood")
    options = dict(part.partition("=")[::2] for part in rest[1:-1].split(","))
    strange = set(options) - {"name", "password", "iterations"}
    if strange or not options.get("name") or not options.get("password"):
        raise _refusal("name and password are needed, iterations are possible")
    iterations = options.get("iterations", str(mechanism.fewest_iterations))
    if not iterations.isdigit() or not mechanism.fewest_iterations <= int(iterations) <= MOST_ITERATIONS:
        raise _refusal(f"iterations must be a number from {mechanism.fewest_iterations} to {MOST_ITERATIONS}")
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, options["password"], salt, int(iterations))
    return options["name"], mechanism.name, credential_of(mechanism, salted, salt, int(iterations))


def _refusal(why: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"A SCRAM user that was to be added cannot be read: {why}.",
        "Write it as kafka-storage takes it: SCRAM-SHA-512=[name=alice,password=…].",
    )
