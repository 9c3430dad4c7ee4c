"""Which tasks run and which are opened, when a micro-batch runs, and what its commands are, event by event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import BrokerError, CannotConnect, Fenced, StateError
from headrace.spark.machine import commands, events
from headrace.spark.machine.commands import Command, Open
from headrace.spark.machine.states import BATCH_STEPS, SLOT_STEPS, TASK_STEPS, BatchState, IllegalStep, TaskState
from headrace.spark.machine.subtopology_machine import RETRY_BACKOFF_MS, SubtopologyMachine

AWAY = CannotConnect("broker-unreachable", "no answer")


def assignment(epoch: int, *tasks: int) -> AssignmentSnapshot:
    return AssignmentSnapshot(member_id="m", member_epoch=epoch, active={"counts": tasks})


def place(task: int, offset: int) -> dict[tuple[str, int], int]:
    return {("flights", task): offset}


class Driven:
    """A machine with two slots, its clock, and shortcuts for events."""

    def __init__(self, *, transactional: bool = True, **given: Any) -> None:
        self.machine = SubtopologyMachine("counts", transactional=transactional, **given)
        self.now_ms = 0
        assert self.feed(events.SlotHello(slots=(0, 1))) == (commands.Wait(until_ms=0),)

    def feed(self, event: events.Event) -> tuple[Command, ...]:
        return self.machine.handle(event, self.now_ms)

    def assign(self, epoch: int, *tasks: int) -> tuple[Command, ...]:
        return self.feed(events.Assigned(assignment=assignment(epoch, *tasks)))

    def open(self, *found: Command) -> tuple[Command, ...]:
        return tuple(
            command
            for opening in found
            if isinstance(opening, Open)
            for command in self.feed(events.Opened(number=opening.number, partitions=opening.partitions))
        )

    def run(self, *tasks: int) -> None:
        """Assign and open these tasks, and start a micro-batch of them, from offset 10."""
        self.open(*self.assign(1, *tasks))
        self.feed(events.Woken())
        (run,) = self.feed(events.EndsSeen(ready=frozenset(tasks)))
        assert isinstance(run, commands.Run)
        slots: dict[int, Any] = {}
        for task in tasks:
            slots.setdefault(task % 2, {})[task] = place(task, 10)
        assert self.feed(events.Began(batch=run.batch, slots=slots)) == ()

    def finish(self, *tasks: int, batch: int = 0) -> tuple[Command, ...]:
        """The job of the micro-batch reached offset 20 with these tasks."""
        return self.feed(events.JobFinished(batch=batch, reached={task: place(task, 20) for task in tasks}))

    def committed(self, *slots: int, batch: int = 0) -> tuple[Command, ...]:
        return self.feed(events.CommitOutcome(batch=batch, errors=dict.fromkeys(slots)))

    @property
    def running(self) -> list[int]:
        return [task for task, state in self.machine.tasks.items() if state is TaskState.RUNNING]


# Tasks.


def test_new_tasks_are_opened_once_and_bound_to_their_slots() -> None:
    driven = Driven()
    (opening,) = driven.assign(1, 0, 3)
    assert opening == Open(number=0, assignment=assignment(1, 0, 3), slots={0: 0, 3: 1})
    assert driven.assign(2, 0, 3) == (), "they are being opened already"
    assert driven.machine.opening == [0, 3]
    bound = driven.open(opening)
    assert bound == (commands.Bind(partition=0, slot=0, number=0), commands.Bind(partition=3, slot=1, number=0))
    assert driven.machine.opening == []


def test_start_offsets_are_committed_only_while_all_their_tasks_are_assigned() -> None:
    driven = Driven()
    (opening,) = driven.assign(1, 0, 3)
    assert isinstance(opening, Open)
    assert driven.machine.assignment_of(opening) == assignment(1, 0, 3)
    driven.assign(2, 0, 1, 3)
    assert driven.machine.assignment_of(opening) == assignment(2, 0, 1, 3), "the coordinator takes the newest epoch"
    driven.assign(3, 0, 1)
    assert driven.machine.assignment_of(opening) is None, "task 3 has another owner"
    driven.assign(4, 0, 1, 3)
    assert driven.machine.assignment_of(opening) == assignment(4, 0, 1, 3)
    driven.feed(events.Lost())
    assert driven.machine.assignment_of(opening) is None


def test_tasks_wait_for_slots() -> None:
    machine = SubtopologyMachine("counts", transactional=True)
    assert machine.handle(events.Assigned(assignment=assignment(1, 0)), 0) == ()
    opening, wait = machine.handle(events.SlotHello(slots=(0,)), 0)
    assert isinstance(opening, Open)
    assert wait == commands.Wait(until_ms=0)


def test_tasks_that_stay_are_not_opened_again_and_others_are_released() -> None:
    driven = Driven()
    driven.open(*driven.assign(1, 0, 1))
    opening, release = driven.assign(2, 1, 3)
    assert isinstance(opening, Open)
    assert opening.partitions == (3,)
    assert release == commands.Release(partitions=(0,))
    assert driven.running == [1]
    assert driven.machine.has_released(assignment(2, 1, 3))


def test_during_a_micro_batch_nothing_is_released_or_bound() -> None:
    driven = Driven()
    driven.run(0, 1)
    (opening,) = driven.assign(2, 1, 2)
    assert driven.open(opening) == ()
    assert not driven.machine.has_released(assignment(2, 1, 2))
    driven.finish(0, 1)
    driven.committed(0, 1)
    release, bind, look = driven.feed(events.Advanced(batch=0))
    assert release == commands.Release(partitions=(0,))
    assert bind == commands.Bind(partition=2, slot=0, number=1)
    assert look == commands.LookUpEnds()
    assert driven.machine.has_released(assignment(2, 1, 2))


def test_a_task_that_is_assigned_again_during_its_micro_batch_goes_on() -> None:
    driven = Driven()
    driven.run(0)
    driven.assign(2)
    assert driven.assign(3, 0) == ()
    assert driven.running == [0]


def test_an_opening_whose_task_went_and_came_again_is_not_taken() -> None:
    driven = Driven()
    (first,) = driven.assign(1, 0)
    driven.assign(2)
    (second,) = driven.assign(3, 0)
    assert isinstance(first, Open)
    assert isinstance(second, Open)
    assert not driven.machine.is_opening(first.number)
    assert driven.machine.is_opening(second.number)
    assert driven.open(first) == ()
    assert driven.open(second) == (commands.Bind(partition=0, slot=0, number=second.number),)


def test_lost_tasks_are_reopened_after_their_micro_batch_ended() -> None:
    driven = Driven()
    driven.run(0, 1)
    driven.feed(events.Lost())
    assert driven.machine.losses == 1
    assert driven.assign(5, 0, 1) == ()
    assert driven.finish(0, 1) == (commands.Abort(batch=0),), "another member may have them"
    release, opening, check = driven.feed(events.Aborted(batch=0))
    assert release == commands.Release(partitions=(0, 1))
    assert isinstance(opening, Open)
    assert (opening.partitions, opening.assignment.member_epoch) == ((0, 1), 5)
    assert check == commands.CheckEnded()


def test_a_kept_task_that_is_opened_again_is_not_released() -> None:
    """Acknowledged meanwhile, it would run in its new owner as well. Found by the simulator."""
    driven = Driven()
    driven.run(0, 1)
    driven.finish(0, 1)
    driven.feed(events.CommitOutcome(batch=0, errors={0: AWAY, 1: AWAY}))
    driven.feed(events.OffsetsRead(batch=0, offsets=place(0, 5) | place(1, 5)))
    (release, opening, *_) = driven.feed(events.Advanced(batch=0))
    assert release == commands.Release(partitions=(0, 1))
    assert isinstance(opening, Open)
    assert driven.machine.opening == [0, 1]
    assert not driven.machine.has_released(assignment(5, 0)), "task 1 is revoked, and kept by the runtime"
    driven.assign(5, 0)
    assert driven.machine.has_released(assignment(5, 0))


def test_failed_opening_is_retried_while_its_tasks_are_assigned() -> None:
    driven = Driven()
    (opening,) = driven.assign(1, 0, 1)
    assert isinstance(opening, Open)
    driven.now_ms = 1_000
    driven.assign(2, 1)
    for error in (AWAY, Fenced("member-fenced", "another epoch"), BrokerError("x", "busy", retriable=True)):
        (again,) = driven.feed(events.OpenFailed(number=opening.number, error=error))
        assert again == Open(
            number=0, assignment=assignment(2, 1), slots={1: 1}, not_before_ms=1_000 + RETRY_BACKOFF_MS
        )
    driven.assign(3)
    assert driven.feed(events.OpenFailed(number=opening.number, error=StateError("x", "fatal"))) == ()


def test_an_opening_that_cannot_succeed_ends_the_application() -> None:
    driven = Driven()
    driven.assign(1, 0)
    error = BrokerError("no-offset", "no committed offset")
    assert driven.feed(events.OpenFailed(number=0, error=error)) == (commands.Fail(error=error),)


def test_tasks_of_a_recreated_topic_are_opened_anew() -> None:
    driven = Driven()
    driven.open(*driven.assign(1, 0, 1))
    driven.feed(events.Woken())
    release, opening, look = driven.feed(events.EndsSeen(ready=frozenset({0, 1}), recreated=frozenset({1})))
    assert release == commands.Release(partitions=(1,))
    assert isinstance(opening, Open)
    assert opening.partitions == (1,)
    assert look == commands.LookUpEnds()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sets(st.integers(0, 3))),
        st.tuples(st.just("open"), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_exactly_the_assigned_tasks_are_opened_and_run(steps: list[tuple[str, Any]]) -> None:
    driven, wanted, found = Driven(), set[int](), list[Command]()
    for epoch, (kind, value) in enumerate(steps, start=1):
        if kind == "assign":
            wanted = value
            found += driven.assign(epoch, *sorted(value))
        elif kind == "open":
            driven.open(*found[value : value + 1])
        else:
            wanted = set()
            driven.feed(events.Lost())
        assert set(driven.running) | set(driven.machine.opening) == wanted
        assert not set(driven.running) & set(driven.machine.opening)
    driven.open(*found)
    assert set(driven.running) == wanted
    assert driven.machine.opening == []


# Micro-batches.


def test_micro_batch_is_committed_with_the_epoch_of_its_plan() -> None:
    driven = Driven()
    driven.open(*driven.assign(1, 0))
    assert driven.feed(events.Woken()) == (commands.LookUpEnds(),)
    (run,) = driven.feed(events.EndsSeen(ready=frozenset({0})))
    assert run == commands.Run(batch=0, assignment=assignment(1, 0), partitions=frozenset({0}))
    driven.assign(2, 0)
    driven.feed(events.Began(batch=0, slots={0: {0: place(0, 10)}}))
    assert driven.finish(0) == (commands.Commit(batch=0),)
    assert driven.committed(0) == (commands.Advance(batch=0, committed=frozenset({0}), unchanged=frozenset()),)
    assert driven.feed(events.Advanced(batch=0)) == (commands.LookUpEnds(),)


def test_without_input_transactions_are_checked_before_the_wait() -> None:
    driven = Driven()
    assert driven.feed(events.Woken()) == (commands.CheckEnded(),)
    assert driven.feed(events.EndedChecked()) == (commands.WaitForInput(),)
    driven.open(*driven.assign(1, 0))
    driven.feed(events.Woken())
    assert driven.feed(events.EndsSeen(ready=frozenset())) == (commands.CheckEnded(),)


def test_the_next_micro_batch_waits_for_the_trigger_interval() -> None:
    driven = Driven(trigger_interval_ms=100)
    driven.now_ms = 1_000
    driven.run(0)
    driven.now_ms = 1_030
    driven.finish(0)
    driven.committed(0)
    assert driven.feed(events.Advanced(batch=0)) == (commands.Wait(until_ms=1_100),)


@pytest.mark.parametrize("transactional", [True, False])
def test_a_job_that_failed_is_undone_before_its_cause_is_looked_for(transactional: bool) -> None:
    driven = Driven(transactional=transactional)
    driven.run(0, 1)
    found = driven.feed(events.JobFailed(batch=0, is_broker_error=True))
    assert found[0] == commands.MarkUnknown()
    if transactional:
        assert found[1] == commands.Resolve(batch=0, slots=(0, 1))
        found = driven.feed(events.OffsetsRead(batch=0, offsets=place(0, 10) | place(1, -1)))
    assert found[-1] == commands.Advance(batch=0, committed=frozenset(), unchanged=frozenset({0, 1}))
    assert driven.feed(events.Advanced(batch=0)) == (commands.Recover(batch=0),)
    release, opening, look = driven.feed(events.Recovered(batch=0, reopen=frozenset({1})))
    assert release == commands.Release(partitions=(1,))
    assert isinstance(opening, Open)
    assert look == commands.LookUpEnds()


def test_a_broker_that_is_away_is_asked_again_until_it_answers() -> None:
    driven = Driven()
    driven.run(0)
    driven.feed(events.JobFailed(batch=0))
    for _ in range(3):
        assert driven.feed(events.ActionFailed(error=AWAY)) == (commands.Wait(until_ms=RETRY_BACKOFF_MS),)
        assert driven.feed(events.Woken()) == (commands.Resolve(batch=0, slots=(0,)),)
    (advance,) = driven.feed(events.OffsetsRead(batch=0, offsets=place(0, 10)))
    assert isinstance(advance, commands.Advance)


@pytest.mark.parametrize("event", [events.StopRequested(), events.Lost()])
def test_a_stop_or_a_loss_leaves_unknown_outcomes_to_the_next_owner(event: events.Event) -> None:
    driven = Driven()
    driven.run(0, 1)
    driven.finish(0, 1)
    driven.feed(events.CommitOutcome(batch=0, errors={0: AWAY, 1: None}))
    driven.feed(events.ActionFailed(error=AWAY))
    driven.feed(event)
    assert driven.feed(events.Woken()) == (commands.Abort(batch=0),)
    (advance,) = driven.feed(events.Aborted(batch=0))
    assert isinstance(advance, commands.Advance)
    assert (advance.committed, advance.reopen) == ({1}, {0})


def test_an_error_that_no_retry_resolves_ends_the_application() -> None:
    driven = Driven()
    driven.run(0)
    driven.feed(events.JobFailed(batch=0))
    error = BrokerError("not-authorized", "no")
    assert driven.feed(events.ActionFailed(error=error)) == (commands.Fail(error=error),)
    assert driven.machine.state is BatchState.ENDED


def test_a_stop_finishes_the_micro_batch_and_opens_nothing() -> None:
    driven = Driven()
    driven.run(0)
    assert driven.feed(events.StopRequested()) == (commands.CancelOpenings(),)
    assert driven.feed(events.StopRequested()) == ()
    assert driven.assign(2, 0, 1) == ()
    assert driven.finish(0) == (commands.Commit(batch=0),)
    driven.committed(0)
    assert driven.feed(events.Advanced(batch=0)) == (commands.End(),)


def test_a_job_that_failed_during_a_stop_is_aborted() -> None:
    driven = Driven()
    driven.run(0)
    driven.feed(events.StopRequested())
    assert driven.feed(events.JobFailed(batch=0)) == (commands.Abort(batch=0),)
    assert driven.feed(events.Aborted(batch=0))[-1] == commands.End()


def test_an_unreachable_broker_makes_outcomes_unknown() -> None:
    driven = Driven()
    assert driven.feed(events.BrokerUnreachable()) == (commands.MarkUnknown(),)
    driven.run(0)
    finished = events.JobFinished(batch=0, reached={0: place(0, 20)}, reconnected=True)
    assert driven.feed(finished) == (commands.MarkUnknown(), commands.Commit(batch=0))


def test_before_the_job_a_failure_is_retried_after_a_pause() -> None:
    driven = Driven()
    driven.open(*driven.assign(1, 0))
    driven.feed(events.Woken())
    driven.feed(events.EndsSeen(ready=frozenset({0})))
    assert driven.feed(events.ActionFailed(error=AWAY)) == (commands.Wait(until_ms=RETRY_BACKOFF_MS),)
    driven.now_ms = RETRY_BACKOFF_MS
    assert driven.feed(events.Woken()) == (commands.LookUpEnds(),)


def test_answers_to_nothing_are_refused() -> None:
    driven = Driven()
    driven.run(0)
    for event in (events.Advanced(batch=0), events.JobFinished(batch=9, reached={}), events.ActionFailed(error=AWAY)):
        with pytest.raises(IllegalStep):
            driven.feed(event)


@pytest.mark.parametrize("table", [TASK_STEPS, SLOT_STEPS, BATCH_STEPS])
def test_every_state_has_a_row_and_is_described(table: Any) -> None:
    kind: Any = type(next(iter(table)))
    states = set(kind)
    assert set(table) == states
    described = SubtopologyMachine.__doc__ or ""
    assert [state.name for state in states if state.name not in described] == []


# Slots of a cluster.


def on_cluster(*slots: int) -> Driven:
    driven = Driven.__new__(Driven)
    driven.machine, driven.now_ms = SubtopologyMachine("counts", transactional=True), 0
    assert driven.feed(events.SlotHello(slots=(), stores={})) == (commands.Wait(until_ms=0),)
    for slot in slots:
        assert driven.feed(hello(slot)) == ()
    return driven


def hello(slot: int, *stores: int) -> events.SlotHello:
    return events.SlotHello(slots=(slot,), stores={slot: frozenset(stores)})


def test_tasks_of_a_lost_slot_are_opened_in_another() -> None:
    driven = on_cluster(0, 1)
    driven.open(*driven.assign(1, 0, 1, 2))
    release, opening = driven.feed(events.SlotLost(slots=(0,)))
    assert release == commands.Release(partitions=(0, 2))
    assert isinstance(opening, Open)
    assert opening.slots == {0: 1, 2: 1}
    assert driven.running == [1]


def test_an_opening_in_a_lost_slot_is_given_up() -> None:
    driven = on_cluster(0, 1)
    (first,) = driven.assign(1, 0, 1)
    (again,) = driven.feed(events.SlotLost(slots=(1,)))
    assert isinstance(again, Open)
    assert again.slots == {1: 0}
    assert driven.open(first) == (commands.Bind(partition=0, slot=0, number=0),), "task 1 waits for the other request"
    assert driven.open(again) == (commands.Bind(partition=1, slot=0, number=1),)


def test_a_slot_lost_in_a_micro_batch_keeps_its_tasks_until_the_end() -> None:
    driven = on_cluster(0, 1)
    driven.run(0, 1)
    assert driven.feed(events.SlotLost(slots=(1,))) == ()
    assert driven.feed(hello(1)) == (), "it was started again meanwhile"
    assert driven.feed(events.JobFailed(batch=0)) == (commands.Resolve(batch=0, slots=(0, 1)),)
    driven.feed(events.OffsetsRead(batch=0, offsets=place(0, 10) | place(1, 10)))
    driven.feed(events.Advanced(batch=0))
    release, opening, look = driven.feed(events.Recovered(batch=0))
    assert release == commands.Release(partitions=(1,)), "its store lies where no slot is any more"
    assert isinstance(opening, Open)
    assert opening.slots == {1: 1}
    assert look == commands.LookUpEnds()


def test_a_slot_that_comes_later_takes_its_part() -> None:
    driven = on_cluster(0)
    driven.open(*driven.assign(1, 0, 1, 2, 3))
    release, opening = driven.feed(hello(1, 2))
    assert release == commands.Release(partitions=(0, 2))
    assert isinstance(opening, Open)
    assert opening.slots == {0: 1, 2: 1}


def test_without_slots_tasks_wait() -> None:
    driven = on_cluster(0)
    driven.open(*driven.assign(1, 0))
    assert driven.feed(events.SlotLost(slots=(0,))) == (commands.Release(partitions=(0,)),)
    assert driven.feed(events.Woken()) == (commands.CheckEnded(),)
    assert driven.feed(hello(0)) == (), "between two steps only"
    opening, wait = driven.feed(events.EndedChecked())
    assert isinstance(opening, Open)
    assert wait == commands.WaitForInput()
