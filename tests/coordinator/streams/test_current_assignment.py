"""One step of one member towards its target: every role into every other, who blocks whom, and unknown states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.coordinator.assignors.task_assignor import AssignedTasks, Task, TasksTuple
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.streams.current_assignment import reconcile
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import NO_METADATA, MemberState, StreamsGroupMember

TASK: Task = ("0", 0)
OTHER: Task = ("0", 1)
ROLES = ("active", "standby", "warmup")
NOTHING = TasksTuple()
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS


def assigned(role: str | None, *tasks: Task) -> AssignedTasks:
    """At epoch 3."""
    if role is None:
        return AssignedTasks()
    if role == "active":
        return AssignedTasks(active=dict.fromkeys(tasks, 3))
    return AssignedTasks(**{role: tasks})  # type: ignore[arg-type]


def target(role: str | None, *tasks: Task) -> TasksTuple:
    return NOTHING if role is None else TasksTuple(**{role: tasks})


def member(member_id: str, tasks: AssignedTasks, *, process: str = "p", **given: Any) -> StreamsGroupMember:
    return replace(
        StreamsGroupMember(
            member_id=member_id,
            metadata=replace(NO_METADATA, process_id=process),
            member_epoch=3,
            previous_member_epoch=2,
            assigned=tasks,
        ),
        **given,
    )


def group_of(*members: StreamsGroupMember) -> StreamsGroup:
    group = StreamsGroup.new("g")
    group.members.update({each.member_id: each for each in members})
    group.rebuild_holders()
    return group


def step(
    mine: StreamsGroupMember, wanted: TasksTuple, *others: StreamsGroupMember, owned: TasksTuple | None = None
) -> StreamsGroupMember:
    """Towards a target of epoch 4."""
    return reconcile(group_of(mine, *others), mine, target=wanted, target_epoch=4, owned=owned)


def roles(tasks: AssignedTasks) -> dict[str, list[Task]]:
    return {role: list(getattr(tasks, role)) for role in ROLES if getattr(tasks, role)}


# From a role to a role: (state, roles now, pending revocation, epoch), before the member has answered.
STEPS: dict[tuple[str | None, str | None], tuple[MemberState, str | None, str | None]] = {
    (None, "active"): (STABLE, "active", None),
    (None, "standby"): (STABLE, "standby", None),
    (None, "warmup"): (STABLE, "warmup", None),
    ("active", None): (UNREVOKED, None, "active"),
    ("active", "active"): (STABLE, "active", None),
    ("active", "standby"): (UNREVOKED, "standby", "active"),
    ("active", "warmup"): (UNREVOKED, None, "active"),
    ("standby", None): (UNREVOKED, None, "standby"),
    ("standby", "active"): (STABLE, "active", None),
    ("standby", "standby"): (STABLE, "standby", None),
    ("standby", "warmup"): (STABLE, "warmup", None),
    ("warmup", None): (UNREVOKED, None, "warmup"),
    ("warmup", "active"): (STABLE, "active", None),
    ("warmup", "standby"): (STABLE, "standby", None),
    ("warmup", "warmup"): (STABLE, "warmup", None),
}


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_every_role_into_every_other(before: str | None, after: str | None) -> None:
    state, has, revokes = STEPS[before, after]
    mine = member("m", assigned(before, TASK))
    moved = step(mine, target(after, TASK))
    assert moved.state is state
    assert roles(moved.assigned) == ({} if has is None else {has: [TASK]})
    assert roles(moved.pending_revocation) == ({} if revokes is None else {revokes: [TASK]})
    assert (moved.member_epoch, moved.previous_member_epoch) == (3 if state is UNREVOKED else 4, 3)
    done = step(moved, target(after, TASK), owned=NOTHING)
    waits = (before, after) == ("active", "warmup")
    assert (done.state, done.member_epoch) == (UNRELEASED if waits else STABLE, 4)
    assert not done.pending_revocation


def test_an_active_task_becomes_a_warm_up_after_it_was_revoked() -> None:
    """One heartbeat later than a standby would: its own revocation blocks it."""
    mine = step(member("m", assigned("active", TASK)), target("warmup", TASK))
    waiting = step(mine, target("warmup", TASK), owned=NOTHING)
    assert (waiting.state, roles(waiting.assigned)) == (UNRELEASED, {})
    assert roles(step(waiting, target("warmup", TASK)).assigned) == {"warmup": [TASK]}


def test_kept_active_tasks_keep_their_assignment_epoch() -> None:
    moved = step(member("m", assigned("active", TASK)), target("active", TASK, OTHER))
    assert moved.assigned.active == {TASK: 3, OTHER: 4}


def test_standby_becomes_active_after_other_tasks_are_revoked() -> None:
    both = AssignedTasks(active={OTHER: 3}, standby=(TASK,))
    told = step(member("m", both), target("active", TASK))
    assert (told.state, roles(told.assigned)) == (UNREVOKED, {"standby": [TASK]})
    assert roles(told.pending_revocation) == {"active": [OTHER]}
    done = step(told, target("active", TASK), owned=TasksTuple(standby=(TASK,)))
    assert (done.state, roles(done.assigned)) == (STABLE, {"active": [TASK]})


def test_standby_stays_until_the_active_task_is_released() -> None:
    mine = member("m", assigned("standby", TASK))
    other = member("n", assigned("active", TASK), process="q")
    waiting = step(mine, target("active", TASK), other)
    assert (waiting.state, roles(waiting.assigned), waiting.member_epoch) == (UNRELEASED, {"standby": [TASK]}, 4)
    assert step(waiting, target("active", TASK), other) is waiting, "a member that waits on writes nothing"
    assert roles(step(waiting, target("active", TASK)).assigned) == {"active": [TASK]}


# (what I want, what a member of the same process has, of another process has) → whether I have to wait
BLOCKED = {
    ("active", "active", "p"): True,
    ("active", "active", "q"): True,
    ("active", "standby", "p"): True,
    ("active", "standby", "q"): False,
    ("active", "warmup", "p"): True,
    ("active", "warmup", "q"): False,
    ("standby", "active", "p"): True,
    ("standby", "active", "q"): False,
    ("standby", "standby", "p"): True,
    ("standby", "standby", "q"): False,
    ("standby", "warmup", "p"): True,
    ("standby", "warmup", "q"): False,
    ("warmup", "active", "p"): True,
    ("warmup", "active", "q"): False,
    ("warmup", "standby", "p"): True,
    ("warmup", "standby", "q"): False,
    ("warmup", "warmup", "p"): True,
    ("warmup", "warmup", "q"): False,
}


@pytest.mark.parametrize(("wanted", "held", "process"), BLOCKED)
@pytest.mark.parametrize("revoking", [False, True])
def test_tasks_blocked_by_other_owners(wanted: str, held: str, process: str, revoking: bool) -> None:
    tasks = {"pending_revocation" if revoking else "assigned": assigned(held, TASK)}
    other = member("n", AssignedTasks(), process=process, **tasks)
    moved = step(member("m", AssignedTasks()), target(wanted, TASK), other)
    waits = BLOCKED[wanted, held, process]
    assert moved.state is (UNRELEASED if waits else STABLE)
    assert roles(moved.assigned) == ({} if waits else {wanted: [TASK]})


def test_a_state_that_we_do_not_know_begins_anew_with_nothing() -> None:
    mine = member("m", AssignedTasks(), state=MemberState.of(99))
    assert mine.state is MemberState.UNKNOWN
    for owned in (None, target("active", TASK)):
        with pytest.raises(CoordinatorError) as caught:
            step(mine, target("active", TASK), owned=owned)
        assert caught.value.code.name == "fenced_member_epoch"
        assert caught.value.message.startswith("The coordinator does not know the state of this member.")
        assert caught.value.message.endswith(" must abandon all its tasks and rejoin.")
    moved = step(mine, target("active", TASK), owned=NOTHING)
    assert (moved.state, moved.member_epoch, moved.assigned.active) == (STABLE, 4, {TASK: 4})
    had_one = member("m", assigned("active", OTHER), state=MemberState.UNKNOWN)
    moved = step(had_one, target("active", TASK), owned=NOTHING)
    assert (moved.state, moved.assigned.active) == (STABLE, {TASK: 4}), "it has nothing left to revoke"


def test_a_member_at_the_epoch_of_its_target_stays_as_it_is() -> None:
    done = member("m", assigned("active", TASK), member_epoch=4)
    assert step(done, target("active", OTHER)) is done


@pytest.mark.parametrize("still_owns", [True, False])
def test_a_second_revocation_follows_the_first_at_the_next_epoch(still_owns: bool) -> None:
    revoking = step(member("m", assigned("active", TASK, OTHER)), target("active", OTHER))
    assert (revoking.state, revoking.member_epoch) == (UNREVOKED, 3)
    owned = target("active", OTHER) if still_owns else NOTHING
    moved = reconcile(group_of(revoking), revoking, target=NOTHING, target_epoch=6, owned=owned)
    if still_owns:
        assert (moved.state, moved.member_epoch, moved.pending_revocation.active) == (UNREVOKED, 4, {OTHER: 3})
    else:
        assert (moved.state, moved.member_epoch) == (STABLE, 6)
    assert not moved.assigned
