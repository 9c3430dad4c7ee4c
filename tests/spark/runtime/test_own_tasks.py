"""Which tasks run and which are opened, whatever assignments, losses and openings come in which order."""

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.values import not_none

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.spark.runtime.own_tasks import OwnTasks
from headrace.spark.runtime.tasks import RunningTask


def assignment(epoch, *tasks):
    return AssignmentSnapshot(member_id="m", member_epoch=epoch, active={"counts": tuple(tasks)})


def opened(request, partitions=None):
    chosen = request.partitions if partitions is None else partitions
    return [RunningTask(partition=each, positions={}, assignment=request.assignment) for each in chosen]


def running(*tasks):
    """With these at work."""
    own = OwnTasks("counts")
    request = not_none(own.assign(assignment(1, *tasks)))
    own.take()
    own.opened(request, opened(request))
    own.take()
    assert own.is_settled
    return own


def test_new_tasks_are_opened_once_and_run_from_the_next_batch():
    own = OwnTasks("counts")
    request = not_none(own.assign(assignment(1, 0, 2)))
    assert request.partitions == (0, 2)
    assert own.take() is None, "it was asked for already"
    assert own.opening == [0, 2]
    own.opened(request, opened(request))
    assert own.running == {}
    own.take()
    assert sorted(own.running) == [0, 2]
    assert own.is_settled


def test_tasks_that_stay_get_the_newest_epoch_and_are_not_opened_again():
    own = running(0, 1)
    request = not_none(own.assign(assignment(2, 1, 3)))
    assert request.partitions == (3,)
    assert not own.has_taken(assignment(2, 1, 3)), "task 0 is still at work"
    own.take()
    assert sorted(own.running) == [1]
    assert own.running[1].assignment.member_epoch == 2
    assert own.has_taken(assignment(2, 1, 3))


def test_an_opening_whose_task_went_and_came_again_is_not_taken():
    own = OwnTasks("counts")
    first = not_none(own.assign(assignment(1, 0)))
    own.assign(assignment(2))
    second = not_none(own.assign(assignment(3, 0)))
    assert not own.is_wanted(first)
    assert own.is_wanted(second)
    own.opened(first, opened(first))
    own.take()
    assert own.running == {}
    own.opened(second, opened(second))
    own.take()
    assert own.running[0].assignment.member_epoch == 3


def test_lost_tasks_are_not_reopened_during_their_running_batch():
    own = running(0, 1)
    own.lose()
    assert own.losses == 1
    assert own.assign(assignment(5, 0, 1)) is None
    assert sorted(own.running) == [0, 1], "until the turn is over"
    assert own.take().partitions == (0, 1)
    assert own.running == {}


def test_a_task_that_is_not_certain_is_opened_anew_with_the_epoch_it_has():
    own = running(0, 1)
    own.assign(assignment(4, 0, 1))
    own.take()
    request = own.reopen([1, 7])
    assert request.partitions == (1,)
    assert request.assignment.member_epoch == 4
    assert sorted(own.running) == [0]
    assert own.reopen([7]) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.sets(st.integers(0, 3))),
        st.tuples(st.just("open"), st.integers(0, 5)),
        st.tuples(st.just("reopen"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["take", "lose"]), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_exactly_the_assigned_tasks_are_opened_and_run(steps):
    own, wanted, requests = OwnTasks("counts"), set(), []
    for epoch, (step, given_) in enumerate([*steps, ("take", None)], start=1):
        if step == "assign":
            wanted = given_
            requests.append(own.assign(assignment(epoch, *sorted(given_))))
        elif step == "open" and given_ < len(requests) and requests[given_] is not None:
            own.opened(requests[given_], opened(requests[given_]))
        elif step == "reopen":
            requests.append(own.reopen([given_]))
        elif step == "lose":
            wanted = set()
            own.lose()
        elif step == "take":
            requests.append(own.take())
            assert set(own.running) | set(own.opening) == wanted
            assert not set(own.running) & set(own.opening)
    for request in (each for each in requests if each is not None):
        own.opened(request, opened(request))
    own.take()
    assert set(own.running) == wanted
    assert own.is_settled
