"""The rules for the outcome of a micro-batch: by committed offsets, and by the errors of its commit.

In the second half a scripted coordinator commits, does not, or loses its answer after either. The truth is where its
offsets stand; whatever answer a driver gets, the machine's decision must agree with that.
"""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.transaction_rules import refused
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError, StateError
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.machine import commands, events
from headrace.spark.machine.batch_outcome import Batch, first_error_to_report, is_retriable, outcome_by_offsets
from headrace.spark.machine.commands import Advance, Command
from headrace.spark.machine.subtopology_machine import SubtopologyMachine


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
    assert first_error_to_report([error]) is error
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
    assert batch.error_to_report(transactional=True) is REFUSED
    assert batch.error_to_report(transactional=False) is REFUSED
    batch.committed = {0}
    assert batch.error_to_report(transactional=False) is AWAY
    batch.committed = {0, 1, 2}
    assert batch.error_to_report(transactional=True) is None
    assert batch.error_to_report(transactional=False) is None


ANSWERS: dict[str, tuple[bool, HeadraceError | None]] = {
    "committed": (True, None),
    "refused": (False, BrokerError("broker-refused", "abortable", transaction="abortable")),
    "fenced": (False, Fenced("member-fenced", "another epoch")),
    "lost-after-commit": (True, CannotConnect("broker-unreachable", "no answer")),
    "lost-before-commit": (False, CannotConnect("broker-unreachable", "no answer")),
}
Places = dict[tuple[str, int], int]
Ranges = Mapping[int, Mapping[int, Mapping[str, tuple[int, int]]]]  # slot → task → topic → start, end


def of_slots(count: int) -> Ranges:
    """Two tasks for each slot: one with two inputs, one of which has nothing to read."""
    return {slot: {2 * slot: {"t0": (10, 20), "t1": (5, 5)}, 2 * slot + 1: {"t0": (0, 3)}} for slot in range(count)}


def starts(ranges: Ranges) -> dict[int, dict[int, Places]]:
    return {
        slot: {task: {(topic, task): start for topic, (start, _) in inputs.items()} for task, inputs in tasks.items()}
        for slot, tasks in ranges.items()
    }


def reached(ranges: Ranges) -> dict[int, Places]:
    return {
        task: {(topic, task): end for topic, (start, end) in inputs.items() if end > start}
        for tasks in ranges.values()
        for task, inputs in tasks.items()
    }


def running(ranges: Ranges, *, transactional: bool = True) -> SubtopologyMachine:
    """A machine whose micro-batch over these ranges runs."""
    machine = SubtopologyMachine("counts", transactional=transactional)
    tasks = tuple(sorted(task for of_slot in ranges.values() for task in of_slot))
    given_ = AssignmentSnapshot(member_id="m", member_epoch=5, active={"counts": tasks})
    machine.handle(events.SlotHello(slots=tuple(ranges)), 0)
    machine.handle(events.Assigned(assignment=given_), 0)
    machine.handle(events.Opened(number=0, partitions=tasks), 0)
    machine.handle(events.Woken(), 0)
    machine.handle(events.EndsSeen(ready=frozenset(tasks)), 0)
    machine.handle(events.Began(batch=0, slots=starts(ranges)), 0)
    return machine


def decided(
    ranges: Ranges, answers: Mapping[int, str], offsets: Places, *, transactional: bool = True
) -> tuple[Advance, tuple[Command, ...], list[int]]:
    """Commit; return the decision, what follows from it, and the slots for which offsets were read."""
    machine = running(ranges, transactional=transactional)
    machine.handle(events.JobFinished(batch=0, reached=reached(ranges)), 0)
    errors = {slot: ANSWERS[answers.get(slot, "committed")][1] for slot in ranges}
    (command,) = machine.handle(events.CommitOutcome(batch=0, errors=errors), 0)
    asked: list[int] = []
    if isinstance(command, commands.Resolve):
        asked = list(command.slots)
        found = {
            where: offsets.get(where, -1)
            for slot in command.slots
            for inputs in starts(ranges)[slot].values()
            for where in inputs
        }
        (command,) = machine.handle(events.OffsetsRead(batch=0, offsets=found), 0)
    assert isinstance(command, Advance)
    return command, machine.handle(events.Advanced(batch=0), 0), asked


@given(answers=st.lists(st.sampled_from(sorted(ANSWERS)), min_size=1, max_size=4), had_offsets=st.booleans())
def test_the_decision_agrees_with_the_offsets(answers: list[str], had_offsets: bool) -> None:
    ranges = of_slots(len(answers))
    offsets: Places = {}
    for slot, name in enumerate(answers):
        for task, places in starts(ranges)[slot].items():
            offsets |= places if had_offsets else {}
            offsets |= reached(ranges)[task] if ANSWERS[name][0] else {}
    advance, after, asked = decided(ranges, dict(enumerate(answers)), offsets)
    effects = {2 * n + each: ANSWERS[name][0] for n, name in enumerate(answers) for each in (0, 1)}
    assert advance.committed == {task for task, took_effect in effects.items() if took_effect}
    fenced = {2 * n + each for n, name in enumerate(answers) if name == "fenced" for each in (0, 1)}
    assert advance.reopen == fenced, "a fenced slot's tasks rest; every other one goes on from where it stands"
    assert advance.unchanged == set(effects) - advance.committed - fenced
    assert asked == [n for n, name in enumerate(answers) if name != "committed"]
    is_trouble = any(name in ("refused", "lost-before-commit") for name in answers)
    assert isinstance(after[-1], commands.Wait) == is_trouble, "the batch is repeated after a pause"


def test_a_batch_without_doubt_asks_nothing() -> None:
    advance, _, asked = decided(of_slots(2), {}, {})
    assert (advance.committed, advance.error, asked) == ({0, 1, 2, 3}, None, [])


def test_offsets_elsewhere_open_the_task_anew() -> None:
    ranges = {0: {0: {"t0": (10, 20)}, 1: {"t0": (0, 3)}, 2: {"t0": (7, 9)}}}
    offsets = {("t0", 0): 15, ("t0", 1): 0, ("t0", 2): 9}
    advance, _, _ = decided(ranges, {0: "lost-before-commit"}, offsets)
    assert (advance.committed, advance.reopen, advance.unchanged) == ({2}, {0}, {1})
    assert advance.resolved == {0, 2}
    assert advance.error is ANSWERS["lost-before-commit"][1]


def test_a_group_that_was_set_back_to_the_beginning_opens_the_task_anew() -> None:
    ranges = {0: {0: {"t0": (10, 20)}, 1: {"t0": (10, 20)}}}
    advance, _, _ = decided(ranges, {0: "lost-before-commit"}, {("t0", 0): 0})
    assert (advance.committed, advance.reopen) == (set(), {0}), "no offset is where the batch began, offset 0 is not"


def test_a_part_of_the_inputs_is_no_commit() -> None:
    ranges = {0: {0: {"t0": (10, 20), "t1": (5, 8)}}}
    advance, _, _ = decided(ranges, {0: "lost-before-commit"}, {("t0", 0): 20, ("t1", 0): 5})
    assert (advance.committed, advance.reopen) == (set(), {0})


def test_after_a_failed_job_nothing_can_count_as_committed() -> None:
    """Nothing was reported: a task that stands elsewhere is opened anew."""
    ranges = {0: {0: {"t0": (10, 20)}}, 1: {1: {"t0": (0, 3)}}}
    machine = running(ranges)
    assert machine.handle(events.JobFailed(batch=0), 0) == (commands.Resolve(batch=0, slots=(0, 1)),)
    found = {("t0", 0): 10, ("t0", 1): 3}
    (advance,) = machine.handle(events.OffsetsRead(batch=0, offsets=found), 0)
    assert isinstance(advance, Advance)
    assert (advance.committed, advance.reopen, advance.unchanged) == (set(), {1}, {0})


@pytest.mark.parametrize("answer", ["fenced", "lost-before-commit", "lost-after-commit"])
def test_at_least_once_opens_everything_anew_after_a_commit_that_failed(answer: str) -> None:
    advance, after, asked = decided(of_slots(1), {0: answer}, {}, transactional=False)
    assert (advance.committed, advance.reopen, asked) == (set(), {0, 1}, [])
    assert isinstance(after[0], commands.Release)
    assert isinstance(after[1], commands.Open)
    assert isinstance(after[2], commands.Wait) == (answer != "fenced")
