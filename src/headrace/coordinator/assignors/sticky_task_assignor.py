"""StickyTaskAssignor: tasks stay where they are as long as the load allows it.

Guarantees (the property tests hold it to them, against a naive twin):
1. every task is active at exactly one member;
2. active tasks per member differ by 1 at most;
3. a stateful task has min(num.standby.replicas, processes - 1) standbys, each on a process of its own;
4. unchanged members and tasks give an unchanged answer, and no more active tasks move than guarantee 2 demands;
5. what moves is dealt out so that each subtopology spreads over the members.

Kafka fills the least loaded *process* and then its least loaded member; we give every member the same share and take
members of different processes in turn, which gives guarantee 2 also when processes have different numbers of members.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.coordinator.assignors.active_tasks import place_active_tasks
from headrace.coordinator.assignors.placement import Placement
from headrace.coordinator.assignors.standby_tasks import place_standby_tasks
from headrace.coordinator.assignors.task_assignor import GroupSpec
from headrace.coordinator.tasks import TasksTuple

__all__ = ["StickyTaskAssignor"]


class StickyTaskAssignor:
    """The default of streams groups, as in Kafka."""

    name = "sticky"

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        if not group.members:
            return {}
        placement = Placement(group)
        place_active_tasks(placement)
        place_standby_tasks(placement, group.num_standby_replicas)
        return placement.tasks_by_member()
