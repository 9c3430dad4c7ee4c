"""State transitions of a transactional id: each function returns the value of the record after one step.

Epochs only rise. At transaction version 2 (KIP-890) every end of a transaction raises the epoch, so that a late record
cannot become part of the next transaction. When the int16 is exhausted, the next producer id takes over at Complete,
and its epochs start at 0. `next_producer_id` is part of the Prepare record, so a restart does not allocate another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.coordinator.records.transaction_log import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionLogValue
from headrace.coordinator.transactions.transaction_state import (
    EPOCH_BUMP_VERSION,
    MAX_EPOCH,
    VALID_PREVIOUS_STATES,
    TransactionState,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "Answer",
    "Step",
    "added_partitions",
    "completed",
    "created",
    "ended",
    "fenced",
    "incremented",
    "is_exhausted",
    "last_epoch_of_fenced",
    "refusal",
    "rotated",
    "state_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Reply of a rule. The identity is set where the API returns one, else -1."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Decision of a rule. `value` None: nothing is written. `last_producer_epoch`: see `shard`."""

    answer: Answer
    value: TransactionLogValue | None = None
    last_producer_epoch: int = NO_PRODUCER_EPOCH


def refusal(code: ErrorCode) -> Step:
    """Return a step that only refuses."""
    return Step(answer=Answer(code=code))


def state_of(value: TransactionLogValue) -> TransactionState:
    """Return the state of a recorded value."""
    return TransactionState(value.transaction_status)


def is_exhausted(epoch: int) -> bool:
    """The last epoch is kept for the fence of the last transaction."""
    return epoch >= MAX_EPOCH - 1


def created(producer_id: int, *, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """A transactional id that was never seen; no epoch was given out yet. Not a record."""
    return TransactionLogValue(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        transaction_timeout_ms=timeout_ms,
        transaction_status=TransactionState.EMPTY,
        transaction_last_update_timestamp_ms=now_ms,
    )


def incremented(value: TransactionLogValue, *, epoch: int, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """InitProducerId: the same producer id, another (or on a retry the same) epoch."""
    return _to(
        value,
        TransactionState.EMPTY,
        now_ms,
        producer_epoch=epoch,
        transaction_timeout_ms=timeout_ms,
        transaction_partitions=frozenset(),
        transaction_start_timestamp_ms=-1,
    )


def rotated(value: TransactionLogValue, *, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionLogValue:
    """InitProducerId when the epochs have run out."""
    return _to(
        value,
        TransactionState.EMPTY,
        now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=timeout_ms,
        transaction_partitions=frozenset(),
        transaction_start_timestamp_ms=-1,
    )


def added_partitions(
    value: TransactionLogValue, partitions: Iterable[tuple[str, int]], *, client_version: int, now_ms: int
) -> TransactionLogValue:
    """The first partition opens the transaction, and its time begins."""
    opens = state_of(value) is not TransactionState.ONGOING
    return _to(
        value,
        TransactionState.ONGOING,
        now_ms,
        transaction_partitions=value.transaction_partitions.union(partitions),
        transaction_start_timestamp_ms=now_ms if opens else value.transaction_start_timestamp_ms,
        client_transaction_version=client_version,
    )


def ended(
    value: TransactionLogValue,
    *,
    committed: bool,
    client_version: int,
    next_producer_id: int,
    now_ms: int,
) -> TransactionLogValue:
    """The decision. An abort of a transaction without partitions starts and ends now."""
    bumped = client_version >= EPOCH_BUMP_VERSION
    nothing_added = state_of(value) is not TransactionState.ONGOING
    return _to(
        value,
        TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        now_ms,
        next_producer_id=next_producer_id,
        producer_epoch=min(value.producer_epoch + 1, MAX_EPOCH) if bumped else value.producer_epoch,
        transaction_start_timestamp_ms=now_ms if nothing_added else value.transaction_start_timestamp_ms,
        client_transaction_version=client_version,
    )


def fenced(value: TransactionLogValue, *, transaction_version: int, now_ms: int) -> TransactionLogValue:
    """The abort of an open transaction that its producer did not ask for: the higher epoch shuts that producer out."""
    bumped = transaction_version >= EPOCH_BUMP_VERSION
    return _to(
        value,
        TransactionState.PREPARE_ABORT,
        now_ms,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=min(value.producer_epoch + 1, MAX_EPOCH),
        client_transaction_version=transaction_version if bumped else 0,
    )


def last_epoch_of_fenced(value: TransactionLogValue, *, transaction_version: int) -> int:
    """At version 2 the producer that was shut out may still learn how its transaction ended, and go on."""
    return value.producer_epoch if transaction_version >= EPOCH_BUMP_VERSION else NO_PRODUCER_EPOCH


def completed(value: TransactionLogValue, *, now_ms: int) -> TransactionLogValue:
    """All markers are written."""
    committed = state_of(value) is TransactionState.PREPARE_COMMIT
    moves = value.next_producer_id != NO_PRODUCER_ID and value.client_transaction_version >= EPOCH_BUMP_VERSION
    return _to(
        value,
        TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        now_ms,
        producer_id=value.next_producer_id if moves else value.producer_id,
        producer_epoch=0 if moves else value.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        transaction_partitions=frozenset(),
    )


def _to(value: TransactionLogValue, target: TransactionState, now_ms: int, **changes: object) -> TransactionLogValue:
    before = state_of(value)
    if before not in VALID_PREVIOUS_STATES[target]:
        raise RuntimeError(f"no rule leads from {before.name} to {target.name}")
    return replace(
        value,
        transaction_status=target,
        transaction_last_update_timestamp_ms=now_ms,
        previous_producer_id=value.producer_id,
        **changes,  # type: ignore[arg-type]
    )
