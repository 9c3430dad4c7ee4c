"""Tasks as {subtopology: partitions}: sets of them, their text, and tasks of the three roles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.membership.assignment import (
    AssignmentSnapshot,
    OwnedTasks,
    difference,
    is_subset,
    task_ids,
    tasks_of,
    tasks_text,
    union,
)

ANY_TASKS = st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(0, 5), max_size=6), max_size=3).map(tasks_of)


def test_tasks_are_sorted_without_repetitions_and_empty_entries() -> None:
    found = tasks_of({"b": [2, 1, 2], "a": [], "aa": [3]})
    assert found == {"aa": (3,), "b": (1, 2)}
    assert list(found) == ["aa", "b"]


@given(ANY_TASKS, ANY_TASKS)
def test_operations_are_those_of_sets(left: dict[str, tuple[int, ...]], right: dict[str, tuple[int, ...]]) -> None:
    assert task_ids(union(left, right)) == task_ids(left) | task_ids(right)
    assert task_ids(difference(left, right)) == task_ids(left) - task_ids(right)
    assert is_subset(left, right) == (task_ids(left) <= task_ids(right))
    for made in (union(left, right), difference(left, right)):
        assert made == tasks_of(made), "normal form"


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ({}, ""),
        ({"flights": (0, 1, 2, 3)}, "flights 0-3"),
        ({"flights": (0, 2, 3, 7)}, "flights 0,2-3,7"),
        ({"flights": (3, 1, 2)}, "flights 1-3"),
        ({"flights": (5,), "by-origin": (0, 1)}, "flights 5   by-origin 0-1"),
    ],
)
def test_runs_of_partitions_are_joined(tasks: dict[str, tuple[int, ...]], text: str) -> None:
    assert tasks_text(tasks) == text


def test_roles_are_kept_apart() -> None:
    one = OwnedTasks(active={"a": (0,)}, standby={"a": (1,)})
    other = OwnedTasks(active={"a": (2,)}, warmup={"b": (0,)})
    both = OwnedTasks(active={"a": (0, 2)}, standby={"a": (1,)}, warmup={"b": (0,)})
    assert one.union(other) == both
    assert one.within(both)
    assert other.within(both)
    assert not both.within(one)


@pytest.mark.parametrize("role", ["active", "standby", "warmup"])
def test_a_task_of_another_role_is_not_within(role: str) -> None:
    others = {"active", "standby", "warmup"} - {role}
    assert not OwnedTasks(**{role: {"a": (0,)}}).within(OwnedTasks(**{other: {"a": (0,)} for other in others}))


def test_a_snapshot_has_the_tasks_of_all_roles() -> None:
    snapshot = AssignmentSnapshot(member_id="m", active={"a": (0,)}, standby={"a": (1,)}, warmup={"a": (2,)})
    assert snapshot.tasks == OwnedTasks(active={"a": (0,)}, standby={"a": (1,)}, warmup={"a": (2,)})
