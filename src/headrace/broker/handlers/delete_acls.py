"""DeleteAcls (API 31): access rules that filters fit are removed; the answer names those that went, for each filter.

Version notes: v1 patterns; v2 flexible; v3 the resource type user.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.static.primitive import i8

from headrace.broker.acl_requests import NO_AUTHORIZER, AclRefused, read_filter
from headrace.broker.call import Call
from headrace.broker.security.acls import Acl
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError


def handle(
    request: m.delete_acls_request.DeleteAclsRequest, _call: Call, broker: Services
) -> m.delete_acls_response.DeleteAclsResponse:
    return m.delete_acls_response.DeleteAclsResponse(
        throttle_time=NO_THROTTLE, filter_results=tuple(_delete(asked, broker) for asked in request.filters)
    )


def _delete(
    asked: m.delete_acls_request.DeleteAclsFilter, broker: Services
) -> m.delete_acls_response.DeleteAclsFilterResult:
    if not broker.authorizer.enabled:
        return _result(ErrorCode.security_disabled, NO_AUTHORIZER)
    try:
        found = broker.authorizer.matching(read_filter(asked))
        broker.authorizer.remove(found)
    except AclRefused as refusal:
        return _result(refusal.code, refusal.message)
    except (OSError, StorageError) as error:
        return _result(ErrorCode.kafka_storage_error, f"The disk refused: {error}")
    return _result(ErrorCode.none, None, found)


def _result(
    code: ErrorCode, message: str | None, acls: Iterable[Acl] = ()
) -> m.delete_acls_response.DeleteAclsFilterResult:
    r = m.delete_acls_response
    return r.DeleteAclsFilterResult(
        error_code=code,
        error_message=message,
        matching_acls=tuple(
            r.DeleteAclsMatchingAcl(
                error_code=ErrorCode.none,
                error_message=None,
                resource_type=i8(acl.resource_type),
                resource_name=acl.resource_name,
                pattern_type=i8(acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=i8(acl.operation),
                permission_type=i8(acl.permission),
            )
            for acl in acls
        ),
    )
