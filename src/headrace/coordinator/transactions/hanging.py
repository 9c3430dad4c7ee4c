"""Decision about transactions that are open in a partition's log after a crash.

Logs are written to disk independently. A power loss may keep records of a transaction and lose the coordinator's record
that the partition belongs to it, or lose a marker and keep the coordinator's record that all markers were written. No
one would ever end such a transaction, and readers of committed records would wait for it forever.
"""

from __future__ import annotations

from typing import Literal

from headrace.coordinator.records.transaction_log import TransactionLogValue
from headrace.coordinator.transactions.transaction_state import TransactionState
from headrace.coordinator.transactions.transitions import is_exhausted, state_of

__all__ = ["Fate", "fate_of_open"]

Fate = Literal["known", "adopt", "commit", "abort"]
_S = TransactionState
_PREPARED = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)


def fate_of_open(
    holder: TransactionLogValue | None, producer_id: int, producer_epoch: int, partition: tuple[str, int]
) -> Fate:
    """Return what to do with a transaction that is open in a partition's log.

    `holder`: the transactional id that has the producer id, or had it until its epochs ran out; None if there is none.

    known: the coordinator will end it. adopt: it is the producer's present transaction, to which the partition has to
    be added. commit, abort: it gets that marker, because the coordinator has completed it or does not know it.
    """
    if holder is None:
        return "abort"
    state = state_of(holder)
    is_present = (holder.producer_id, holder.producer_epoch) == (producer_id, producer_epoch)
    if state in (_S.ONGOING, *_PREPARED) and partition in holder.transaction_partitions:
        return "known" if is_present or _is_next(holder, producer_id, producer_epoch) else "abort"
    if is_present and state not in _PREPARED:
        return "adopt"
    if state is _S.COMPLETE_COMMIT and _is_next(holder, producer_id, producer_epoch):
        return "commit"
    return "abort"


def _is_next(holder: TransactionLogValue, producer_id: int, producer_epoch: int) -> bool:
    """Whether the holder has the epoch that the end of this very transaction gave it."""
    if holder.producer_id == producer_id:
        return holder.producer_epoch == producer_epoch + 1
    return holder.previous_producer_id == producer_id and is_exhausted(producer_epoch) and holder.producer_epoch == 0
