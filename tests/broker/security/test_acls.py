"""Access rules: the index against a plain reading of all rules, filters, the store, and what a change does at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from tests.broker.security.access_rules import acl

from headrace.broker.security.acls import (
    Acl,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

NAMES = ("", "a", "ab", "abc", "abcd", "b", "*")
PRINCIPALS = ("User:alice", "User:bob", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = tuple(each for each in Operation if each > Operation.ANY)
INCLUDED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def some_acl(chance: random.Random) -> Acl:
    return acl(
        chance.choice(NAMES[1:]),
        chance.choice(OPERATIONS),
        permission=chance.choice((Permission.ALLOW, Permission.DENY)),
        pattern=chance.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        principal=chance.choice(PRINCIPALS),
        host=chance.choice(HOSTS),
        kind=chance.choice(KINDS),
    )


def plainly(
    acls: Iterable[Acl], principal: str, host: str, operation: Operation, kind: ResourceType, name: str, otherwise: bool
) -> bool:
    """The same, read off all rules one by one."""
    of_resource = [
        each
        for each in acls
        if each.resource_type is kind
        and (
            name.startswith(each.resource_name)
            if each.pattern_type is PatternType.PREFIXED
            else each.resource_name in (name, "*")
        )
    ]
    if not of_resource:
        return otherwise
    mine = [each for each in of_resource if each.principal in (principal, "User:*") and each.host in (host, "*")]
    denied = any(each.permission is Permission.DENY and each.operation in (operation, Operation.ALL) for each in mine)
    allowed = any(
        each.permission is Permission.ALLOW
        and (each.operation in (operation, Operation.ALL) or each.operation in INCLUDED.get(operation, ()))
        for each in mine
    )
    return allowed and not denied


@pytest.mark.parametrize("seed", range(40))
def test_the_index_decides_as_all_rules_read_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    acls = [some_acl(chance) for _ in range(chance.randint(0, 12))]
    index = AclIndex(acls)
    for _ in range(300):
        asked = (
            chance.choice(PRINCIPALS[:2]),
            chance.choice(HOSTS[:2]),
            chance.choice(OPERATIONS[1:]),
            chance.choice(KINDS),
            chance.choice(NAMES[1:6]),
        )
        otherwise = chance.random() < 0.5
        assert index.decide(*asked, otherwise=otherwise) == plainly(acls, *asked, otherwise), (asked, acls)


@pytest.mark.parametrize("seed", range(40))
def test_some_name_is_allowed_where_the_rules_leave_one(seed: int) -> None:
    """Checked by trying names that are made of the rules' own, and longer ones. Included operations do not count."""
    chance = random.Random(seed)
    acls = [some_acl(chance) for _ in range(chance.randint(0, 8))]
    index = AclIndex(acls)
    names = {f"{each.resource_name}{more}" for each in acls for more in ("", "zz")} - {"*"} | {"zz"}
    for operation in (Operation.WRITE, Operation.READ):
        for kind in KINDS:
            found = any(index.decide("User:bob", "10.0.0.1", operation, kind, name, otherwise=False) for name in names)
            assert index.decide_any("User:bob", "10.0.0.1", operation, kind) == found, (operation, kind, acls)


def some_name_is_left(rules: list[Acl]) -> bool:
    """Whether the rules leave User:bob a topic to read: asked of the index, and of each name that can differ."""
    index = AclIndex(rules)
    names = {f"{each.resource_name}{more}" for each in rules for more in ("", "zz")} - {"*"} | {"zz"}
    found = any(
        index.decide("User:bob", "10.0.0.1", Operation.READ, ResourceType.TOPIC, name, otherwise=False)
        for name in names
    )
    assert index.decide_any("User:bob", "10.0.0.1", Operation.READ, ResourceType.TOPIC) == found, rules
    return found


PATTERNS = [
    (name, pattern) for name in ("a", "ab", "abc", "b") for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
] + [("*", PatternType.LITERAL)]


def test_authorize_by_resource_type_for_every_allow_deny_pair() -> None:
    allow, deny = Permission.ALLOW, Permission.DENY
    counts = {True: 0, False: 0}
    for allowed, its_pattern in PATTERNS:
        rule = acl(allowed, permission=allow, pattern=its_pattern, principal="User:bob")
        assert some_name_is_left([rule])
        for denied, other_pattern in PATTERNS:
            against = acl(denied, permission=deny, pattern=other_pattern, principal="User:*")
            counts[some_name_is_left([rule, against])] += 1
            # A second rule that allows: what is found out about the first one must not end the search.
            second = acl("b", permission=allow, pattern=PatternType.LITERAL, principal="User:bob")
            some_name_is_left([rule, second, against])
            # Rules for other hosts, principals, operations and kinds of resource count for nothing.
            for other in (
                acl(denied, permission=deny, pattern=other_pattern, principal="User:bob", host="10.9.9.9"),
                acl(denied, permission=deny, pattern=other_pattern, principal="User:eve"),
                acl(denied, Operation.WRITE, permission=deny, pattern=other_pattern, principal="User:bob"),
                acl(denied, permission=deny, pattern=other_pattern, principal="User:bob", kind=ResourceType.GROUP),
            ):
                assert some_name_is_left([rule, other])
    # Denied: all 9 by `*`, 4 by their own literal name, and 6 + 4 + 2 + 2 by the prefixes a, ab, abc and b.
    assert counts == {True: 54, False: 27}
    assert not some_name_is_left([])
    everything = acl("b", Operation.ALL, permission=deny, principal="User:bob")
    assert not some_name_is_left([acl("b", principal="User:bob"), everything])


FIELDS = {
    "resource_type": (ResourceType.TOPIC, ResourceType.GROUP),
    "resource_name": ("abc", "abd"),
    "pattern_type": (PatternType.LITERAL, PatternType.PREFIXED),
    "principal": ("User:alice", "User:bob"),
    "host": ("*", "10.0.0.1"),
    "operation": (Operation.READ, Operation.WRITE),
    "permission": (Permission.ALLOW, Permission.DENY),
}


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_of_a_filter_counts_alone(name: str) -> None:
    same, other = FIELDS[name]
    fitting: dict[str, Any] = {name: same}
    differing: dict[str, Any] = {name: other}
    assert AclFilter(**fitting).fits(acl())
    assert not AclFilter(**differing).fits(acl())
    whole: dict[str, Any] = {field: values[0] for field, values in FIELDS.items()}
    assert AclFilter(**whole).fits(acl())
    assert not AclFilter(**{**whole, name: other}).fits(acl())
    assert AclFilter().fits(acl())


def test_a_name_without_a_pattern_fits_rules_of_that_name_only() -> None:
    prefixed = acl("abc", pattern=PatternType.PREFIXED)
    assert AclFilter(resource_name="abc", pattern_type=PatternType.PREFIXED).fits(prefixed)
    assert not AclFilter(resource_name="abcd", pattern_type=PatternType.PREFIXED).fits(prefixed)
    assert AclFilter(pattern_type=PatternType.MATCH).fits(prefixed), "no name: every one"
    assert AclFilter(resource_name="abcd", pattern_type=PatternType.MATCH).fits(prefixed)
    assert not AclFilter(resource_name="ab", pattern_type=PatternType.MATCH).fits(prefixed)


def test_a_wildcard_speaks_of_every_name_of_its_kind_once() -> None:
    index = AclIndex([acl("*"), acl("abc"), acl("ab", pattern=PatternType.PREFIXED)])
    assert index.of_resource(ResourceType.TOPIC, "*") == [acl("*")]
    assert sorted(index.of_resource(ResourceType.TOPIC, "abc")) == sorted(index.acls)
    assert index.of_resource(ResourceType.TOPIC, "ab") == [acl("*"), acl("ab", pattern=PatternType.PREFIXED)]
    assert index.of_resource(ResourceType.TOPIC, "a") == [acl("*")]
    assert index.of_resource(ResourceType.GROUP, "abc") == []


def test_match_finds_every_rule_that_speaks_of_a_name() -> None:
    literal, everything, prefixed = acl("abc"), acl("*"), acl("ab", pattern=PatternType.PREFIXED)
    other = acl("abd")
    wanted = AclFilter(resource_name="abc", pattern_type=PatternType.MATCH)
    assert [wanted.fits(each) for each in (literal, everything, prefixed, other)] == [True, True, True, False]
    exact = AclFilter(resource_name="abc", pattern_type=PatternType.ANY)
    assert [exact.fits(each) for each in (literal, everything, prefixed, other)] == [True, False, False, False]
