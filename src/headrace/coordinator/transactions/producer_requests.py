"""Requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

InitProducerId: the sender becomes the owner of the transactional id, and the former owner is fenced. Its open
transaction is aborted first; the reply is CONCURRENT_TRANSACTIONS, and the client retries. A producer that
continues after an error sends its identity (KIP-360): it gets the next epoch if no other producer came between, and the
same one again if it only missed the reply.

AddPartitionsToTxn is verified before each produce: a partition that is not in the open transaction would never get a
marker, and would hang (KIP-890).

EndTxn distinguishes an end from a retry whose reply was lost. At transaction version 2 the epoch decides: an end raises
it, so the epoch before the present one is the same end once more, with the same new identity as reply, and the present
one means a transaction that has not begun. There is nothing to commit then, but an abort is accepted, because the
producer cannot know whether its first records arrived. At older versions one epoch means both, and the state decides.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.coordinator.transactions.transitions import (
    EPOCH_BUMP_VERSION,
    MAX_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Answer,
    ProducerIdentity,
    Step,
    TransactionLogValue,
    TransactionState,
    added_partitions,
    completed,
    created,
    ended,
    fenced,
    incremented,
    is_exhausted,
    last_epoch_of_fenced,
    refusal,
    rotated,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["add_partitions", "end_transaction", "init_producer_id", "missing_partitions", "producer_refusal"]


def producer_refusal(known: TransactionLogValue | None, producer: ProducerIdentity) -> ErrorCode | None:
    """Return the error of a producer that may not write for the transactional id; None if it may."""
    if known is None or known.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if known.producer_epoch != producer.producer_epoch:
        return ErrorCode.producer_fenced
    if state_of(known) in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        return ErrorCode.concurrent_transactions
    return None


def add_partitions(
    known: TransactionLogValue | None,
    producer: ProducerIdentity,
    partitions: frozenset[tuple[str, int]],
    *,
    client_version: int,
    now_ms: int,
) -> Step:
    """Add partitions to the open transaction, or open one."""
    code = producer_refusal(known, producer)
    if code is not None or known is None:
        return refusal(code or ErrorCode.invalid_producer_id_mapping)
    done = Answer(code=ErrorCode.none)
    if state_of(known) is TransactionState.ONGOING and partitions <= known.transaction_partitions:
        return Step(answer=done)
    value = added_partitions(known, partitions, client_version=client_version, now_ms=now_ms)
    return Step(answer=done, value=value)


def missing_partitions(
    known: TransactionLogValue, partitions: frozenset[tuple[str, int]]
) -> frozenset[tuple[str, int]]:
    """Return the partitions that were not added to the transaction."""
    return partitions - known.transaction_partitions


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
    """Assign a producer id and an epoch to a transactional id (InitProducerId).

    Args:
        known: recorded state of the transactional id; None if there is none.
        expected: producer id and epoch that the producer claims to have; None for a new producer.
        last_producer_epoch: epoch before the present one, if its owner requested the last bump.
        timeout_ms: `transaction.timeout.ms` of the producer.
        transaction_version: level of the feature `transaction.version`.
        new_producer_id: returns an id that was never used before. Called only when one is needed.
        now_ms: current time.

    Returns:
        The error code or the producer to answer with, and the record to append, if any.
    """
    # 1. Who asks? With an identity (KIP-360) the sender must be the present owner, or a retry after the producer id
    #    changed.
    value = known or created(new_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms)
    if expected is not None and not _may_continue(value, expected):
        return refusal(ErrorCode.producer_fenced)
    state = state_of(value)
    # 2. Markers are being written. The client retries until the transaction is complete.
    if state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        return refusal(ErrorCode.concurrent_transactions)
    # 3. The former owner's transaction is aborted under a higher epoch, which fences that owner. The sender retries and
    #    meets case 2, then case 4 or 5.
    if state is TransactionState.ONGOING:
        # The new owner never sees this epoch: its next request gets the one after it.
        return Step(
            answer=Answer(code=ErrorCode.concurrent_transactions),
            value=fenced(value, transaction_version=transaction_version, now_ms=now_ms),
            last_producer_epoch=last_epoch_of_fenced(value, transaction_version=transaction_version),
        )
    # 4. The epochs of this producer id are used up: a new id, with epoch 0.
    if is_exhausted(value.producer_epoch) and (expected is None or expected.producer_epoch == value.producer_epoch):
        new = rotated(value, producer_id=new_producer_id(), timeout_ms=timeout_ms, now_ms=now_ms)
        return _given(new, NO_PRODUCER_EPOCH if expected is None else value.producer_epoch)
    # 5. The next epoch of the same id.
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
    # Three senders: one without identity takes over (its epoch becomes the next one, and fences); the owner continues
    # after an error; a retry whose reply was lost asks for the epoch it has been given already. The third differs from
    # a fenced producer only by `last_producer_epoch`, which is soft state: after a restart it is fenced (KIP-360).
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
    """Prepare the commit or abort of a transaction (EndTxn).

    Args:
        known: recorded state of the transactional id; None if there is none.
        producer: producer id and epoch of the request.
        committed: True for commit, False for abort.
        client_version: transaction version of the client (2: KIP-890, part 2).
        last_producer_epoch: epoch before the present one, if its owner requested the last bump.
        new_producer_id: returns an id that was never used before. Called only when the epoch is exhausted.
        now_ms: current time.

    Returns:
        The error code or the producer to answer with, and the record to append, if any.
    """
    if known is None:
        return refusal(ErrorCode.invalid_producer_id_mapping)
    if client_version < EPOCH_BUMP_VERSION:
        return _end_at_version_1(known, producer, committed, last_producer_epoch, now_ms)
    # KIP-890, transaction version 2: the end of a transaction raises the epoch. A retry therefore carries the epoch
    # *before* the present one (`bumped`), or, if that end used up the epochs, the last epoch of the former id
    # (`overflowed`).
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
    # From here on the epoch is valid; the state decides what it means:
    # - the same end is being written: retry later;
    # - the same end was completed and this is its retry: the reply again, with the new identity;
    # - nothing is open: only an abort of a transaction that has not begun is accepted, since the producer cannot know
    #   whether its first records arrived;
    # - the other end was decided before: INVALID_TXN_STATE.
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
