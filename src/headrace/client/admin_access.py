"""Access administration: ACLs (KIP-140, KIP-290), SCRAM credentials (KIP-554) and client quotas (KIP-546).

Names of resources, operations and mechanisms are Kafka's, in capitals.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.static.primitive import f64, i8, i32

from headrace.client.broker_errors import raise_for, refusal
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.sasl.mechanisms import MECHANISMS, mechanism_by_code, salted_password

__all__ = [
    "ANY",
    "OPERATIONS",
    "AclBinding",
    "AclWanted",
    "QuotaEntity",
    "alter_client_quotas",
    "alter_scram_credentials",
    "create_acls",
    "delete_acls",
    "describe_acls",
    "describe_client_quotas",
    "describe_scram_credentials",
]

# The position in each tuple is Kafka's number on the wire (`ResourceType`, `PatternType`, `AclOperation`,
# `AclPermissionType`).
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
    """One access rule. `principal` like User:alice, `host` an address or `*`."""

    resource_type: str
    name: str
    pattern: str = "LITERAL"
    principal: str
    host: str = "*"
    operation: str
    permission: str = "ALLOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclWanted:
    """Filter for access rules. ANY and None match everything; MATCH finds all rules that apply to a name."""

    resource_type: str = "ANY"
    name: str | None = None
    pattern: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


def describe_acls(client: NetworkClient, wanted: AclWanted) -> list[AclBinding]:
    """Return the access rules that match a filter, sorted.

    Raises:
        BrokerError: Also if the broker has no authorizer.
    """
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
    """Add access rules.

    Raises:
        BrokerError: The first refusal; the other rules may have been added.
    """
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
    # At the controller, which writes the rules; another broker would forward them.
    response = client.call(r.CreateAclsRequest(creations=creations), node=client.metadata(()).controller)
    for result in response.results:
        raise_for(result.error_code, "to add access rules", api="CreateAcls", message=result.error_message)


def delete_acls(client: NetworkClient, filters: Iterable[AclWanted]) -> int:
    """Remove the rules that match any filter and return their number.

    Raises:
        BrokerError: The first refusal; other rules may have been removed.
    """
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


# 160 bits of salt per credential; two users with one password have different hashes.
_SALT_BYTES = 20


def alter_scram_credentials(
    client: NetworkClient, username: str, passwords: Mapping[str, tuple[str, int] | None]
) -> None:
    """Set or remove a user's SCRAM credentials. Passwords are salted here and never leave the process.

    Args:
        client: A client of the cluster.
        username: The user.
        passwords: Mechanism → (password, iterations); None removes the credential.

    Raises:
        BrokerError: The broker refused a change.
    """
    r = m.alter_user_scram_credentials_request
    upsertions = []
    for name, wanted in passwords.items():
        if wanted is None:
            continue
        password, iterations = wanted
        # KIP-554: the client salts and hashes, so the password itself is never sent, also not over TLS.
        salt = secrets.token_bytes(_SALT_BYTES)
        upsertions.append(
            r.ScramCredentialUpsertion(
                name=username,
                mechanism=i8(MECHANISMS[name].code),
                iterations=i32(iterations),
                salt=salt,
                salted_password=salted_password(MECHANISMS[name], password, salt, iterations),
            )
        )
    deletions = tuple(
        r.ScramCredentialDeletion(name=username, mechanism=i8(MECHANISMS[name].code))
        for name, wanted in passwords.items()
        if wanted is None
    )
    answer = client.call(r.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=tuple(upsertions)))
    for result in answer.results:
        if result.error_code != ErrorCode.none:
            raise refusal(
                result.error_code,
                f"to change the SCRAM credentials of {result.user}",
                api="AlterUserScramCredentials",
                message=result.error_message,
            )


def describe_scram_credentials(
    client: NetworkClient, usernames: Iterable[str] | None = None
) -> dict[str, dict[str, int]]:
    """Return user → mechanism → iterations.

    Args:
        client: A client of the cluster.
        usernames: None: all. Users without credentials are left out.
    """
    r = m.describe_user_scram_credentials_request
    users = None if usernames is None else tuple(r.UserName(name=name) for name in usernames)
    answer = client.call(r.DescribeUserScramCredentialsRequest(users=users))
    described: dict[str, dict[str, int]] = {}
    refusals = [(answer.error_code, answer.error_message)]
    for result in answer.results:
        # A user without credentials is not an error when all of a list are described.
        if result.error_code == ErrorCode.resource_not_found:
            continue
        refusals.append((result.error_code, result.error_message))
        # By number, so that output does not depend on the broker's order. A mechanism that this client does not know is
        # left out.
        infos = sorted(result.credential_infos, key=lambda info: int(info.mechanism))
        described[result.user] = {
            mechanism.name: int(info.iterations)
            for info in infos
            if (mechanism := mechanism_by_code(info.mechanism)) is not None
        }
    for code, message in refusals:
        if code != ErrorCode.none:
            raise refusal(code, "to describe SCRAM credentials", api="DescribeUserScramCredentials", message=message)
    return dict(sorted(described.items()))


QuotaEntity = tuple[tuple[str, str | None], ...]
"""(user | client-id | ip, name) pairs, sorted; a name of None stands for the default of its kind."""

ANY: Final = ""  # in a filter: any name
# Match types of DescribeClientQuotas (KIP-546). A filter by name, by "the default of this kind", and by kind alone.
_EXACT, _DEFAULT, _ANY = 0, 1, 2


def describe_client_quotas(client: NetworkClient, wanted: QuotaEntity) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of entities of exactly these kinds; a name of ANY matches all.

    Raises:
        BrokerError: The broker refused the request.
    """
    r = m.describe_client_quotas_request
    components = tuple(
        r.ComponentData(
            entity_type=kind,
            match_type=i8(_ANY if name == ANY else _DEFAULT if name is None else _EXACT),
            match=name or None,
        )
        for kind, name in wanted
    )
    # Strict: (user, client-id) quotas do not match a filter by user alone.
    answer = client.call(r.DescribeClientQuotasRequest(components=components, strict=True))
    raise_for(answer.error_code, "to describe quotas", api="DescribeClientQuotas", message=answer.error_message)
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: float(value.value) for value in entry.values
        }
        for entry in answer.entries or ()
    }


def alter_client_quotas(client: NetworkClient, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    """Set quotas of one entity, all or nothing; a value of None removes the quota.

    Raises:
        BrokerError: The broker refused a change.
    """
    r = m.alter_client_quotas_request
    entry = r.EntryData(
        entity=tuple(r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        # The value of a removal is ignored; the field has no null.
        ops=tuple(r.OpData(key=name, value=f64(value or 0.0), remove=value is None) for name, value in changes.items()),
    )
    answer = client.call(r.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    for result in answer.entries:
        raise_for(result.error_code, "to alter quotas", api="AlterClientQuotas", message=result.error_message)
