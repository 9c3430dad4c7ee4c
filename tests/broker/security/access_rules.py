"""An access rule with defaults for what a test does not care about."""

from __future__ import annotations

from headrace.broker.security.acls import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)


def acl(
    name: str = "abc",
    operation: Operation = Operation.READ,
    *,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )
