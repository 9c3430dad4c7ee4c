"""Slots for tasks: where a store lies, then balance; never more than a slot's part."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.machine.placement import excess, place


def test_a_task_goes_where_its_store_lies() -> None:
    stores = {0: frozenset({2, 3}), 1: frozenset({0, 1})}
    assert place([0, 1, 2, 3], {}, stores, assigned=4) == {0: 1, 1: 1, 2: 0, 3: 0}


def test_a_slot_with_all_stores_takes_only_its_part() -> None:
    stores = {0: frozenset(range(4)), 1: frozenset()}
    assert Counter(place(range(4), {}, stores, assigned=4).values()) == {0: 2, 1: 2}


def test_tasks_of_a_lost_slot_go_to_the_least_loaded() -> None:
    stores: dict[int, frozenset[int]] = {0: frozenset(), 1: frozenset()}
    assert place([4, 5], {0: 0, 1: 0, 2: 1}, stores, assigned=5) == {4: 1, 5: 0}


def test_a_new_slot_gets_the_tasks_whose_stores_it_has() -> None:
    stores = {0: frozenset(range(4)), 1: frozenset({1, 2})}
    assert excess(range(4), dict.fromkeys(range(4), 0), stores, assigned=4) == [1, 2]


def test_nothing_moves_when_no_slot_has_too_much() -> None:
    stores = {0: frozenset(), 1: frozenset(range(5))}
    assert excess(range(5), {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}, stores, assigned=5) == []


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], dict[int, int], dict[int, frozenset[int]]]:
    tasks = draw(st.lists(st.integers(0, 30), unique=True, max_size=20))
    slots = draw(st.lists(st.integers(0, 6), unique=True, min_size=1))
    stores = {slot: frozenset(draw(st.sets(st.sampled_from(tasks or [0])))) for slot in slots}
    placed = {task: draw(st.sampled_from(slots)) for task in tasks if draw(st.booleans())}
    return tasks, placed, stores


@given(histories())
def test_moved_and_placed_tasks_are_in_balance(
    history: tuple[list[int], dict[int, int], dict[int, frozenset[int]]],
) -> None:
    tasks, placed, stores = history
    gone = excess(list(placed), placed, stores, assigned=len(tasks))
    kept = {task: slot for task, slot in placed.items() if task not in gone}
    found = kept | place([task for task in tasks if task not in kept], kept, stores, assigned=len(tasks))
    assert found.keys() == set(tasks)
    assert max(Counter(found.values()).values(), default=0) <= -(-len(tasks) // len(stores))
    assert excess(list(found), found, stores, assigned=len(tasks)) == [], "it settles in one step"
