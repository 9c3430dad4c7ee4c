"""SCRAM credentials of users, set and described at a broker. Passwords are salted here and never leave the process."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from kio.static.primitive import i8, i32

from headrace.client.broker_errors import refusal
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.sasl.scram import MECHANISMS, mechanism_by_code, salted_password

__all__ = ["alter_scram_credentials", "describe_scram_credentials"]

_SALT_BYTES = 20


def alter_scram_credentials(
    client: NetworkClient, username: str, passwords: Mapping[str, tuple[str, int] | None]
) -> None:
    """Mechanism → (password, iterations), None to take it away. Raises BrokerError."""
    r = m.alter_user_scram_credentials_request
    upsertions = []
    for name, wanted in passwords.items():
        if wanted is None:
            continue
        password, iterations = wanted
        salt = secrets.token_bytes(_SALT_BYTES)
        upsertions.append(
            r.ScramCredentialUpsertion(
                name=username,
                mechanism=i8(MECHANISMS[name].code),
                iterations=i32(iterations),
                salt=salt,
                salted_password=salted_password(MECHANISMS[name], password, salt, iterations),
            )
        )
    deletions = tuple(
        r.ScramCredentialDeletion(name=username, mechanism=i8(MECHANISMS[name].code))
        for name, wanted in passwords.items()
        if wanted is None
    )
    answer = client.call(r.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=tuple(upsertions)))
    for result in answer.results:
        if result.error_code != ErrorCode.none:
            raise refusal(
                result.error_code,
                f"to change the SCRAM credentials of {result.user}",
                api="AlterUserScramCredentials",
                message=result.error_message,
            )


def describe_scram_credentials(
    client: NetworkClient, usernames: Iterable[str] | None = None
) -> dict[str, dict[str, int]]:
    """User → mechanism → iterations; None asks for all, and users without credentials are left out."""
    r = m.describe_user_scram_credentials_request
    users = None if usernames is None else tuple(r.UserName(name=name) for name in usernames)
    answer = client.call(r.DescribeUserScramCredentialsRequest(users=users))
    described: dict[str, dict[str, int]] = {}
    refusals = [(answer.error_code, answer.error_message)]
    for result in answer.results:
        if result.error_code == ErrorCode.resource_not_found:
            continue
        refusals.append((result.error_code, result.error_message))
        infos = sorted(result.credential_infos, key=lambda info: int(info.mechanism))
        described[result.user] = {
            mechanism.name: int(info.iterations)
            for info in infos
            if (mechanism := mechanism_by_code(info.mechanism)) is not None
        }
    for code, message in refusals:
        if code != ErrorCode.none:
            raise refusal(code, "to describe SCRAM credentials", api="DescribeUserScramCredentials", message=message)
    return dict(sorted(described.items()))
