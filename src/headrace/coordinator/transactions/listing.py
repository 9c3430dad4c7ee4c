"""ListTransactions and DescribeTransactions: what operators see of a transactional id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from headrace.coordinator.records.transaction_log import TransactionLogValue
from headrace.coordinator.transactions.transaction_state import STATE_NAMES, TransactionState
from headrace.coordinator.transactions.transitions import state_of

__all__ = ["TransactionFilter", "unknown_states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Empty collections filter nothing, nor does a negative `longer_than_ms`. Names of states are Kafka's."""

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    matches: Callable[[str], bool] | None = None

    def takes(self, transactional_id: str, value: TransactionLogValue, *, now_ms: int) -> bool:
        """A transactional id without a transaction began at -1, which is long ago, as in Kafka."""
        if self.producer_ids and value.producer_id not in self.producer_ids:
            return False
        if self.states and not self._takes_state(state_of(value)):
            return False
        age_ms = now_ms - value.transaction_start_timestamp_ms
        if self.longer_than_ms >= 0 and age_ms <= self.longer_than_ms:
            return False
        return self.matches is None or self.matches(transactional_id)

    def _takes_state(self, state: TransactionState) -> bool:
        return any(STATE_NAMES.get(name) is state for name in self.states)


def unknown_states(names: Iterable[str]) -> tuple[str, ...]:
    """Names of filters that mean nothing, in their order."""
    return tuple(name for name in names if name not in STATE_NAMES)
