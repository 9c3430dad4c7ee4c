"""The rules for the outcome of a micro-batch: by committed offsets, and by the errors of its commit."""

import pytest

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.transaction_rules import refused
from headrace.errors import BrokerError, CannotConnect, Fenced, StateError
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.machine.batch_outcome import Batch, first_trouble, is_retriable, outcome_by_offsets


@pytest.mark.parametrize(
    ("api", "code", "is_borne"),
    [
        ("EndTxn", ErrorCode.unknown_server_error, True),  # seen on Apache Kafka 4.3.1 beside an overdue abort
        ("EndTxn", ErrorCode.invalid_txn_state, True),  # the overdue transaction was aborted
        ("TxnOffsetCommit", ErrorCode.invalid_txn_state, False),
        ("EndTxn", ErrorCode.transaction_abortable, True),
        ("EndTxn", ErrorCode.transactional_id_authorization_failed, False),
        ("TxnOffsetCommit", ErrorCode.topic_authorization_failed, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_retriable_commit_errors_start_another_transaction(api, code, is_borne) -> None:
    error = refused(code, "to commit the transaction of app-1", api=api, transactional_id="app-1")
    assert first_trouble([error]) is error
    assert isinstance(error, BrokerError)
    assert bool(error.retriable) is is_borne


A, B = ("t", 0), ("t", 1)


@pytest.mark.parametrize(
    ("reached", "found", "outcome"),
    [
        ({A: 9}, {A: 5, B: 3}, "unchanged"),
        ({A: 9}, {A: -1, B: 3}, "unchanged"),  # nothing was ever committed: the batch began by the reset policy
        ({A: 9}, {A: 9, B: 3}, "committed"),
        ({A: 9}, {A: 9, B: -1}, "committed"),
        ({A: 9}, {A: 8, B: 3}, "reopen"),
        ({A: 9}, {A: 9, B: 4}, "reopen"),
        (None, {A: 9, B: 3}, "reopen"),
    ],
)
def test_committed_offsets_decide_the_outcome(reached, found, outcome) -> None:
    assert outcome_by_offsets({A: 5, B: 3}, reached, found) == outcome


def test_only_unreachable_brokers_and_retriable_refusals_are_worth_a_retry() -> None:
    assert is_retriable(CannotConnect("broker-unreachable", "no answer"))
    assert is_retriable(BrokerError("not-stored", "too few replicas", retriable=True))
    assert not is_retriable(BrokerError("not-authorized", "no"))
    assert not is_retriable(StateError("state-corrupt", "no"))


AWAY = CannotConnect("broker-unreachable", "no answer")
REFUSED = BrokerError("not-authorized", "no")
FENCED = Fenced("member-fenced", "another member has the tasks")


def three_slots() -> Batch:
    """Slots 0 to 2 with the tasks 0 and 1, 2, 3; each task began at 0 and reached 5."""
    slots = {0: frozenset({0, 1}), 1: frozenset({2}), 2: frozenset({3})}
    tasks = range(4)
    return Batch(
        number=1,
        assignment=AssignmentSnapshot(member_id="m", member_epoch=1, active={"s": tuple(tasks)}),
        started_ms=0,
        slots=slots,
        starts={task: {("t", task): 0} for task in tasks},
        reached={task: {("t", task): 5} for task in tasks},
    )


def test_slots_without_an_error_are_committed() -> None:
    batch = three_slots()
    batch.committed = {9}
    batch.take_outcome({0: None, 1: AWAY, 2: None})
    assert (batch.errors, batch.committed) == ({1: AWAY}, {0, 1, 3, 9})


def test_at_least_once_opens_the_tasks_of_failed_commits_again() -> None:
    batch = three_slots()
    batch.reopen = {9}
    batch.take_outcome({0: None, 1: AWAY, 2: None})
    batch.decide_without_fencing()
    assert batch.reopen == {2, 9}


def test_each_task_is_decided_by_its_own_offsets() -> None:
    batch = three_slots()
    batch.reopen = {9}
    batch.take_outcome({0: AWAY, 1: AWAY, 2: FENCED})
    batch.decide_by_offsets([0, 1, 2], {("t", 0): 0, ("t", 1): 5, ("t", 2): 3, ("t", 3): 0})
    assert (batch.committed, batch.resolved) == ({1}, {1, 2})
    assert batch.reopen == {2, 3, 9}  # 3: its slot was fenced


def test_errors_of_committed_and_fenced_slots_are_no_trouble() -> None:
    batch = three_slots()
    batch.take_outcome({0: AWAY, 1: REFUSED, 2: FENCED})
    batch.committed = {0, 1}
    assert batch.trouble(transactional=True) is REFUSED
    assert batch.trouble(transactional=False) is REFUSED
    batch.committed = {0}
    assert batch.trouble(transactional=False) is AWAY
    batch.committed = {0, 1, 2}
    assert batch.trouble(transactional=True) is None
    assert batch.trouble(transactional=False) is None
