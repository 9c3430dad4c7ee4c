"""CreateAcls (API 30): access rules are added, each with its own answer. A rule that is there already is fine.

Version notes: v1 patterns; v2 flexible; v3 the resource type user.
"""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acl_requests import NO_AUTHORIZER, AclRefused, read_acl
from headrace.broker.security.acls import Acl
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError


def handle(
    request: m.create_acls_request.CreateAclsRequest, _call: RequestContext, broker: Services
) -> m.create_acls_response.CreateAclsResponse:
    """Answer one CreateAcls request."""
    r = m.create_acls_response
    outcomes: list[tuple[ErrorCode, str | None]] = []
    acls: list[Acl] = []
    for asked in request.creations:
        if not broker.authorizer.enabled:
            outcomes.append((ErrorCode.security_disabled, NO_AUTHORIZER))
            continue
        try:
            acls.append(read_acl(asked))
            outcomes.append((ErrorCode.none, None))
        except AclRefused as refusal:
            outcomes.append((refusal.code, refusal.message))
    try:
        broker.authorizer.add(acls)
    except (OSError, StorageError) as error:
        outcomes = [
            (ErrorCode.kafka_storage_error, f"The disk refused: {error}") if code is ErrorCode.none else (code, text)
            for code, text in outcomes
        ]
    return r.CreateAclsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(r.AclCreationResult(error_code=code, error_message=message) for code, message in outcomes),
    )
