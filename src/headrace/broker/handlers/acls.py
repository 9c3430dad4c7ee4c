"""Access rules (ACLs): CreateAcls, DescribeAcls, DeleteAcls, validated as in Kafka (AclControlManager, AclApis)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from enum import IntEnum
from itertools import groupby
from typing import TypeVar

from kio.static.primitive import i8

from headrace.broker.requests.partial_response import (
    Api,
    require_cluster,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

__all__ = ["APIS", "handle_create_acls", "handle_delete_acls", "handle_describe_acls"]

NO_AUTHORIZER = "No Authorizer is configured."
_Named = TypeVar("_Named", bound=IntEnum)
# A comparison of a filter with a rule takes up to 2.5 us, so these are 125 ms. A filter that names a resource is
# compared with the rules of that name alone.
MOST_COMPARISONS = 50_000
# Rules in the answer; 1 KB of memory each. The first filter that fits any may fit more.
MOST_MATCHES = 12_000


class AclRefused(Exception):
    """A rule, or a filter, cannot be what it says."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_acl(asked: m.create_acls_request.AclCreation) -> Acl:
    """Read an access rule of a request. Raises AclRefused."""
    acl = Acl(
        resource_type=_named(ResourceType, asked.resource_type),
        resource_name=asked.resource_name,
        pattern_type=_named(PatternType, asked.resource_pattern_type),
        principal=asked.principal,
        host=asked.host,
        operation=_named(Operation, asked.operation),
        permission=_named(Permission, asked.permission_type),
    )
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise AclRefused(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise AclRefused("Invalid empty resource name")
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise AclRefused(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise AclRefused(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise AclRefused(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise AclRefused(f"Invalid permissionType {acl.permission.name}")
    if ":" not in acl.principal:
        raise AclRefused(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    return acl


def read_filter(
    asked: m.describe_acls_request.DescribeAclsRequest | m.delete_acls_request.DeleteAclsFilter,
) -> AclFilter:
    """Read the filter of a DescribeAcls or DeleteAcls request. Raises AclRefused."""
    wanted = AclFilter(
        resource_type=_named(ResourceType, asked.resource_type_filter),
        resource_name=asked.resource_name_filter,
        pattern_type=_named(PatternType, asked.pattern_type_filter),
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_named(Operation, asked.operation),
        permission=_named(Permission, asked.permission_type),
    )
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern_type is PatternType.UNKNOWN:
        raise AclRefused("Unknown patternFilter.")
    if wanted.operation is Operation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        raise AclRefused("Unknown entryFilter.")
    return wanted


def _named(kind: type[_Named], number: int) -> _Named:
    """Unknown numbers are UNKNOWN, as in Kafka."""
    try:
        return kind(number)
    except ValueError:
        # Not an error: a filter with a number that only a later Kafka knows must be answered, not break the connection.
        return kind(0)


def handle_create_acls(
    request: m.create_acls_request.CreateAclsRequest, _context: RequestContext, broker: Services
) -> m.create_acls_response.CreateAclsResponse:
    """CreateAcls (API 30): access rules are added, each with its own answer. A rule that is there already is fine.

    Version notes: v1 patterns; v2 flexible; v3 the resource type user.
    """
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


def handle_describe_acls(
    request: m.describe_acls_request.DescribeAclsRequest, _context: RequestContext, broker: Services
) -> m.describe_acls_response.DescribeAclsResponse:
    """DescribeAcls (API 29): the access rules that a filter fits, by resource.

    Version notes: v1 patterns; v2 flexible; v3 the resource type user.
    """
    r = m.describe_acls_response
    if not broker.authorizer.enabled:
        return _refused_description(ErrorCode.security_disabled, NO_AUTHORIZER)
    try:
        found = broker.authorizer.matching(read_filter(request))
    except AclRefused as refusal:
        return _refused_description(refusal.code, refusal.message)

    def resource(acl: Acl) -> tuple[int, str, int]:
        return acl.resource_type, acl.resource_name, acl.pattern_type

    return m.describe_acls_response.DescribeAclsResponse(
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


def _refused_description(code: ErrorCode, message: str) -> m.describe_acls_response.DescribeAclsResponse:
    return m.describe_acls_response.DescribeAclsResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message, resources=()
    )


def handle_delete_acls(
    request: m.delete_acls_request.DeleteAclsRequest, _context: RequestContext, broker: Services
) -> m.delete_acls_response.DeleteAclsResponse:
    """DeleteAcls (API 31): access rules that filters fit are removed; the answer names them, for each filter.

    Version notes: v1 patterns; v2 flexible; v3 the resource type user. As in Kafka (AclControlManager.deleteAcls) each
    filter is compared with the rules before the request, and all that fit are removed at once, with one write.
    """
    if broker.authorizer.enabled:
        results = _delete_matching(request.filters, broker)
    else:
        results = [_filter_result(ErrorCode.security_disabled, NO_AUTHORIZER) for _ in request.filters]
    return m.delete_acls_response.DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=tuple(results))


def _delete_matching(
    filters: Iterable[m.delete_acls_request.DeleteAclsFilter], broker: Services
) -> list[m.delete_acls_response.DeleteAclsFilterResult]:
    search = _AclSearch(broker.authorizer.acls)
    found: list[list[Acl] | AclRefused] = []
    for asked in filters:
        try:
            found.append(search.fitting(read_filter(asked)))
        except AclRefused as refusal:
            found.append(refusal)
    try:
        # One write for all filters: a crash leaves the rules of before or of after.
        broker.authorizer.remove({acl for each in found if isinstance(each, list) for acl in each})
    except (OSError, StorageError) as error:
        refused = AclRefused(f"The disk refused: {error}", ErrorCode.kafka_storage_error)
        found = [each if isinstance(each, AclRefused) else refused for each in found]
    return [
        _filter_result(each.code, each.message)
        if isinstance(each, AclRefused)
        else _filter_result(ErrorCode.none, None, each)
        for each in found
    ]


class _AclSearch:
    """The rules that one request's filters are compared with. Mutable: how much the request has cost."""

    def __init__(self, acls: Collection[Acl]) -> None:
        self._acls = acls
        self._by_name: dict[str, list[Acl]] = defaultdict(list)
        for acl in acls:
            self._by_name[acl.resource_name].append(acl)
        self._comparisons = 0
        self._matches = 0

    def fitting(self, wanted: AclFilter) -> list[Acl]:
        """Return the rules that the filter selects, in their order. Raises AclRefused if there are too many."""
        name = wanted.resource_name
        # MATCH looks for rules that apply to a name, so prefixes and wildcards count, and the index by name does not
        # help.
        exact = name is not None and wanted.pattern_type is not PatternType.MATCH
        candidates = self._by_name.get(name or "", ()) if exact else self._acls
        # The first filter of a request is always compared, however many rules there are: otherwise a cluster with more
        # rules than the bound could never delete one.
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


def _filter_result(
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


APIS = {
    ApiKey.CREATE_ACLS: Api(handle_create_acls, require_cluster(Operation.ALTER)),
    ApiKey.DESCRIBE_ACLS: Api(handle_describe_acls, require_cluster(Operation.DESCRIBE)),
    ApiKey.DELETE_ACLS: Api(handle_delete_acls, require_cluster(Operation.ALTER)),
}
