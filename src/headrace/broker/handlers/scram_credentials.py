"""SCRAM credentials of users: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

import dataclasses
from collections import Counter

from kio.static.primitive import i8, i32

from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    require_cluster,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.sasl import ScramCredential
from headrace.protocol.sasl.mechanisms import MAX_STORED_ITERATIONS, MECHANISMS, credential_of, mechanism_by_code
from headrace.storage.errors import StorageError

__all__ = ["APIS", "handle_alter_user_scram_credentials", "handle_describe_user_scram_credentials"]

_Refusal = tuple[ErrorCode, str | None]
_TWICE = "A user credential cannot be altered twice in the same request"


def handle_describe_user_scram_credentials(
    request: m.describe_user_scram_credentials_request.DescribeUserScramCredentialsRequest,
    _context: RequestContext,
    broker: Services,
) -> m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResponse:
    """DescribeUserScramCredentials (API 50): mechanisms and iterations of users, never what they log in with."""
    named = Counter(user.name for user in request.users or ())
    asked = tuple(named) or tuple(sorted(broker.scram_credentials.users))
    return m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_describe_user(name, named[name], broker) for name in asked),
    )


def _describe_user(
    name: str, times: int, broker: Services
) -> m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResult:
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResult(
            user=name, error_code=ErrorCode.duplicate_resource, error_message=message, credential_infos=()
        )
    credentials = broker.scram_credentials.users.get(name)
    if credentials is None:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResult(
            user=name, error_code=ErrorCode.resource_not_found, error_message=message, credential_infos=()
        )
    return m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.none,
        error_message=None,
        credential_infos=tuple(
            m.describe_user_scram_credentials_response.CredentialInfo(
                mechanism=i8(mechanism.code), iterations=i32(credentials[mechanism.name].iterations)
            )
            for mechanism in MECHANISMS.values()
            if mechanism.name in credentials
        ),
    )


def handle_alter_user_scram_credentials(
    request: m.alter_user_scram_credentials_request.AlterUserScramCredentialsRequest,
    _context: RequestContext,
    broker: Services,
) -> m.alter_user_scram_credentials_response.AlterUserScramCredentialsResponse:
    """AlterUserScramCredentials (API 51): sets and takes away what users log in with by SCRAM.

    The client sends the salted password, never the password; StoredKey and ServerKey are made of it and kept. One
    answer for each user; users whose request is wrong change nothing, the others change together. As in Kafka, one
    request may not name the same user twice, not even with two mechanisms.
    """
    wanted: tuple[
        m.alter_user_scram_credentials_request.ScramCredentialDeletion
        | m.alter_user_scram_credentials_request.ScramCredentialUpsertion,
        ...,
    ] = (*request.deletions, *request.upsertions)
    # Both lists together: a deletion and an upsertion of one user contradict each other.
    times = Counter(each.name for each in wanted)
    refused: dict[str, _Refusal] = {}
    # Kafka's order: deletions of what is not there, then users named twice, then what else is wrong.
    for each in request.deletions:
        _note(refused, each.name, _refusal(each, broker))
    for name in times:
        _note(refused, name, (ErrorCode.duplicate_resource, _TWICE) if times[name] > 1 else None)
    for upsertion in request.upsertions:
        _note(refused, upsertion.name, _refusal(upsertion, broker))
    changes = [_change(each) for each in wanted if each.name not in refused]
    names = tuple(dict.fromkeys(each.name for each in wanted))
    # Apply all valid changes together, by one write.
    if changes:
        try:
            broker.scram_credentials.replace(changes)
        except (StorageError, OSError) as error:
            refused = {name: (ErrorCode.kafka_storage_error, str(error)) for name in names}
    return m.alter_user_scram_credentials_response.AlterUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            m.alter_user_scram_credentials_response.AlterUserScramCredentialsResult(
                user=name, error_code=code, error_message=message
            )
            for name in names
            for code, message in (refused.get(name, (ErrorCode.none, None)),)
        ),
    )


def _note(refused: dict[str, _Refusal], name: str, refusal: _Refusal | None) -> None:
    if refusal is not None:
        refused.setdefault(name, refusal)


def _refusal(
    each: m.alter_user_scram_credentials_request.ScramCredentialDeletion
    | m.alter_user_scram_credentials_request.ScramCredentialUpsertion,
    broker: Services,
) -> _Refusal | None:
    if not each.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    mechanism = mechanism_by_code(each.mechanism)
    if mechanism is None:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    if isinstance(each, m.alter_user_scram_credentials_request.ScramCredentialDeletion):
        if broker.scram_credentials.credential(each.name, mechanism.name) is None:
            return ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
        return None
    if not each.salted_password:
        return ErrorCode.unacceptable_credential, "Salted password must not be empty"
    # RFC 7677 asks for 4096 at least; the upper bound keeps a login from being a way to spend the broker's CPU.
    if each.iterations < mechanism.min_iterations:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if each.iterations > MAX_STORED_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    return None


def _change(
    each: m.alter_user_scram_credentials_request.ScramCredentialDeletion
    | m.alter_user_scram_credentials_request.ScramCredentialUpsertion,
) -> tuple[str, str, ScramCredential | None]:
    mechanism = mechanism_by_code(each.mechanism)
    assert mechanism is not None
    if isinstance(each, m.alter_user_scram_credentials_request.ScramCredentialDeletion):
        return each.name, mechanism.name, None
    return each.name, mechanism.name, credential_of(mechanism, each.salted_password, each.salt, each.iterations)


# --- access rules ---


def authorize_describe_user_scram_credentials(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the cluster; a refusal names no user."""
    if guarded.allow.on_cluster(guarded.context, Operation.DESCRIBE):
        return guarded.handle()
    answer = guarded.refuse(ErrorCode.cluster_authorization_failed)
    return dataclasses.replace(
        answer,
        error_message=None,
        results=tuple(dataclasses.replace(each, user="") for each in answer.results),
    )


APIS = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        handle_describe_user_scram_credentials, authorize_describe_user_scram_credentials
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(handle_alter_user_scram_credentials, require_cluster(Operation.ALTER)),
}
