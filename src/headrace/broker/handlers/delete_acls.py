"""DeleteAcls (API 31): access rules that filters fit are removed; the answer names those that went, for each filter.

Version notes: v1 patterns; v2 flexible; v3 the resource type user. As in Kafka (AclControlManager.deleteAcls) each
filter is compared with the rules before the request, and all that fit are removed at once, with one write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from kio.static.primitive import i8

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acl_requests import NO_AUTHORIZER, AclRefused, read_filter
from headrace.broker.security.acls import Acl, AclFilter, PatternType
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

# A comparison of a filter with a rule takes up to 2.5 us, so these are 125 ms. A filter that names a resource is
# compared with the rules of that name alone.
MOST_COMPARISONS = 50_000
# Rules in the answer; 1 KB of memory each. The first filter that fits any may fit more.
MOST_MATCHES = 12_000


def handle(
    request: m.delete_acls_request.DeleteAclsRequest, _call: RequestContext, broker: Services
) -> m.delete_acls_response.DeleteAclsResponse:
    """Answer one DeleteAcls request."""
    if broker.authorizer.enabled:
        results = _delete(request.filters, broker)
    else:
        results = [_result(ErrorCode.security_disabled, NO_AUTHORIZER) for _ in request.filters]
    return m.delete_acls_response.DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=tuple(results))


def _delete(
    filters: Iterable[m.delete_acls_request.DeleteAclsFilter], broker: Services
) -> list[m.delete_acls_response.DeleteAclsFilterResult]:
    search = _Search(broker.authorizer.acls)
    found: list[list[Acl] | AclRefused] = []
    for asked in filters:
        try:
            found.append(search.fitting(read_filter(asked)))
        except AclRefused as refusal:
            found.append(refusal)
    try:
        broker.authorizer.remove({acl for each in found if isinstance(each, list) for acl in each})
    except (OSError, StorageError) as error:
        refused = AclRefused(f"The disk refused: {error}", ErrorCode.kafka_storage_error)
        found = [each if isinstance(each, AclRefused) else refused for each in found]
    return [
        _result(each.code, each.message) if isinstance(each, AclRefused) else _result(ErrorCode.none, None, each)
        for each in found
    ]


class _Search:
    """The rules that one request's filters are compared with. Mutable: how much the request has cost."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self._acls = acls
        self._by_name: dict[str, list[Acl]] = defaultdict(list)
        for acl in acls:
            self._by_name[acl.resource_name].append(acl)
        self._comparisons = 0
        self._matches = 0

    def fitting(self, wanted: AclFilter) -> list[Acl]:
        """In the rules' order. Raises AclRefused when the request asks for too much."""
        name = wanted.resource_name
        exact = name is not None and wanted.pattern_type is not PatternType.MATCH
        candidates = self._by_name.get(name or "", ()) if exact else self._acls
        if self._comparisons and self._comparisons + len(candidates) > MOST_COMPARISONS:
            raise AclRefused(
                "The filters of this request are compared with too many rules: delete in several requests."
            )
        self._comparisons += len(candidates)
        found = sorted(acl for acl in candidates if wanted.fits(acl))
        if self._matches and self._matches + len(found) > MOST_MATCHES:
            raise AclRefused("The filters fit too many rules: delete in several requests.")
        self._matches += len(found)
        return found


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
