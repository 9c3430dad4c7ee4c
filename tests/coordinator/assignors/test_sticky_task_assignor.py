"""StickyTaskAssignor against its guarantees, checked by plain counting, and its speed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import AssignableSubtopology, GroupSpec, MemberSpec, TasksTuple

Assignment = dict[str, TasksTuple]


def spec(
    processes: dict[str, str],
    subtopologies: dict[str, tuple[int, bool]],
    *,
    standbys: int = 0,
    previous: Assignment | None = None,
) -> GroupSpec:
    """`processes`: member → process; `subtopologies`: id → (tasks, stateful)."""
    return GroupSpec(
        members={
            member_id: MemberSpec(process_id=process, previous=(previous or {}).get(member_id, TasksTuple()))
            for member_id, process in processes.items()
        },
        subtopologies=tuple(
            AssignableSubtopology(subtopology_id=name, tasks=tasks, stateful=stateful)
            for name, (tasks, stateful) in subtopologies.items()
        ),
        num_standby_replicas=standbys,
    )


def assign(group: GroupSpec) -> Assignment:
    return dict(StickyTaskAssignor().assign(group))


def check(group: GroupSpec, result: Assignment) -> None:
    """The guarantees, counted naively."""
    assert set(result) == set(group.members)
    active = Counter(task for tasks in result.values() for task in tasks.active)
    assert active == Counter(group.active_tasks()), "every task is active once"
    loads = [len(tasks.active) for tasks in result.values()]
    assert max(loads) - min(loads) <= 1, f"active tasks differ by more than 1: {sorted(loads)}"
    processes = {member.process_id for member in group.members.values()}
    replicas = min(group.num_standby_replicas, len(processes) - 1)
    standby = Counter(task for tasks in result.values() for task in tasks.standby)
    assert standby == Counter({task: replicas for task in group.stateful_tasks() if replicas}), "standbys"
    places = Counter(
        (task, group.members[member_id].process_id)
        for member_id, tasks in result.items()
        for task in (*tasks.active, *tasks.standby)
    )
    assert not places or max(places.values()) == 1, "a task is twice in one process"


members = st.dictionaries(
    st.integers(0, 30).map(lambda number: f"m{number}"), st.sampled_from(["p1", "p2", "p3", "p4", "p5"]), min_size=1
)
several_members = st.dictionaries(
    st.integers(0, 30).map(lambda number: f"m{number}"), st.sampled_from(["p1", "p2", "p3"]), min_size=2
)
shapes = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 20), st.booleans()), min_size=1)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(members, shapes, st.integers(0, 3)), min_size=1, max_size=5))
def test_the_guarantees_hold_through_any_changes(
    rounds: list[tuple[dict[str, str], dict[str, tuple[int, bool]], int]],
) -> None:
    previous: Assignment = {}
    for processes, subtopologies, standbys in rounds:
        group = spec(processes, subtopologies, standbys=standbys, previous=previous)
        previous = assign(group)
        check(group, previous)


@settings(max_examples=100, deadline=None)
@given(members, shapes, st.integers(0, 2))
def test_unchanged_input_keeps_the_assignment(
    processes: dict[str, str], subtopologies: dict[str, tuple[int, bool]], standbys: int
) -> None:
    first = assign(spec(processes, subtopologies, standbys=standbys))
    assert assign(spec(processes, subtopologies, standbys=standbys, previous=first)) == first


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(members, shapes, st.integers(0, 3)), min_size=2, max_size=5))
def test_after_any_changes_the_next_assignment_moves_nothing(
    rounds: list[tuple[dict[str, str], dict[str, tuple[int, bool]], int]],
) -> None:
    previous: Assignment = {}
    for processes, subtopologies, standbys in rounds:
        previous = assign(spec(processes, subtopologies, standbys=standbys, previous=previous))
        assert assign(spec(processes, subtopologies, standbys=standbys, previous=previous)) == previous


def test_standbys_that_one_process_must_hold_stay_there() -> None:
    # p5 has one member, p3 five: some standbys of p3's tasks can only be at p5 and p1, beyond their even share.
    processes = {"m0": "p2", "m1": "p5", "m2": "p3", "m3": "p2", "m4": "p3", "m5": "p3", "m6": "p1", "m7": "p3"}
    first = assign(spec(processes, {"a": (3, True)}, standbys=2))
    assert assign(spec(processes, {"a": (3, True)}, standbys=2, previous=first)) == first


@settings(max_examples=50, deadline=None)
@given(members, shapes, st.randoms(use_true_random=False))
def test_the_order_of_mappings_does_not_matter(
    processes: dict[str, str], subtopologies: dict[str, tuple[int, bool]], random: Random
) -> None:
    items, shape = list(processes.items()), list(subtopologies.items())
    random.shuffle(items)
    random.shuffle(shape)
    given_order = assign(spec(processes, subtopologies, standbys=1))
    other_order = assign(spec(dict(items), dict(shape), standbys=1))
    assert given_order == other_order


@settings(max_examples=50, deadline=None)
@given(several_members, shapes, st.data())
def test_a_leave_moves_the_tasks_of_who_left_and_no_others(
    processes: dict[str, str], subtopologies: dict[str, tuple[int, bool]], data: st.DataObject
) -> None:
    before = assign(spec(processes, subtopologies))
    gone = data.draw(st.sampled_from(sorted(processes)))
    rest = {member_id: process for member_id, process in processes.items() if member_id != gone}
    after = assign(spec(rest, subtopologies, previous=before))
    for member_id in rest:
        assert set(before[member_id].active) <= set(after[member_id].active)


def most_that_can_stay(group: GroupSpec) -> int:
    """By counting alone: who had more than the even share keeps it, and as many as there are extras one task more."""
    tasks = set(group.active_tasks())
    had: list[set[Any]] = []
    for member_id in sorted(group.members):
        had.append({task for task in group.members[member_id].previous.active if task in tasks} - set().union(*had))
    base, extra = divmod(len(tasks), len(had))
    return sum(min(len(mine), base) for mine in had) + min(extra, sum(len(mine) > base for mine in had))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(members, shapes), min_size=2, max_size=5))
def test_no_more_active_tasks_move_than_balance_demands(
    rounds: list[tuple[dict[str, str], dict[str, tuple[int, bool]]]],
) -> None:
    previous: Assignment = {}
    for processes, subtopologies in rounds:
        group = spec(processes, subtopologies, previous=previous)
        after = assign(group)
        stayed = sum(
            len(set(previous[each].active) & set(after[each].active)) for each in processes if each in previous
        )
        assert stayed == most_that_can_stay(group)
        previous = after


@settings(max_examples=100, deadline=None)
@given(members, shapes)
def test_a_new_group_has_each_subtopology_spread_evenly(
    processes: dict[str, str], subtopologies: dict[str, tuple[int, bool]]
) -> None:
    result = assign(spec(processes, subtopologies))
    tasks_in_all = sum(tasks for tasks, _ in subtopologies.values())
    for name, (tasks, _) in subtopologies.items():
        counts = [sum(task[0] == name for task in each.active) for each in result.values()]
        assert max(counts) <= -(-tasks // len(processes)) + 1, (name, counts)
    assert max(len(each.active) for each in result.values()) <= -(-tasks_in_all // len(processes))


def test_tasks_of_a_leaver_go_to_the_least_loaded_member() -> None:
    had = {
        "m1": TasksTuple(active=(("a", 0), ("a", 1), ("b", 0))),
        "m2": TasksTuple(active=(("a", 2), ("b", 1), ("b", 2))),
        "m3": TasksTuple(active=(("a", 3), ("b", 3))),
    }
    after = assign(spec({"m1": "p1", "m2": "p2"}, {"a": (4, False), "b": (4, False)}, previous=had))
    assert after["m1"].active == (("a", 0), ("a", 1), ("b", 0), ("b", 3))
    assert after["m2"].active == (("a", 2), ("a", 3), ("b", 1), ("b", 2))


def test_a_task_without_owner_goes_where_its_state_is() -> None:
    shape = {"a": (4, True)}
    members = {"m1": "p1", "m2": "p2", "m3": "p3", "m4": "p4"}
    group = spec(members, shape)
    offsets = {"m1": {("a", 3): 10, ("a", 0): 5}, "m2": {("a", 0): 7}, "m3": {("a", 1): 1}, "m4": {("a", 2): 0}}
    told = replace(
        group,
        members={each: replace(member, task_offsets=offsets[each]) for each, member in group.members.items()},
    )
    after = assign(told)
    assert {each: tasks.active for each, tasks in after.items()} == {
        "m1": (("a", 3),),
        "m2": (("a", 0),),
        "m3": (("a", 1),),
        "m4": (("a", 2),),
    }


def test_a_standby_becomes_the_active_task_and_the_other_way_round() -> None:
    shape = {"a": (2, True)}
    two = {"m1": "p1", "m2": "p2"}
    before = assign(spec(two, shape, standbys=1))
    alone = assign(spec({"m2": "p2"}, shape, standbys=1, previous=before))
    assert alone["m2"].active == (("a", 0), ("a", 1))
    back = assign(spec(two, shape, standbys=1, previous={"m2": alone["m2"]}))
    assert (len(back["m1"].active), len(back["m1"].standby), len(back["m2"].standby)) == (1, 1, 1)


def test_every_member_gets_a_task() -> None:
    assert assign(spec({}, {"a": (3, True)}, standbys=1)) == {}


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_thousand_members_and_ten_thousand_tasks(standbys: int) -> None:
    processes = {f"m{number:04}": f"p{number:04}" for number in range(1_000)}
    shape = {f"s{number:02}": (100, True) for number in range(100)}
    started = process_time()
    group = spec(processes, shape, standbys=standbys)
    before = assign(group)
    check(group, before)
    replaced = {**{each: process for each, process in processes.items() if each != "m0007"}, "new": "p-new"}
    group = spec(replaced, shape, standbys=standbys, previous=before)
    after = assign(group)
    check(group, after)
    moved = sum(len(set(after[each].active) - set(before[each].active)) for each in replaced if each != "new")
    assert (moved, len(after["new"].active)) == (0, 10)
    print(f"two assignments and their checks: {process_time() - started:.3f} s of CPU")
