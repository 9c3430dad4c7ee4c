"""The one protocol of task assignors: (members, subtopologies, settings) → tasks by member. KIP-1071, KIP-1357."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.coordinator.tasks import Task, TasksTuple

__all__ = ["AssignableSubtopology", "GroupSpec", "MemberSpec", "TaskAssignor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignableSubtopology:
    """`stateful`: it has a changelog, so a standby of its tasks makes sense."""

    subtopology_id: str
    tasks: int
    stateful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member as an assignor sees it. `previous` is its previous target (Kafka ≤ 4.3); sorted tasks. `task_offsets`:
    the changelog positions that it reported, also of tasks whose state it only found on its disk; and their ends."""

    process_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    previous: TasksTuple = TasksTuple()  # noqa: RUF009 - frozen
    task_offsets: Mapping[Task, int] = field(default_factory=dict)
    task_end_offsets: Mapping[Task, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group as an assignor sees it: members by id, subtopologies, and the settings of the group."""

    members: Mapping[str, MemberSpec]
    subtopologies: tuple[AssignableSubtopology, ...]
    num_standby_replicas: int = 0
    rack_aware_assignment_tags: tuple[str, ...] = ()

    def active_tasks(self) -> list[Task]:
        """Every task once, by partition and subtopology: neighbours in this order belong to different subtopologies."""
        tasks = [(each.subtopology_id, partition) for each in self.subtopologies for partition in range(each.tasks)]
        return sorted(tasks, key=lambda task: (task[1], task[0]))

    def stateful_tasks(self) -> list[Task]:
        stateful = {each.subtopology_id for each in self.subtopologies if each.stateful}
        return [task for task in self.active_tasks() if task[0] in stateful]


class TaskAssignor(Protocol):
    """Deterministic: the same spec gives the same answer, whatever the order of its mappings."""

    name: str

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        """Tasks for every member of the group."""
        ...
