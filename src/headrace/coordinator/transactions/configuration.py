"""TransactionConfiguration: settings of the transaction coordinator, immutable."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TransactionConfiguration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfiguration:
    """Kafka's `transaction.max.timeout.ms`, `transactional.id.expiration.ms`,
    `transaction.remove.expired.transaction.cleanup.interval.ms`; `headrace.max.transactional.ids`."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    expiry_interval_ms: int = 3_600_000
    most_ids: int = 100_000
