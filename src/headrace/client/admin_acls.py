"""Access rules as an administrator sees them: list, add, remove (KIP-140, KIP-290). Words are Kafka's, in capitals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kio.static.primitive import i8

from headrace.client.broker_errors import raise_for
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m

__all__ = ["OPERATIONS", "AclBinding", "AclWanted", "create_acls", "delete_acls", "describe_acls"]

RESOURCES = ("UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
PATTERNS = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
OPERATIONS = (
    "UNKNOWN",
    "ANY",
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "CREATE_TOKENS",
    "DESCRIBE_TOKENS",
    "TWO_PHASE_COMMIT",
)
PERMISSIONS = ("UNKNOWN", "ANY", "DENY", "ALLOW")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """One rule. `principal` as User:alice, `host` an address or `*`."""

    resource_type: str
    name: str
    pattern: str = "LITERAL"
    principal: str
    host: str = "*"
    operation: str
    permission: str = "ALLOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclWanted:
    """A filter: ANY and None fit everything; the pattern MATCH finds all rules that speak of `name`."""

    resource_type: str = "ANY"
    name: str | None = None
    pattern: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


def describe_acls(client: NetworkClient, wanted: AclWanted) -> list[AclBinding]:
    """In order. Raises BrokerError, also where the broker has no authorizer."""
    response = client.call(
        m.describe_acls_request.DescribeAclsRequest(
            resource_type_filter=i8(RESOURCES.index(wanted.resource_type)),
            resource_name_filter=wanted.name,
            pattern_type_filter=i8(PATTERNS.index(wanted.pattern)),
            principal_filter=wanted.principal,
            host_filter=wanted.host,
            operation=i8(OPERATIONS.index(wanted.operation)),
            permission_type=i8(PERMISSIONS.index(wanted.permission)),
        )
    )
    raise_for(response.error_code, "to list access rules", api="DescribeAcls", message=response.error_message)
    return sorted(
        AclBinding(
            resource_type=RESOURCES[resource.resource_type],
            name=resource.resource_name,
            pattern=PATTERNS[resource.pattern_type],
            principal=acl.principal,
            host=acl.host,
            operation=OPERATIONS[acl.operation],
            permission=PERMISSIONS[acl.permission_type],
        )
        for resource in response.resources
        for acl in resource.acls
    )


def create_acls(client: NetworkClient, acls: Iterable[AclBinding]) -> None:
    """Raises the first refusal; the others may have been added."""
    r = m.create_acls_request
    creations = tuple(
        r.AclCreation(
            resource_type=i8(RESOURCES.index(acl.resource_type)),
            resource_name=acl.name,
            resource_pattern_type=i8(PATTERNS.index(acl.pattern)),
            principal=acl.principal,
            host=acl.host,
            operation=i8(OPERATIONS.index(acl.operation)),
            permission_type=i8(PERMISSIONS.index(acl.permission)),
        )
        for acl in acls
    )
    response = client.call(r.CreateAclsRequest(creations=creations), node=client.metadata(()).controller)
    for result in response.results:
        raise_for(result.error_code, "to add access rules", api="CreateAcls", message=result.error_message)


def delete_acls(client: NetworkClient, filters: Iterable[AclWanted]) -> int:
    """How many rules went. Raises the first refusal."""
    r = m.delete_acls_request
    asked = tuple(
        r.DeleteAclsFilter(
            resource_type_filter=i8(RESOURCES.index(each.resource_type)),
            resource_name_filter=each.name,
            pattern_type_filter=i8(PATTERNS.index(each.pattern)),
            principal_filter=each.principal,
            host_filter=each.host,
            operation=i8(OPERATIONS.index(each.operation)),
            permission_type=i8(PERMISSIONS.index(each.permission)),
        )
        for each in filters
    )
    response = client.call(r.DeleteAclsRequest(filters=asked), node=client.metadata(()).controller)
    for result in response.filter_results:
        raise_for(result.error_code, "to remove access rules", api="DeleteAcls", message=result.error_message)
    return sum(len(result.matching_acls) for result in response.filter_results)
