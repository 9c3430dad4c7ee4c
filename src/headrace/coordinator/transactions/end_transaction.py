"""EndTxn: commit or abort, told apart from a retry whose answer was lost.

At transaction version 2 the epoch tells: an end raises it, so a request with the epoch before the present one is the
same end once more and gets the same new identity, and one with the present epoch means a transaction that has not
begun. There is nothing to commit then, but an abort goes through (the producer cannot know whether its first records
arrived). At the versions before, the same epoch means both, and the state decides.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.records.transaction_log import NO_PRODUCER_ID, TransactionLogValue
from headrace.coordinator.transactions.producer_identity import EPOCH_BUMP_VERSION, MAX_EPOCH, ProducerIdentity
from headrace.coordinator.transactions.transaction_state import TransactionState
from headrace.coordinator.transactions.transitions import (
    Answer,
    Step,
    completed,
    ended,
    is_exhausted,
    refusal,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["end_transaction"]

_S = TransactionState
_PREPARED = {True: _S.PREPARE_COMMIT, False: _S.PREPARE_ABORT}
_COMPLETED = {True: _S.COMPLETE_COMMIT, False: _S.COMPLETE_ABORT}


def end_transaction(
    known: TransactionLogValue | None,
    producer: ProducerIdentity,
    *,
    committed: bool,
    client_version: int,
    last_producer_epoch: int,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Step:
    """`client_version`: the transaction version the client speaks. `new_producer_id` as in InitProducerId."""
    if known is None:
        return refusal(ErrorCode.invalid_producer_id_mapping)
    if client_version < EPOCH_BUMP_VERSION:
        return _end_at_version_1(known, producer, committed, last_producer_epoch, now_ms)
    overflowed = (
        known.previous_producer_id == producer.producer_id
        and producer.producer_epoch == MAX_EPOCH - 1
        and known.producer_epoch == 0
    )
    bumped = known.producer_epoch == producer.producer_epoch + 1
    if known.producer_id != producer.producer_id and not overflowed:
        return refusal(ErrorCode.invalid_producer_id_mapping)
    if not _is_valid_epoch(known, producer, bumped=bumped, overflowed=overflowed):
        return refusal(ErrorCode.producer_fenced)
    retried = bumped or overflowed
    state = state_of(known)
    if state is _PREPARED[committed]:
        return refusal(ErrorCode.concurrent_transactions)
    if retried and state is _COMPLETED[committed]:
        return Step(answer=_identity(known))
    if state is not _S.ONGOING and (committed or retried or state is _S.PREPARE_COMMIT):
        return refusal(ErrorCode.invalid_txn_state)
    next_producer_id = new_producer_id() if is_exhausted(known.producer_epoch) else NO_PRODUCER_ID
    value = ended(
        known,
        committed=committed,
        client_version=client_version,
        next_producer_id=next_producer_id,
        now_ms=now_ms,
    )
    # The client learns what it has once the markers are written.
    return Step(
        answer=_identity(completed(value, now_ms=now_ms)), value=value, last_producer_epoch=known.producer_epoch
    )


def _is_valid_epoch(known: TransactionLogValue, producer: ProducerIdentity, *, bumped: bool, overflowed: bool) -> bool:
    state = state_of(known)
    if state in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT):
        return bumped
    same = producer.producer_epoch == known.producer_epoch
    if state in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT):
        return same or bumped or overflowed
    return same


def _end_at_version_1(
    known: TransactionLogValue,
    producer: ProducerIdentity,
    committed: bool,
    last_producer_epoch: int,
    now_ms: int,
) -> Step:
    if known.producer_id != producer.producer_id:
        return refusal(ErrorCode.invalid_producer_id_mapping)
    if known.producer_epoch != producer.producer_epoch:
        return refusal(ErrorCode.producer_fenced)
    state = state_of(known)
    if state is _PREPARED[committed]:
        return refusal(ErrorCode.concurrent_transactions)
    if state is _COMPLETED[committed]:
        return Step(answer=_identity(known))
    if state is not _S.ONGOING:
        return refusal(ErrorCode.invalid_txn_state)
    value = ended(known, committed=committed, client_version=0, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms)
    return Step(answer=_identity(value), value=value, last_producer_epoch=last_producer_epoch)


def _identity(value: TransactionLogValue) -> Answer:
    return Answer(code=ErrorCode.none, producer_id=value.producer_id, producer_epoch=value.producer_epoch)
