"""Client quotas as an administrator sees them: described and altered at a broker (KIP-546). Names are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.static.primitive import f64, i8

from headrace.client.broker_errors import raise_for
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m

__all__ = ["ANY", "QuotaEntity", "alter_client_quotas", "describe_client_quotas"]

QuotaEntity = tuple[tuple[str, str | None], ...]
"""(user | client-id | ip, name) pairs, sorted; a name of None: the default of its kind."""

ANY: Final = ""  # in a question: whatever the name is
_EXACT, _DEFAULT, _ANY = 0, 1, 2


def describe_client_quotas(client: NetworkClient, wanted: QuotaEntity) -> dict[QuotaEntity, dict[str, float]]:
    """What is set for entities of exactly these kinds; a name of ANY fits all. Raises BrokerError."""
    r = m.describe_client_quotas_request
    components = tuple(
        r.ComponentData(
            entity_type=kind,
            match_type=i8(_ANY if name == ANY else _DEFAULT if name is None else _EXACT),
            match=name or None,
        )
        for kind, name in wanted
    )
    answer = client.call(r.DescribeClientQuotasRequest(components=components, strict=True))
    raise_for(answer.error_code, "to describe quotas", api="DescribeClientQuotas", message=answer.error_message)
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: float(value.value) for value in entry.values
        }
        for entry in answer.entries or ()
    }


def alter_client_quotas(client: NetworkClient, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    """Quota → value, None to take it away. All or nothing. Raises BrokerError."""
    r = m.alter_client_quotas_request
    entry = r.EntryData(
        entity=tuple(r.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=tuple(r.OpData(key=name, value=f64(value or 0.0), remove=value is None) for name, value in changes.items()),
    )
    answer = client.call(r.AlterClientQuotasRequest(entries=(entry,), validate_only=False))
    for result in answer.entries:
        raise_for(result.error_code, "to alter quotas", api="AlterClientQuotas", message=result.error_message)
