"""Held tasks and the generation of a commit."""

from __future__ import annotations

from headrace.client.membership.task_ownership import TaskOwnership

A, B = ("counts", 0), ("counts", 1)


def holding(*tasks: tuple[str, int], generation: int = 1) -> TaskOwnership:
    ownership = TaskOwnership()
    ownership.on_generation(generation)
    ownership.on_assigned(tasks)
    return ownership


def test_task_that_stayed_is_committed_with_the_newest_generation() -> None:
    ownership = holding(A, generation=3)
    ownership.on_generation(4)
    ownership.on_assigned([A, B])
    assert ownership.commit_generation(3, [A]) == 4


def test_task_that_was_given_back_in_between_is_not_committed() -> None:
    ownership = holding(A, B, generation=3)
    ownership.keep_only({"counts": (0,)})
    assert ownership.commit_generation(3, [A, B]) is None
    ownership.on_generation(5)
    ownership.on_assigned([A, B])
    assert ownership.commit_generation(3, [A, B]) is None
    assert ownership.commit_generation(5, [A, B]) == 5


def test_nothing_is_committed_after_a_loss_whatever_is_assigned_later() -> None:
    ownership = holding(A, generation=3)
    ownership.lose_all()
    assert ownership.commit_generation(3, [A]) is None
    ownership.on_generation(4)
    ownership.on_assigned([A])
    assert ownership.commit_generation(3, [A]) is None


def test_held_tasks_are_grouped_by_subtopology() -> None:
    assert holding(B, A, ("other", 2)).tasks == {"counts": (0, 1), "other": (2,)}
