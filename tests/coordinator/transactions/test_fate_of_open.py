"""What becomes of a transaction that a log holds open, for every state a crash may have left the coordinator in."""

from __future__ import annotations

import pytest

from headrace.coordinator.transactions.transitions import TransactionLogValue, outcome_of_open
from headrace.coordinator.transactions.transitions import TransactionState as State

HERE, ELSEWHERE = ("flights", 0), ("flights", 1)
ID, EPOCH, LAST = 7, 4, 32766


def holder(
    state: State, epoch: int = EPOCH, *partitions: tuple[str, int], producer_id: int = ID, previous: int = -1
) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=producer_id,
        previous_producer_id=previous,
        producer_epoch=epoch,
        transaction_timeout_ms=1000,
        transaction_status=state,
        transaction_partitions=frozenset(partitions),
        transaction_last_update_timestamp_ms=1,
    )


@pytest.mark.parametrize(
    ("value", "fate"),
    [
        (None, "abort"),  # not even the identity is left
        (holder(State.ONGOING, EPOCH, HERE, ELSEWHERE), "known"),
        (holder(State.PREPARE_COMMIT, EPOCH + 1, HERE), "known"),
        (holder(State.PREPARE_ABORT, EPOCH, HERE), "known"),  # of a client that keeps its epoch
        (holder(State.ONGOING, EPOCH, ELSEWHERE), "adopt"),
        (holder(State.EMPTY, EPOCH), "adopt"),
        (holder(State.COMPLETE_COMMIT, EPOCH), "adopt"),  # the one before it was committed
        (holder(State.COMPLETE_ABORT, EPOCH), "adopt"),
        (holder(State.COMPLETE_COMMIT, EPOCH + 1), "commit"),  # only the marker was lost
        (holder(State.COMPLETE_ABORT, EPOCH + 1), "abort"),
        (holder(State.COMPLETE_COMMIT, EPOCH + 2), "abort"),  # a later one: how this one ended is not known
        (holder(State.ONGOING, EPOCH + 1, HERE), "known"),  # its marker ends this one, too
        (holder(State.ONGOING, EPOCH + 2, HERE), "abort"),
        (holder(State.ONGOING, EPOCH + 1, ELSEWHERE), "abort"),
        (holder(State.EMPTY, EPOCH + 1), "abort"),
        (holder(State.EMPTY, EPOCH - 1), "abort"),  # the log knows more than the coordinator
        (holder(State.PREPARE_COMMIT, EPOCH + 1, ELSEWHERE), "abort"),
    ],
)
def test_the_fate_of_an_open_transaction(value: TransactionLogValue | None, fate: str) -> None:
    assert outcome_of_open(value, ID, EPOCH, HERE) == fate


def test_the_epochs_had_run_out() -> None:
    moved = holder(State.COMPLETE_COMMIT, 0, producer_id=8, previous=ID)
    assert outcome_of_open(moved, ID, LAST, HERE) == "commit"
    assert outcome_of_open(moved, ID, LAST - 1, HERE) == "abort"
    assert outcome_of_open(holder(State.ONGOING, 0, HERE, producer_id=8, previous=8), ID, LAST, HERE) == "abort"
