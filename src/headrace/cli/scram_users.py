"""SCRAM credentials on the command line, with the words of kafka-configs (`--entity-type users`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from headrace.cli.terminal import data

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["alter_user", "described_users", "print_users"]

_ITERATIONS = 4096


def alter_user(admin: Admin, username: str, changes: Mapping[str, str | None]) -> None:
    """`changes`: mechanism → `iterations=8192,password=…`, None to take it away."""
    from headrace.client.admin_access import alter_scram_credentials
    from headrace.protocol.sasl.mechanisms import MECHANISMS

    wrong = [name for name in changes if name not in MECHANISMS]
    if wrong:
        raise click.UsageError(f"Users have {' and '.join(MECHANISMS)}, not {wrong[0]}.")
    passwords: dict[str, tuple[str, int] | None] = {}
    for mechanism, text in changes.items():
        if text is None:
            passwords[mechanism] = None
            continue
        options = dict(part.strip().partition("=")[::2] for part in text.split(","))
        iterations = options.pop("iterations", str(_ITERATIONS))
        password = options.pop("password", "")
        if options or not password or not iterations.isdigit():
            raise click.UsageError(f"{mechanism} takes [iterations=NUMBER,password=TEXT].")
        passwords[mechanism] = password, int(iterations)
    alter_scram_credentials(admin.client, username, passwords)
    data(f"Completed updating config for user {username}.")


def described_users(admin: Admin, username: str | None) -> dict[str, dict[str, int]]:
    """User → mechanism → iterations; None: of all."""
    from headrace.client.admin_access import describe_scram_credentials

    return describe_scram_credentials(admin.client, None if username is None else [username])


def print_users(described: Mapping[str, Mapping[str, int]]) -> None:
    """Print the SCRAM mechanisms of each user as kafka-configs does."""
    for user, mechanisms in described.items():
        told = ", ".join(f"{name}=iterations={iterations}" for name, iterations in mechanisms.items())
        data(f"SCRAM credential configs for user-principal '{user}' are {told}")
