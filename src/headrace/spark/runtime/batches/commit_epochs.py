"""Member epochs with which a micro-batch is committed, by the kind of the application's group.

Streams groups: the epoch that was captured when the batch was planned, and no other; the coordinator fences it.

Classic groups: the coordinator accepts the group's present generation only, and knows nothing of tasks. A generation
may begin while a batch runs, without any task of it moving. Such a batch is committed with the newest generation, if
the member has held all of its tasks since the batch was planned (`task_ownership` has the proof).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.task_ownership import commit_generation
from headrace.errors import BrokerError, Fenced, HeadraceError
from headrace.spark.runtime.batches.plan import MicroBatchPlan

__all__ = ["PLANNED_EPOCH", "CommitEpochs", "HeldGeneration", "PlannedEpoch", "is_of_another_generation"]

# The coordinator begins a generation when the last member has joined; this member, and this process, learn of it with
# the answer, some milliseconds later. A commit in between is refused, and sent again until then.
_PAUSE_S: Final = 0.02
_PATIENCE_S: Final = 2.0
_ANOTHER_GENERATION: Final = frozenset({"ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"})


def is_of_another_generation(error: HeadraceError | None) -> bool:
    """Whether a commit was refused because of the generation alone: the member is in the group, and keeps its tasks."""
    # REBALANCE_IN_PROGRESS: OffsetCommit between a join and the leader's sync (`ClassicGroup.validateOffsetCommit`).
    return error is not None and error.facts.get("kafka_name") in _ANOTHER_GENERATION


class CommitEpochs(Protocol):
    """Source of epochs for commits."""

    def of(self, plan: MicroBatchPlan) -> Iterator[int]:
        """Yield the epochs to commit with, one after another as long as the generation is refused."""

    def final_error(self, plan: MicroBatchPlan, error: HeadraceError | None) -> HeadraceError | None:
        """Return the outcome of a commit after the last epoch.

        Args:
            plan: The batch.
            error: The last refusal; None if no epoch was there.
        """


class PlannedEpoch:
    """Epochs in a streams group."""

    def of(self, plan: MicroBatchPlan) -> Iterator[int]:
        yield plan.member_epoch

    def final_error(self, plan: MicroBatchPlan, error: HeadraceError | None) -> HeadraceError | None:
        del plan
        return error


PLANNED_EPOCH: Final = PlannedEpoch()


class HeldGeneration:
    """Epochs in a classic group."""

    def __init__(self, newest: Callable[[], AssignmentSnapshot | None], *, patience_s: float = _PATIENCE_S) -> None:
        """Args:
        newest: Returns the newest snapshot of the membership; None without one.
        patience_s: How long a refused commit is sent again.
        """
        self._newest, self._patience_s = newest, patience_s

    def of(self, plan: MicroBatchPlan) -> Iterator[int]:
        until = time.monotonic() + self._patience_s
        while (generation := self._generation(plan)) is not None:
            yield generation
            if time.monotonic() >= until:
                return
            time.sleep(_PAUSE_S)

    def final_error(self, plan: MicroBatchPlan, error: HeadraceError | None) -> HeadraceError | None:
        # 1. The tasks were lost, or given back: another member may have them. They are opened again if they are still
        #    assigned.
        if self._generation(plan) is None:
            return Fenced(
                "member-fenced",
                f"The member of {plan.group_id} does not hold all tasks of the batch since generation "
                f"{plan.member_epoch}",
                "No action needed: the tasks are opened again where they are assigned.",
                group_id=plan.group_id,
                member_epoch=plan.member_epoch,
                transaction="abortable",
            )
        # 2. The tasks are held, and the group is still between two generations: the batch is planned again.
        if is_of_another_generation(error):
            assert error is not None
            return BrokerError(
                "broker-refused",
                f"The commit of a batch of {plan.group_id} was refused during a rebalance of the group",
                "No action needed: the batch is planned again.",
                **{**error.facts, "retriable": True, "transaction": "abortable"},
            )
        return error

    def _generation(self, plan: MicroBatchPlan) -> int | None:
        tasks = [(plan.subtopology_id, task.partition) for task in plan.tasks]
        return commit_generation(
            self._newest(), member_id=plan.member_id, planned_generation=plan.member_epoch, tasks=tasks
        )
