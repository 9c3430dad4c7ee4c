"""Client quotas: DescribeClientQuotas, AlterClientQuotas (KIP-546)."""

from __future__ import annotations

import dataclasses
import ipaddress

from kio.static.primitive import f64

from headrace.broker.requests.partial_response import (
    MESSAGES,
    Api,
    GuardedRequest,
)
from headrace.broker.requests.quotas import CLIENT, CONNECTIONS, CONSUME, IP, MUTATIONS, PRODUCE, REQUESTS, USER
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

__all__ = ["APIS", "handle_alter_client_quotas", "handle_describe_client_quotas"]

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
_OF_CLIENTS = (PRODUCE, CONSUME, REQUESTS, MUTATIONS)
_WHOLE = {PRODUCE: ("Long", 2**63 - 1), CONSUME: ("Long", 2**63 - 1), CONNECTIONS: ("Int", 2**31 - 1)}
_Entity = tuple[tuple[str, str | None], ...]


class _Refused(Exception):
    def __init__(self, message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        super().__init__(message)
        self.code = code


def handle_describe_client_quotas(
    request: m.describe_client_quotas_request.DescribeClientQuotasRequest, _context: RequestContext, broker: Services
) -> m.describe_client_quotas_response.DescribeClientQuotasResponse:
    """DescribeClientQuotas (API 48, KIP-546): the quotas whose entities a filter fits.

    Version notes: v1 flexible. Match types: 0 this name, 1 the default, 2 any name or the default. `strict`: entities
    with other parts than those asked for are left out.
    """
    r = m.describe_client_quotas_response
    try:
        names, kinds = _filter(request)
    except _Refused as refusal:
        return r.DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE, error_code=refusal.code, error_message=str(refusal), entries=None
        )
    found = []
    for entity, values in broker.quotas.table.items():
        parts = dict(entity)
        fits = all(kind in parts and parts[kind] == name for kind, name in names.items())
        if fits and all(kind in parts for kind in kinds):
            # Without `strict`, a filter for a user also finds the quotas of that user with a client id.
            if request.strict and len(parts) != len(names) + len(kinds):
                continue
            found.append((entity, values))
    return r.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message="",
        entries=tuple(
            r.EntryData(
                entity=tuple(r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
                values=tuple(r.ValueData(key=key, value=f64(values[key])) for key in sorted(values)),
            )
            for entity, values in found
        ),
    )


def _filter(
    request: m.describe_client_quotas_request.DescribeClientQuotasRequest,
) -> tuple[dict[str, str | None], list[str]]:
    """(Kind → name that it has to have, kinds that have to be there). Raises _Refused, in Kafka's words."""
    names: dict[str, str | None] = {}
    kinds: list[str] = []
    for part in request.components:
        kind = part.entity_type
        if not kind:
            raise _Refused("Invalid empty entity type.")
        if kind in names or kind in kinds:
            raise _Refused(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT, IP):
            raise _Refused(f"Unsupported entity type {kind}", ErrorCode.unsupported_version)
        if part.match_type == EXACT:
            if part.match is None:
                raise _Refused("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            names[kind] = part.match
        elif part.match_type == DEFAULT:
            if part.match is not None:
                raise _Refused("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            names[kind] = None
        elif part.match_type == SPECIFIED:
            if part.match is not None:
                raise _Refused("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            kinds.append(kind)
        else:
            raise _Refused(f"Unknown match type {part.match_type}")
    if (IP in names or IP in kinds) and len(names) + len(kinds) > 1:
        raise _Refused(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId "
            "filter component."
        )
    return names, kinds


def handle_alter_client_quotas(
    request: m.alter_client_quotas_request.AlterClientQuotasRequest, _context: RequestContext, broker: Services
) -> m.alter_client_quotas_response.AlterClientQuotasResponse:
    """AlterClientQuotas (API 49, KIP-546): quotas of entities are set and removed, each entity with its own answer.

    Version notes: v1 flexible. All or nothing for one entity; validate_only changes none.
    """
    r = m.alter_client_quotas_response
    table = dict(broker.quotas.table)
    outcomes: list[tuple[ErrorCode, str | None]] = []
    # All changes of one entity or none; entities are independent of each other.
    for entry in request.entries:
        try:
            entity = _entity_of(entry)
            values = dict(table.get(entity, {}))
            for change in entry.ops:
                _check_change(entity, change)
                if change.remove:
                    values.pop(change.key, None)
                else:
                    values[change.key] = float(change.value)
        except _Refused as refusal:
            outcomes.append((ErrorCode.invalid_request, str(refusal)))
            continue
        outcomes.append((ErrorCode.none, None))
        table.pop(entity, None)
        if values:
            table[entity] = values
    # One write for the whole request; when the disk refuses, every entry that was fine reports it.
    if not request.validate_only:
        try:
            broker.quotas.replace(table)
        except (OSError, StorageError) as error:
            failed = ErrorCode.kafka_storage_error, f"The disk refused: {error}"
            outcomes = [failed if code is ErrorCode.none else (code, text) for code, text in outcomes]
    return r.AlterClientQuotasResponse(
        throttle_time=NO_THROTTLE,
        entries=tuple(
            r.EntryData(
                error_code=code,
                error_message=message,
                entity=tuple(
                    r.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
                ),
            )
            for entry, (code, message) in zip(request.entries, outcomes, strict=True)
        ),
    )


def _entity_of(entry: m.alter_client_quotas_request.EntryData) -> _Entity:
    """Ordered by kind. Raises _Refused."""
    parts = {part.entity_type: part.entity_name for part in entry.entity}
    if not parts:
        raise _Refused("Invalid empty client quota entity")
    if len(parts) < len(entry.entity):
        raise _Refused("Client quota entities must not name a type twice.")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT, IP):
            raise _Refused(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _Refused(f"Empty {kind} not supported")
    # Addresses have quotas of connections, users and client ids those of requests; no entity has both (KIP-612).
    if IP in parts:
        if len(parts) > 1:
            raise _Refused("Invalid quota entity combination")
        if parts[IP] is not None and not _is_address(str(parts[IP])):
            raise _Refused(f"{parts[IP]} is not a valid IP or resolvable host.")
    # One spelling of each entity, since the table is looked up by it: clients send the parts in any order.
    return tuple(sorted(parts.items()))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check_change(entity: _Entity, change: m.alter_client_quotas_request.OpData) -> None:
    known = (CONNECTIONS,) if entity[0][0] == IP else _OF_CLIENTS
    if change.key not in known:
        raise _Refused(f"Invalid configuration key {change.key}")
    if change.remove:
        return
    # Written so that NaN is refused as well: every comparison with it is false.
    if not change.value > 0:
        raise _Refused(f"Quota {change.key} must be greater than 0")
    # Kafka stores these as whole numbers and refuses what it would have to round.
    if change.key in _WHOLE:
        name, largest = _WHOLE[change.key]
        if change.value != change.value // 1:
            raise _Refused(f"{change.key} cannot be a fractional value.")
        if change.value > largest:
            raise _Refused(f"{change.key} is too large for a value of type {name}.")


# --- access rules ---


def authorize_describe_client_quotas(guarded: GuardedRequest) -> object:
    """Check DESCRIBE_CONFIGS of the cluster."""
    if guarded.allow.on_cluster(guarded.context, Operation.DESCRIBE_CONFIGS):
        return guarded.handle()
    return dataclasses.replace(guarded.refuse(ErrorCode.cluster_authorization_failed), error_message=None)


def authorize_alter_client_quotas(guarded: GuardedRequest) -> object:
    """Check ALTER_CONFIGS of the cluster; without it each entity is refused."""
    if guarded.allow.on_cluster(guarded.context, Operation.ALTER_CONFIGS):
        return guarded.handle()
    r, code = m.alter_client_quotas_response, ErrorCode.cluster_authorization_failed
    entries = tuple(
        r.EntryData(
            error_code=code,
            error_message=MESSAGES[code],
            entity=tuple(
                r.EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in entry.entity
            ),
        )
        for entry in guarded.request.entries
    )
    return r.AlterClientQuotasResponse(throttle_time=NO_THROTTLE, entries=entries)


APIS = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(handle_describe_client_quotas, authorize_describe_client_quotas),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(handle_alter_client_quotas, authorize_alter_client_quotas),
}
