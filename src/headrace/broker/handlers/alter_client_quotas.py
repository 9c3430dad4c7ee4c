"""AlterClientQuotas (API 49, KIP-546): quotas of entities are set and removed, each entity with its own answer.

Version notes: v1 flexible. All or nothing for one entity; validate_only changes none.
"""

from __future__ import annotations

import ipaddress

from headrace.broker.requests.quotas import CLIENT, CONNECTIONS, CONSUME, IP, MUTATIONS, PRODUCE, REQUESTS, USER
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

_OF_CLIENTS = (PRODUCE, CONSUME, REQUESTS, MUTATIONS)
_WHOLE = {PRODUCE: ("Long", 2**63 - 1), CONSUME: ("Long", 2**63 - 1), CONNECTIONS: ("Int", 2**31 - 1)}
Entity = tuple[tuple[str, str | None], ...]


class _Refused(Exception):
    """Kafka's words."""


def handle(
    request: m.alter_client_quotas_request.AlterClientQuotasRequest, _call: RequestContext, broker: Services
) -> m.alter_client_quotas_response.AlterClientQuotasResponse:
    """Answer one AlterClientQuotas request."""
    r = m.alter_client_quotas_response
    table = dict(broker.quotas.table)
    outcomes: list[tuple[ErrorCode, str | None]] = []
    for entry in request.entries:
        try:
            entity = _entity(entry)
            values = dict(table.get(entity, {}))
            for change in entry.ops:
                _check(entity, change)
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


def _entity(entry: m.alter_client_quotas_request.EntryData) -> Entity:
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
    if IP in parts:
        if len(parts) > 1:
            raise _Refused("Invalid quota entity combination")
        if parts[IP] is not None and not _is_address(str(parts[IP])):
            raise _Refused(f"{parts[IP]} is not a valid IP or resolvable host.")
    return tuple(sorted(parts.items()))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check(entity: Entity, change: m.alter_client_quotas_request.OpData) -> None:
    known = (CONNECTIONS,) if entity[0][0] == IP else _OF_CLIENTS
    if change.key not in known:
        raise _Refused(f"Invalid configuration key {change.key}")
    if change.remove:
        return
    if not change.value > 0:
        raise _Refused(f"Quota {change.key} must be greater than 0")
    if change.key in _WHOLE:
        name, largest = _WHOLE[change.key]
        if change.value != change.value // 1:
            raise _Refused(f"{change.key} cannot be a fractional value.")
        if change.value > largest:
            raise _Refused(f"{change.key} is too large for a value of type {name}.")
