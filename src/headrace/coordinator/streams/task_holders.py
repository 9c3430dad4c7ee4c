"""Who has which task now, assigned or still pending revocation: the index behind "revoke before reassigning".

Driven by replay. A release counts only for the holder itself, so records in an odd order cannot free another's task.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.coordinator.streams.tasks import Task

__all__ = ["TaskHolders"]

_Holders = dict[Task, dict[str, None]]


class TaskHolders:
    """Task → member ids, by role. Standby and warm-up tasks may have several holders; an active one has one."""

    __slots__ = ("_active", "_standby", "_warmup")

    def __init__(self) -> None:
        self._active: dict[Task, str] = {}
        self._standby: _Holders = {}
        self._warmup: _Holders = {}

    def copy(self) -> TaskHolders:
        other = TaskHolders()
        other._active = dict(self._active)
        other._standby = {task: dict(holders) for task, holders in self._standby.items()}
        other._warmup = {task: dict(holders) for task, holders in self._warmup.items()}
        return other

    def active(self, task: Task) -> str | None:
        return self._active.get(task)

    def standby(self, task: Task) -> Iterable[str]:
        return self._standby.get(task, ())

    def warmup(self, task: Task) -> Iterable[str]:
        return self._warmup.get(task, ())

    def hold(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                self._active[task] = member.member_id
            _add(self._standby, tasks.standby, member.member_id)
            _add(self._warmup, tasks.warmup, member.member_id)

    def release(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                if self._active.get(task) == member.member_id:
                    del self._active[task]
            _remove(self._standby, tasks.standby, member.member_id)
            _remove(self._warmup, tasks.warmup, member.member_id)


def _add(holders: _Holders, tasks: Iterable[Task], member_id: str) -> None:
    for task in tasks:
        holders.setdefault(task, {})[member_id] = None


def _remove(holders: _Holders, tasks: Iterable[Task], member_id: str) -> None:
    for task in tasks:
        of_task = holders.get(task)
        if of_task is not None:
            of_task.pop(member_id, None)
            if not of_task:
                del holders[task]
