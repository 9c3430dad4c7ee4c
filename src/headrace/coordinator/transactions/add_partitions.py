"""AddPartitionsToTxn, also for a partition of `__consumer_offsets` (AddOffsetsToTxn), and the look whether it was done.

The look is taken before each produce: a partition that is not in the open transaction would never get a marker, and
would hang (KIP-890).
"""

from __future__ import annotations

from headrace.coordinator.records.transaction_log import TransactionLogValue
from headrace.coordinator.transactions.producer_identity import ProducerIdentity
from headrace.coordinator.transactions.transaction_state import TransactionState
from headrace.coordinator.transactions.transitions import Answer, Step, added_partitions, refusal, state_of
from headrace.protocol.error_codes import ErrorCode

__all__ = ["add_partitions", "missing_partitions", "producer_refusal"]


def producer_refusal(known: TransactionLogValue | None, producer: ProducerIdentity) -> ErrorCode | None:
    """Why this producer may not write in the name of the transactional id now; None when it may."""
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
    """Those that were not added to the transaction."""
    return partitions - known.transaction_partitions
