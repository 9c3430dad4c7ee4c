"""InitProducerId for a transactional id: the sender becomes its owner, and the former owner is fenced.

An open transaction of the former owner is aborted first; the reply is CONCURRENT_TRANSACTIONS, and the client retries.
A producer that continues after an error sends its identity (KIP-360): it gets the next epoch if no other producer came
between, and the same one again if it only missed the reply.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.records.transaction_log import NO_PRODUCER_EPOCH, TransactionLogValue
from headrace.coordinator.transactions.producer_identity import ProducerIdentity
from headrace.coordinator.transactions.transaction_state import TransactionState
from headrace.coordinator.transactions.transitions import (
    Answer,
    Step,
    created,
    fenced,
    incremented,
    is_exhausted,
    last_epoch_of_fenced,
    refusal,
    rotated,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["init_producer_id"]


def init_producer_id(
    known: TransactionLogValue | None,
    *,
    expected: ProducerIdentity | None,
    last_producer_epoch: int,
    timeout_ms: int,
    transaction_version: int,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Step:
    """`expected`: what the producer says it has; `last_producer_epoch`: the epoch before the present one, if its owner
    asked for the bump. `new_producer_id` gives an id that was never given before, and is called only when one is
    needed."""
    value = known or created(new_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms)
    if expected is not None and not _may_continue(value, expected):
        return refusal(ErrorCode.producer_fenced)
    state = state_of(value)
    if state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        return refusal(ErrorCode.concurrent_transactions)
    if state is TransactionState.ONGOING:
        # The new owner never sees this epoch: its next request gets the one after it.
        return Step(
            answer=Answer(code=ErrorCode.concurrent_transactions),
            value=fenced(value, transaction_version=transaction_version, now_ms=now_ms),
            last_producer_epoch=last_epoch_of_fenced(value, transaction_version=transaction_version),
        )
    if is_exhausted(value.producer_epoch) and (expected is None or expected.producer_epoch == value.producer_epoch):
        new = rotated(value, producer_id=new_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms)
        return _given(new, NO_PRODUCER_EPOCH if expected is None else value.producer_epoch)
    return _next_epoch(value, expected, last_producer_epoch, timeout_ms, now_ms)


def _may_continue(value: TransactionLogValue, expected: ProducerIdentity) -> bool:
    """A new transactional id has no owner to fence; the third case is a retry after the producer id changed."""
    return (
        value.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == value.producer_id
        or (expected.producer_id == value.previous_producer_id and is_exhausted(expected.producer_epoch))
    )


def _next_epoch(
    value: TransactionLogValue,
    expected: ProducerIdentity | None,
    last_producer_epoch: int,
    timeout_ms: int,
    now_ms: int,
) -> Step:
    epoch = value.producer_epoch
    if expected is None:
        return _given(incremented(value, epoch=epoch + 1, timeout_ms=timeout_ms, now_ms=now_ms), NO_PRODUCER_EPOCH)
    if epoch in (NO_PRODUCER_EPOCH, expected.producer_epoch):
        return _given(incremented(value, epoch=epoch + 1, timeout_ms=timeout_ms, now_ms=now_ms), epoch)
    if expected.producer_epoch == last_producer_epoch:
        same = incremented(value, epoch=epoch, timeout_ms=timeout_ms, now_ms=now_ms)
        return _given(same, last_producer_epoch)
    return refusal(ErrorCode.producer_fenced)


def _given(value: TransactionLogValue, last_producer_epoch: int) -> Step:
    answer = Answer(code=ErrorCode.none, producer_id=value.producer_id, producer_epoch=value.producer_epoch)
    return Step(answer=answer, value=value, last_producer_epoch=last_producer_epoch)
