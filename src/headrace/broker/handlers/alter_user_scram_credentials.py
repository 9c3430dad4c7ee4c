"""AlterUserScramCredentials (API 51): sets and takes away what users log in with by SCRAM.

The client sends the salted password, never the password; StoredKey and ServerKey are made of it and kept. One answer
for each user; users whose request is wrong change nothing, the others change together. As in Kafka, one request may
not name the same user twice, not even with two mechanisms.
"""

from __future__ import annotations

from collections import Counter

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.sasl.scram import MAX_STORED_ITERATIONS, credential_of, mechanism_by_code
from headrace.protocol.sasl.scram_credential import ScramCredential
from headrace.storage.errors import StorageError

Request = m.alter_user_scram_credentials_request.AlterUserScramCredentialsRequest
Deletion = m.alter_user_scram_credentials_request.ScramCredentialDeletion
Upsertion = m.alter_user_scram_credentials_request.ScramCredentialUpsertion
Response = m.alter_user_scram_credentials_response.AlterUserScramCredentialsResponse
Result = m.alter_user_scram_credentials_response.AlterUserScramCredentialsResult
Refusal = tuple[ErrorCode, str | None]

_TWICE = "A user credential cannot be altered twice in the same request"


def handle(request: Request, _call: RequestContext, broker: Services) -> Response:
    """Answer one AlterUserScramCredentials request."""
    wanted: tuple[Deletion | Upsertion, ...] = (*request.deletions, *request.upsertions)
    times = Counter(each.name for each in wanted)
    refused: dict[str, Refusal] = {}
    # Kafka's order: deletions of what is not there, then users named twice, then what else is wrong.
    for each in request.deletions:
        _note(refused, each.name, _refusal(each, broker))
    for name in times:
        _note(refused, name, (ErrorCode.duplicate_resource, _TWICE) if times[name] > 1 else None)
    for upsertion in request.upsertions:
        _note(refused, upsertion.name, _refusal(upsertion, broker))
    changes = [_change(each) for each in wanted if each.name not in refused]
    names = tuple(dict.fromkeys(each.name for each in wanted))
    if changes:
        try:
            broker.scram_credentials.replace(changes)
        except (StorageError, OSError) as error:
            refused = {name: (ErrorCode.kafka_storage_error, str(error)) for name in names}
    return Response(
        throttle_time=NO_THROTTLE,
        results=tuple(
            Result(user=name, error_code=code, error_message=message)
            for name in names
            for code, message in (refused.get(name, (ErrorCode.none, None)),)
        ),
    )


def _note(refused: dict[str, Refusal], name: str, refusal: Refusal | None) -> None:
    if refusal is not None:
        refused.setdefault(name, refusal)


def _refusal(each: Deletion | Upsertion, broker: Services) -> Refusal | None:
    if not each.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    mechanism = mechanism_by_code(each.mechanism)
    if mechanism is None:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    if isinstance(each, Deletion):
        if broker.scram_credentials.credential(each.name, mechanism.name) is None:
            return ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
        return None
    if not each.salted_password:
        return ErrorCode.unacceptable_credential, "Salted password must not be empty"
    if each.iterations < mechanism.min_iterations:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if each.iterations > MAX_STORED_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    return None


def _change(each: Deletion | Upsertion) -> tuple[str, str, ScramCredential | None]:
    mechanism = mechanism_by_code(each.mechanism)
    assert mechanism is not None
    if isinstance(each, Deletion):
        return each.name, mechanism.name, None
    return each.name, mechanism.name, credential_of(mechanism, each.salted_password, each.salt, each.iterations)
