"""DescribeAcls (API 29): the access rules that a filter fits, by resource.

Version notes: v1 patterns; v2 flexible; v3 the resource type user.
"""

from __future__ import annotations

from itertools import groupby

from kio.static.primitive import i8

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acl_requests import NO_AUTHORIZER, AclRefused, read_filter
from headrace.broker.security.acls import Acl
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

Response = m.describe_acls_response.DescribeAclsResponse


def handle(request: m.describe_acls_request.DescribeAclsRequest, _call: RequestContext, broker: Services) -> Response:
    """Answer one DescribeAcls request."""
    r = m.describe_acls_response
    if not broker.authorizer.enabled:
        return _refused(ErrorCode.security_disabled, NO_AUTHORIZER)
    try:
        found = broker.authorizer.matching(read_filter(request))
    except AclRefused as refusal:
        return _refused(refusal.code, refusal.message)

    def resource(acl: Acl) -> tuple[int, str, int]:
        return acl.resource_type, acl.resource_name, acl.pattern_type

    return Response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message="",
        resources=tuple(
            r.DescribeAclsResource(
                resource_type=i8(kind),
                resource_name=name,
                pattern_type=i8(pattern),
                acls=tuple(
                    r.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=i8(acl.operation),
                        permission_type=i8(acl.permission),
                    )
                    for acl in acls
                ),
            )
            for (kind, name, pattern), acls in groupby(sorted(found, key=resource), resource)
        ),
    )


def _refused(code: ErrorCode, message: str) -> Response:
    return Response(throttle_time=NO_THROTTLE, error_code=code, error_message=message, resources=())
