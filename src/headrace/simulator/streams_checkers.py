"""Rules for simulated worlds of a streams group, written from the guarantees and not from the code.

safety     a task is active at one member at most (assigned or still to be given back), and once in a process in any
           role; epochs of members, group and assignment never fall; what a running application works on, the
           coordinator knows it holds; no two running applications that were not thrown out work on one task; and what
           `checkers` holds of all worlds
liveness   in a calm world the group becomes Stable: each task runs at exactly one application, active tasks are
           balanced, standbys are where they should be
movement   one member more or less moves no more tasks than it must
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.coordinator.streams.group import GroupState, StreamsGroup
from headrace.simulator.checkers import CommittedOffsets, RuleBroken
from headrace.simulator.simulated_application import SimulatedApplication
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.topologies import Shape, Task

__all__ = ["StreamsCheckers", "check_balance", "owners", "unsettled"]


class StreamsCheckers:
    """The safety rules, looked at after everything that took effect. Mutable: what was seen before."""

    def __init__(
        self, group_id: str, broker: SimulatedBroker, applications: Callable[[], Iterable[SimulatedApplication]]
    ) -> None:
        self._group_id = group_id
        self._broker = broker
        self._applications = applications
        self._epochs: dict[str, int] = {}
        self.offsets = CommittedOffsets(broker)
        self.checks = 0

    def group(self) -> StreamsGroup | None:
        group = self._broker.shard.group(self._group_id)
        return group if isinstance(group, StreamsGroup) else None

    def check(self) -> None:
        self.checks += 1
        # 1. Rules of the log.
        self.offsets.check()
        group = self.group()
        if group is None:
            self._epochs.clear()
            return
        # 2. Rules of the group: epochs, then holders in the coordinator's view, then what the applications really run.
        #    An application that acts on a stale assignment breaks no record, so the records alone would not show it.
        self._check_epochs(group)
        holders = _check_holders(group)
        self._check_applications(group, holders)

    def _check_epochs(self, group: StreamsGroup) -> None:
        now = {"group": group.group_epoch, "assignment": group.assignment_epoch}
        for member in group.members.values():
            if member.member_epoch >= 0:  # a static member that is away shows -2
                now[f"member {member.member_id}"] = member.member_epoch
        for name, epoch in now.items():
            before = self._epochs.get(name, 0)
            if epoch < before:
                raise RuleBroken(f"the epoch of {name} fell from {before} to {epoch}")
        self._epochs = now

    def _check_applications(self, group: StreamsGroup, holders: Mapping[Task, str]) -> None:
        working: dict[Task, str] = {}
        for application in self._applications():
            if not application.runs or application.name not in group.members:
                continue
            for task in application.open:
                if holders.get(task) != application.name:
                    raise RuleBroken(f"{application.name} works on {task}, held by {holders.get(task)}")
                if task in working:
                    raise RuleBroken(f"{application.name} and {working[task]} both work on {task}")
                working[task] = application.name


def _check_holders(group: StreamsGroup) -> dict[Task, str]:
    active: dict[Task, str] = {}
    in_process: set[tuple[Task, str]] = set()
    for member in group.members.values():
        for tasks in (member.assigned, member.pending_revocation):
            for task in tasks.active:
                if task in active:
                    raise RuleBroken(f"{task} is active at {active[task]} and at {member.member_id}")
                active[task] = member.member_id
        for task in (*member.assigned.active, *member.assigned.standby, *member.assigned.warmup):
            if (task, member.process_id) in in_process:
                raise RuleBroken(f"{task} is twice in process {member.process_id}")
            in_process.add((task, member.process_id))
    return active


def unsettled(
    group: StreamsGroup | None, applications: Sequence[SimulatedApplication], tasks: Iterable[Task]
) -> str | None:
    """Return why a calm world has not settled yet; None if it has."""
    if group is None:
        return "there is no group"
    if group.state() is not GroupState.STABLE:
        return f"the group is {group.state().value}"
    for application in applications:
        if not application.runs or application.name not in group.members:
            return f"{application.name} is not back yet"
    # The running applications decide, not the assignment: a task that is assigned and not opened is not settled.
    running = Counter(task for application in applications for task in application.open)
    missing = [task for task in tasks if running[task] != 1]
    if missing or sum(running.values()) != len(set(running)):
        return f"not at exactly one application: {missing or running}"
    return None


def check_balance(group: StreamsGroup, shape: Shape, tasks: Iterable[Task]) -> None:
    """Check that active tasks are balanced and that each stateful task has its standbys. Raises RuleBroken."""
    # 1. Active tasks: with n tasks and m members no member has more than one task more than another.
    loads = sorted(len(member.assigned.active) for member in group.members.values())
    if loads[-1] - loads[0] > 1:
        raise RuleBroken(f"active tasks are not balanced: {loads}")
    # 2. Standbys: a replica in the process of the active task or of another replica would be lost with it, so there are
    #    at most as many as there are other processes. Only stateful tasks have any.
    processes = len({member.process_id for member in group.members.values()})
    configs = dict(group.metadata.last_assignment_configs or ())
    replicas = min(int(configs.get("num.standby.replicas", "0")), processes - 1)
    standbys = Counter(task for member in group.members.values() for task in member.assigned.standby)
    wanted = Counter({task: replicas for task in tasks if task[0] in shape.stateful and replicas})
    if standbys != wanted:
        raise RuleBroken(f"standbys are {dict(standbys)}, wanted {replicas} of each stateful task")


def owners(group: StreamsGroup) -> dict[Task, str]:
    """Return task → id of the member that owns it as an active task."""
    return {task: member.member_id for member in group.members.values() for task in member.assigned.active}
