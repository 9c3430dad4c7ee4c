"""Every step of a transactional id, field by field, from every state it may and may not be taken from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.coordinator.transactions import transitions as t
from headrace.coordinator.transactions.transitions import (
    MAX_EPOCH,
    VALID_PREVIOUS_STATES,
    TransactionLogValue,
    TransactionState,
)
from headrace.protocol.error_codes import ErrorCode

STATE = TransactionState
NOW = 5_000
BEFORE = TransactionLogValue(
    producer_id=11,
    previous_producer_id=10,
    next_producer_id=12,
    producer_epoch=3,
    transaction_timeout_ms=700,
    transaction_status=STATE.ONGOING,
    transaction_partitions=frozenset({("a", 0), ("b", 1)}),
    transaction_last_update_timestamp_ms=2_000,
    transaction_start_timestamp_ms=1_000,
    client_transaction_version=1,
)
Transition = Callable[[TransactionLogValue], TransactionLogValue]


def in_state(state: TransactionState, **changes: object) -> TransactionLogValue:
    return replace(BEFORE, transaction_status=state, **changes)  # type: ignore[arg-type]


def stepped(value: TransactionLogValue, state: TransactionState, **changes: object) -> TransactionLogValue:
    """What every step writes, and what only this one does."""
    always = {
        "transaction_status": state,
        "transaction_last_update_timestamp_ms": NOW,
        "previous_producer_id": value.producer_id,
    }
    return replace(value, **{**always, **changes})  # type: ignore[arg-type]


def test_a_new_id_has_no_epoch_yet() -> None:
    assert t.created(11, timeout_ms=700, now_ms=NOW) == TransactionLogValue(
        producer_id=11,
        previous_producer_id=-1,
        next_producer_id=-1,
        producer_epoch=-1,
        transaction_timeout_ms=700,
        transaction_status=STATE.EMPTY,
        transaction_partitions=frozenset(),
        transaction_last_update_timestamp_ms=NOW,
        transaction_start_timestamp_ms=-1,
        client_transaction_version=0,
    )


def test_a_refusal_writes_nothing_and_names_no_identity() -> None:
    step = t.refusal(ErrorCode.producer_fenced)
    assert step.answer == t.Answer(code=ErrorCode.producer_fenced, producer_id=-1, producer_epoch=-1)
    assert (step.value, step.last_producer_epoch) == (None, -1)


@pytest.mark.parametrize(
    ("epoch", "exhausted"),
    [(0, False), (MAX_EPOCH - 2, False), (MAX_EPOCH - 1, True), (MAX_EPOCH, True)],
)
def test_the_last_epoch_is_kept_for_the_fence(epoch: int, exhausted: bool) -> None:
    assert t.is_exhausted(epoch) is exhausted


@pytest.mark.parametrize("state", [STATE.EMPTY, STATE.COMPLETE_COMMIT, STATE.COMPLETE_ABORT])
def test_init_producer_id_begins_with_nothing(state: TransactionState) -> None:
    value = in_state(state)
    cleared = {
        "transaction_timeout_ms": 900,
        "transaction_partitions": frozenset(),
        "transaction_start_timestamp_ms": -1,
    }
    assert t.incremented(value, epoch=4, timeout_ms=900, now_ms=NOW) == stepped(
        value, STATE.EMPTY, producer_epoch=4, **cleared
    )
    assert t.rotated(value, producer_id=20, timeout_ms=900, now_ms=NOW) == stepped(
        value, STATE.EMPTY, producer_id=20, producer_epoch=0, **cleared
    )


@pytest.mark.parametrize("state", [STATE.ONGOING, STATE.EMPTY, STATE.COMPLETE_COMMIT, STATE.COMPLETE_ABORT])
def test_the_first_partition_begins_the_time_of_a_transaction(state: TransactionState) -> None:
    value = in_state(state)
    assert t.added_partitions(value, [("b", 1), ("c", 2)], client_version=2, now_ms=NOW) == stepped(
        value,
        STATE.ONGOING,
        transaction_partitions=frozenset({("a", 0), ("b", 1), ("c", 2)}),
        transaction_start_timestamp_ms=1_000 if state is STATE.ONGOING else NOW,
        client_transaction_version=2,
    )


@pytest.mark.parametrize(
    ("client_version", "epoch", "next_epoch"),
    [(0, 3, 3), (1, 3, 3), (2, 3, 4), (3, 3, 4), (2, MAX_EPOCH - 1, MAX_EPOCH), (2, MAX_EPOCH, MAX_EPOCH)],
)
@pytest.mark.parametrize("committed", [True, False])
def test_an_end_raises_the_epoch_from_version_2_on(
    committed: bool, client_version: int, epoch: int, next_epoch: int
) -> None:
    value = in_state(STATE.ONGOING, producer_epoch=epoch)
    assert t.ended(
        value, committed=committed, client_version=client_version, next_producer_id=33, now_ms=NOW
    ) == stepped(
        value,
        STATE.PREPARE_COMMIT if committed else STATE.PREPARE_ABORT,
        next_producer_id=33,
        producer_epoch=next_epoch,
        client_transaction_version=client_version,
    )


@pytest.mark.parametrize("state", [STATE.EMPTY, STATE.COMPLETE_COMMIT, STATE.COMPLETE_ABORT])
def test_an_abort_of_nothing_begins_and_ends_now(state: TransactionState) -> None:
    value = in_state(state)
    assert t.ended(value, committed=False, client_version=2, next_producer_id=-1, now_ms=NOW) == stepped(
        value,
        STATE.PREPARE_ABORT,
        next_producer_id=-1,
        producer_epoch=4,
        transaction_start_timestamp_ms=NOW,
        client_transaction_version=2,
    )


@pytest.mark.parametrize(("version", "kept"), [(0, 0), (1, 0), (2, 2), (3, 3)])
@pytest.mark.parametrize(("epoch", "next_epoch"), [(3, 4), (MAX_EPOCH - 1, MAX_EPOCH), (MAX_EPOCH, MAX_EPOCH)])
def test_a_fence_aborts_with_a_larger_epoch(version: int, kept: int, epoch: int, next_epoch: int) -> None:
    value = in_state(STATE.ONGOING, producer_epoch=epoch)
    assert t.fenced(value, transaction_version=version, now_ms=NOW) == stepped(
        value,
        STATE.PREPARE_ABORT,
        next_producer_id=-1,
        producer_epoch=next_epoch,
        client_transaction_version=kept,
    )
    assert t.last_epoch_of_fenced(value, transaction_version=version) == (epoch if version >= 2 else -1)


@pytest.mark.parametrize(
    ("next_producer_id", "client_version", "moves"),
    [(12, 2, True), (12, 3, True), (0, 2, True), (-1, 2, False), (12, 1, False), (12, 0, False), (-1, 0, False)],
)
@pytest.mark.parametrize("committed", [True, False])
def test_the_next_producer_id_takes_over_when_all_markers_are_written(
    committed: bool, next_producer_id: int, client_version: int, moves: bool
) -> None:
    value = in_state(
        STATE.PREPARE_COMMIT if committed else STATE.PREPARE_ABORT,
        next_producer_id=next_producer_id,
        client_transaction_version=client_version,
    )
    assert t.completed(value, now_ms=NOW) == stepped(
        value,
        STATE.COMPLETE_COMMIT if committed else STATE.COMPLETE_ABORT,
        producer_id=next_producer_id if moves else 11,
        producer_epoch=0 if moves else 3,
        next_producer_id=-1,
        transaction_partitions=frozenset(),
    )


STEPS: dict[str, tuple[TransactionState, Transition]] = {
    "incremented": (STATE.EMPTY, lambda v: t.incremented(v, epoch=1, timeout_ms=1, now_ms=NOW)),
    "rotated": (STATE.EMPTY, lambda v: t.rotated(v, producer_id=1, timeout_ms=1, now_ms=NOW)),
    "added_partitions": (STATE.ONGOING, lambda v: t.added_partitions(v, [], client_version=2, now_ms=NOW)),
    "committed": (
        STATE.PREPARE_COMMIT,
        lambda v: t.ended(v, committed=True, client_version=2, next_producer_id=-1, now_ms=NOW),
    ),
    "aborted": (
        STATE.PREPARE_ABORT,
        lambda v: t.ended(v, committed=False, client_version=2, next_producer_id=-1, now_ms=NOW),
    ),
    "fenced": (STATE.PREPARE_ABORT, lambda v: t.fenced(v, transaction_version=2, now_ms=NOW)),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("state", list(STATE))
def test_a_step_is_taken_from_the_states_of_the_table_only(name: str, state: TransactionState) -> None:
    target, step = STEPS[name]
    if state in VALID_PREVIOUS_STATES[target]:
        assert t.state_of(step(in_state(state))) is target
    else:
        with pytest.raises(RuntimeError, match=rf"^no rule leads from {state.name} to {target.name}$"):
            step(in_state(state))


@pytest.mark.parametrize("state", [each for each in STATE if each not in (STATE.PREPARE_COMMIT, STATE.PREPARE_ABORT)])
def test_only_a_prepared_transaction_completes(state: TransactionState) -> None:
    with pytest.raises(RuntimeError, match=f"^no rule leads from {state.name} to COMPLETE_ABORT$"):
        t.completed(in_state(state), now_ms=NOW)
