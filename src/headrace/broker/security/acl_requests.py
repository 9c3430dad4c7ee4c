"""Requests about access rules, validated as Kafka does (AclControlManager, AclApis), with its messages."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from headrace.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["NO_AUTHORIZER", "AclRefused", "read_acl", "read_filter"]

NO_AUTHORIZER = "No Authorizer is configured."
_Named = TypeVar("_Named", bound=IntEnum)


class AclRefused(Exception):
    """A rule, or a filter, cannot be what it says."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_acl(asked: m.create_acls_request.AclCreation) -> Acl:
    """Raises AclRefused."""
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


def read_filter(asked: Any) -> AclFilter:
    """A DescribeAcls request, or a filter of DeleteAcls. Raises AclRefused."""
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
        return kind(0)
