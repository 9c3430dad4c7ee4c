"""Verification of a transactional batch before its append: its partition must be in the transaction (KIP-890).

A record outside an open transaction would get no marker, and would hold up all readers of committed records for ever.
"""

from __future__ import annotations

from headrace.broker.coordinators.transaction_runtime import TransactionRuntime
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.coordinator.transactions.transaction_state import EPOCH_BUMP_VERSION
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import CorruptBatch, iter_batch_headers

__all__ = ["check_transaction"]

# Produce versions: what their clients know.
ABORTABLE_SINCE = 11
ADDS_PARTITIONS_SINCE = 12
# Older clients do not try these again in the midst of a transaction, but this one they do.
_RETRIED_AS = ErrorCode.not_enough_replicas
_RETRIABLE = (ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator)


def check_transaction(
    batch: bytes,
    topic: TopicDescription,
    partition: int,
    transactional_id: str | None,
    produce_version: int,
    transactions: TransactionRuntime,
) -> int:
    """The transaction version that the batch goes by; 0 for one outside of transactions. Raises AppendRefused. A batch
    that is no batch is left to the log, which says why."""
    try:
        header = next(iter_batch_headers(batch), None)
    except CorruptBatch:
        return 0
    if header is None or not header.is_transactional:
        return 0
    if not transactional_id:
        raise AppendRefused(ErrorCode.invalid_request, "Transactional records come without a transactional id.")
    adds = produce_version >= ADDS_PARTITIONS_SINCE
    code = transactions.verify(
        transactional_id, header.producer_id, header.producer_epoch, ((topic.name, partition),), add=adds
    )
    if code is ErrorCode.none:
        return EPOCH_BUMP_VERSION if adds else 0
    raise AppendRefused(_for_client(code, produce_version), _reason(code, topic.name, partition))


def _for_client(code: ErrorCode, produce_version: int) -> ErrorCode:
    if code is ErrorCode.transaction_abortable and produce_version < ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.concurrent_transactions and produce_version < ADDS_PARTITIONS_SINCE:
        return _RETRIED_AS
    return _RETRIED_AS if code in _RETRIABLE else code


def _reason(code: ErrorCode, topic: str, partition: int) -> str:
    where = f"{topic}-{partition}"
    if code is ErrorCode.transaction_abortable:
        return f"The partition {where} was not added to the transaction."
    return f"The transaction may not write to {where} now: {code.name}."
