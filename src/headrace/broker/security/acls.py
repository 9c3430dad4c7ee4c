"""Access rules: what one is, which requests it speaks of, which of them decide. Pure; Kafka's StandardAuthorizer.

A rule (ACL) allows or denies a principal from a host an operation on a resource: one name, all names that begin alike
(prefixed), or `*`. Deny wins over allow; what no rule allows is denied. READ, WRITE, DELETE and ALTER include DESCRIBE,
ALTER_CONFIGS includes DESCRIBE_CONFIGS, only where they allow. `AclIndex` finds the rules of a resource by its name
and its prefixes, so a check costs by the number of different prefix lengths, not by the number of rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "CLUSTER_NAME",
    "Acl",
    "AclFilter",
    "AclIndex",
    "Operation",
    "PatternType",
    "Permission",
    "ResourceType",
    "grants",
]

CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
EVERYBODY = "User:*"


class ResourceType(IntEnum):
    """Kafka's ResourceType, by its number on the wire."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Kafka's PatternType, by its number on the wire."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's AclOperation, by its number on the wire."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Kafka's AclPermissionType, by its number on the wire."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_INCLUDES_DESCRIBE = (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
_INCLUDES_DESCRIBE_CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """`principal` as `User:alice`, `User:*` for all users; `host` an address or `*`."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Filter of access rules. None and ANY match everything; MATCH: all rules that apply to a resource of this name."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def fits(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._fits_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _fits_name(self, acl: Acl) -> bool:
        wanted = self.pattern_type
        if wanted not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if wanted is PatternType.MATCH:
            return speaks_of(acl, self.resource_name)
        return acl.resource_name == self.resource_name


def speaks_of(acl: Acl, name: str) -> bool:
    """Whether the rule's resource is the one of this name."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def grants(acl: Acl, operation: Operation) -> bool:
    """Whether a rule is about this operation: named, ALL, or included in what it allows."""
    if acl.operation in (operation, Operation.ALL):
        return True
    # A denied READ does not deny DESCRIBE: only what is allowed includes more.
    if acl.permission is not Permission.ALLOW:
        return False
    if operation is Operation.DESCRIBE:
        return acl.operation in _INCLUDES_DESCRIBE
    return operation is Operation.DESCRIBE_CONFIGS and acl.operation in _INCLUDES_DESCRIBE_CONFIGS


def is_about(acl: Acl, principal: str, host: str) -> bool:
    """Whether a rule applies to the resource."""
    return acl.principal in (principal, EVERYBODY) and acl.host in (host, WILDCARD)


class AclIndex:
    """All rules, by resource type, pattern and name. Never changes once made."""

    __slots__ = ("_by_literal", "_by_prefix", "_by_type", "_prefix_lengths", "acls")

    def __init__(self, acls: Iterable[Acl]) -> None:
        self.acls = frozenset(acls)
        self._by_literal: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._by_prefix: dict[tuple[ResourceType, str], list[Acl]] = {}
        self._by_type: dict[ResourceType, list[Acl]] = {}
        lengths: dict[ResourceType, dict[int, None]] = {}
        for acl in sorted(self.acls):
            key = acl.resource_type, acl.resource_name
            self._by_type.setdefault(acl.resource_type, []).append(acl)
            if acl.pattern_type is PatternType.PREFIXED:
                self._by_prefix.setdefault(key, []).append(acl)
                lengths.setdefault(acl.resource_type, {})[len(acl.resource_name)] = None
            else:
                self._by_literal.setdefault(key, []).append(acl)
        self._prefix_lengths = {kind: tuple(found) for kind, found in lengths.items()}

    def of_resource(self, kind: ResourceType, name: str) -> list[Acl]:
        """Return the rules that apply to this resource."""
        # Three look-ups by hash instead of a walk over all rules: the literal name, the wildcard, and one prefix of the
        # name for each length that a prefixed rule has.
        found = [*self._by_literal.get((kind, name), ())]
        if name != WILDCARD:
            found += self._by_literal.get((kind, WILDCARD), ())
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                found += self._by_prefix.get((kind, name[:length]), ())
        return found

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str, *, otherwise: bool
    ) -> bool:
        """Return whether an operation is allowed. Deny rules win over allow rules.

        Args:
            principal: "User:NAME".
            host: address of the client.
            operation: Kafka's AclOperation.
            kind: type of the resource.
            name: name of the resource.
            otherwise: the result for a resource without rules (`allow.everyone.if.no.acl.found`).
        """
        acls = self.of_resource(kind, name)
        # allow.everyone.if.no.acl.found: it speaks of resources without any rule, not of principals without one.
        if not acls:
            return otherwise
        allowed = False
        for acl in acls:
            if is_about(acl, principal, host) and grants(acl, operation):
                # Deny wins whatever the order, so the first one ends the search.
                if acl.permission is Permission.DENY:
                    return False
                allowed = True
        return allowed

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there is at least one name, be there such a resource or not, on which the rules allow it.

        Included operations do not count here, as in Kafka (Authorizer.authorizeByResourceType).
        """
        # 1. Only rules that name the operation, or ALL. Included operations do not count here, as in Kafka
        #    (Authorizer.authorizeByResourceType).
        about = [
            acl
            for acl in self._by_type.get(kind, ())
            if is_about(acl, principal, host) and acl.operation in (operation, Operation.ALL)
        ]
        denied = [acl for acl in about if acl.permission is Permission.DENY]
        literals = {acl.resource_name for acl in denied if acl.pattern_type is PatternType.LITERAL}
        prefixes = {acl.resource_name for acl in denied if acl.pattern_type is PatternType.PREFIXED}
        # 2. Denied on every name: no allow helps.
        if WILDCARD in literals:
            return False
        # 3. Look for one allow that some name escapes the denials with. A literal escapes unless the same literal or a
        #    prefix of it is denied; a prefixed one unless a prefix of its prefix is, because then all its names are.
        for acl in about:
            if acl.permission is not Permission.ALLOW:
                continue
            name = acl.resource_name
            if acl.pattern_type is PatternType.LITERAL and (name == WILDCARD or name not in literals):
                if name == WILDCARD or not _has_prefix(name, prefixes):
                    return True
            elif acl.pattern_type is PatternType.PREFIXED and not _has_prefix(name, prefixes):
                return True
        return False


def _has_prefix(name: str, prefixes: set[str]) -> bool:
    return any(name[:end] in prefixes for end in range(1, len(name) + 1))
