"""DescribeUserScramCredentials (API 50): mechanisms and iterations of users, never what they log in with."""

from __future__ import annotations

from collections import Counter

from kio.static.primitive import i8, i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.sasl.scram import MECHANISMS

Result = m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResult


def handle(
    request: m.describe_user_scram_credentials_request.DescribeUserScramCredentialsRequest,
    _call: RequestContext,
    broker: Services,
) -> m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResponse:
    """Answer one DescribeUserScramCredentials request."""
    named = Counter(user.name for user in request.users or ())
    asked = tuple(named) or tuple(sorted(broker.scram_credentials.users))
    return m.describe_user_scram_credentials_response.DescribeUserScramCredentialsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_described(name, named[name], broker) for name in asked),
    )


def _described(name: str, times: int, broker: Services) -> Result:
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return Result(user=name, error_code=ErrorCode.duplicate_resource, error_message=message, credential_infos=())
    credentials = broker.scram_credentials.users.get(name)
    if credentials is None:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return Result(user=name, error_code=ErrorCode.resource_not_found, error_message=message, credential_infos=())
    return Result(
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
