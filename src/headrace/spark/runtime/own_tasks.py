"""Tasks of one subtopology on this instance: assigned, being opened, running.

Rules:
- An assignment is taken between two micro-batches; what is new in it is opened at once, beside the one that runs, but
  not while one may still run on tasks that were lost: what comes after a loss is new, even if it is the same tasks.
- An opening counts while it is the latest for its task; what an older one brings is dropped.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.spark.runtime.tasks import RunningTask

__all__ = ["OpenRequest", "OwnTasks"]

log = logging.getLogger("headrace.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """Tasks that an assignment brought."""

    number: int
    assignment: AssignmentSnapshot
    partitions: tuple[int, ...]


class OwnTasks:
    """The tasks of one subtopology. Mutable; threads that share it hold a lock around each call."""

    def __init__(self, subtopology_id: str) -> None:
        self._name = subtopology_id
        self.running: dict[int, RunningTask] = {}
        self.losses = 0  # how often everything was lost: a batch planned before is not committed
        self._losses_taken = 0
        self._wanted: AssignmentSnapshot | None = None  # not taken yet
        self._taken: AssignmentSnapshot | None = None
        self._opening: dict[int, int] = {}  # task → the number of the request that opens it
        self._numbers = itertools.count()
        self._arrived: list[tuple[int, RunningTask]] = []  # with the number of the request

    @property
    def opening(self) -> list[int]:
        return sorted(self._opening)

    @property
    def has_news(self) -> bool:
        """Whether an assignment waits to be taken."""
        return self._wanted is not None

    @property
    def is_settled(self) -> bool:
        """Whether everything assigned runs."""
        return not self._opening and self._wanted is None

    def has_taken(self, snapshot: AssignmentSnapshot) -> bool:
        """Whether no task outside of `snapshot` is still running."""
        return self._wanted is None and set(self.running) <= self._of(snapshot)

    def is_wanted(self, request: OpenRequest) -> bool:
        return request.number in self._opening.values()

    def newest(self, request: OpenRequest) -> AssignmentSnapshot:
        """Return the latest assignment, which is the one of `request` or a later one."""
        return self._wanted or self._taken or request.assignment

    def assign(self, snapshot: AssignmentSnapshot) -> OpenRequest | None:
        """Store an assignment for the next turn. Return the tasks to open at once."""
        self._wanted = snapshot
        return self._fresh(snapshot) if self._losses_taken == self.losses else None

    def lose(self) -> None:
        """Drop all tasks at the next turn."""
        self.losses += 1
        self._wanted = AssignmentSnapshot(member_id="")

    def take(self) -> OpenRequest | None:
        """Apply assignments, losses and openings between two micro-batches. Return the tasks to open now."""
        snapshot, self._wanted = self._wanted, None
        request = None
        if self._losses_taken != self.losses:
            self._losses_taken = self.losses
            self.running.clear()
            self._opening.clear()
        if snapshot is not None:
            self._taken = snapshot
            for partition in set(self.running) - self._of(snapshot):
                del self.running[partition]
            for task in self.running.values():
                task.assignment = snapshot
            request = self._fresh(snapshot)
        arrived, self._arrived = self._arrived, []
        for number, task in arrived:
            if self._opening.get(task.partition) == number:
                del self._opening[task.partition]
                task.assignment = self._taken or task.assignment
                self.running[task.partition] = task
        return request

    def opened(self, request: OpenRequest, tasks: Iterable[RunningTask]) -> None:
        """Run these tasks from the next turn on, if they are still wanted."""
        self._arrived += [(request.number, task) for task in tasks]

    def reopen(self, partitions: Iterable[int]) -> OpenRequest | None:
        """Stop running tasks whose state or positions are uncertain. Return them as a request to open."""
        tasks = [self.running.pop(partition) for partition in partitions if partition in self.running]
        return self._open(tasks[0].assignment, [task.partition for task in tasks]) if tasks else None

    def _of(self, snapshot: AssignmentSnapshot) -> set[int]:
        return set(snapshot.active.get(self._name, ()))

    def _fresh(self, snapshot: AssignmentSnapshot) -> OpenRequest | None:
        """Return the tasks that are new in `snapshot`, and drop openings of tasks that are not in it."""
        mine = self._of(snapshot)
        self._opening = {task: number for task, number in self._opening.items() if task in mine}
        fresh = sorted(mine - set(self.running) - set(self._opening))
        if not fresh:
            return None
        log.debug("%s: tasks %s arrive with epoch %d", self._name, fresh, snapshot.member_epoch)
        return self._open(snapshot, fresh)

    def _open(self, assignment: AssignmentSnapshot, partitions: list[int]) -> OpenRequest:
        request = OpenRequest(number=next(self._numbers), assignment=assignment, partitions=tuple(partitions))
        self._opening |= dict.fromkeys(partitions, request.number)
        return request
