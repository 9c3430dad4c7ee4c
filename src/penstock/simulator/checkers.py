"""What must hold in every simulated world. They know the promises, not the code that keeps them.

safety     a task is active at one member at most (assigned or still to be given back), and once in a process in any
           role; epochs of members, group and assignment never fall; what a running application works on, the
           coordinator knows it holds; no two running applications that were not thrown out work on one task; a
           committed offset never goes back, except that a process which lost its tasks and got the same ones again
           is not fenced from itself (its epoch is the same: the driver has to see to that); the live state equals the
           replayed log, whole or compacted
liveness   in a calm world the group becomes Stable: each task runs at exactly one application, active tasks are
           balanced, standbys are where they should be
movement   one member more or less moves no more tasks than it must
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.coordinator.records import serde
from penstock.coordinator.records.schemas import OffsetCommitKey, OffsetCommitValue
from penstock.coordinator.streams.group import GroupState, StreamsGroup
from penstock.simulator.simulated_application import SimulatedApplication
from penstock.simulator.simulated_broker import SimulatedBroker
from penstock.simulator.topologies import Shape, Task

__all__ = ["Checkers", "RuleBroken", "check_balance", "check_moves", "owners", "unsettled"]

_OFFSET_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")


class RuleBroken(AssertionError):
    """A promise was not kept; the text says which and by whom."""


class Checkers:
    """The safety rules, looked at after everything that took effect. Mutable: what was seen before."""

    def __init__(
        self, group_id: str, broker: SimulatedBroker, applications: Callable[[], Iterable[SimulatedApplication]]
    ) -> None:
        self._group_id = group_id
        self._broker = broker
        self._applications = applications
        self._epochs: dict[str, int] = {}
        self._offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self._log_read = 0
        self.checks = 0

    def group(self) -> StreamsGroup | None:
        group = self._broker.shard.group(self._group_id)
        return group if isinstance(group, StreamsGroup) else None

    def check(self) -> None:
        self.checks += 1
        self._check_offsets()
        group = self.group()
        if group is None:
            self._epochs.clear()
            return
        self._check_epochs(group)
        holders = _check_holders(group)
        self._check_applications(group, holders)

    def check_replay(self) -> None:
        """Live = replayed = replayed after compaction."""
        live = self._broker.shard.digest()
        if self._broker.replayed().digest() != live:
            raise RuleBroken("the live state is not the replayed log")
        if self._broker.replayed(self._broker.compacted()).digest() != live:
            raise RuleBroken("the live state is not the replayed compacted log")

    def offsets_start_anew(self) -> None:
        """An operator deleted the group or a topic: its offsets are gone."""
        self._check_offsets()
        self._offsets.clear()

    def log_was_compacted(self) -> None:
        """Everything in it was seen before."""
        self._log_read = len(self._broker.log.entries)

    def _check_offsets(self) -> None:
        entries = self._broker.log.entries
        for key, value in entries[self._log_read :]:
            if key[:2] not in _OFFSET_COMMIT_KEYS:
                continue
            record = serde.decode(key, value)
            if record is None or not isinstance(record.key, OffsetCommitKey):
                continue
            partition = (record.key.topic, record.key.partition)
            if not isinstance(record.value, OffsetCommitValue):
                self._offsets.pop(partition, None)
                continue
            offset, committer = record.value.offset, self._broker.client
            before, earlier = self._offsets.get(partition, (0, ""))
            if offset < before and committer != earlier:
                raise RuleBroken(
                    f"the committed offset of {partition} fell from {before} ({earlier}) to {offset} ({committer})"
                )
            self._offsets[partition] = offset, committer
        self._log_read = len(entries)

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
    """Why a calm world has not settled yet, None when it has."""
    if group is None:
        return "there is no group"
    if group.state() is not GroupState.STABLE:
        return f"the group is {group.state().value}"
    for application in applications:
        if not application.runs or application.name not in group.members:
            return f"{application.name} is not back yet"
    running = Counter(task for application in applications for task in application.open)
    missing = [task for task in tasks if running[task] != 1]
    if missing or sum(running.values()) != len(set(running)):
        return f"not at exactly one application: {missing or running}"
    return None


def check_balance(group: StreamsGroup, shape: Shape, tasks: Iterable[Task]) -> None:
    loads = sorted(len(member.assigned.active) for member in group.members.values())
    if loads[-1] - loads[0] > 1:
        raise RuleBroken(f"active tasks are not balanced: {loads}")
    processes = len({member.process_id for member in group.members.values()})
    configs = dict(group.metadata.last_assignment_configs or ())
    replicas = min(int(configs.get("num.standby.replicas", "0")), processes - 1)
    standbys = Counter(task for member in group.members.values() for task in member.assigned.standby)
    wanted = Counter({task: replicas for task in tasks if task[0] in shape.stateful and replicas})
    if standbys != wanted:
        raise RuleBroken(f"standbys are {dict(standbys)}, wanted {replicas} of each stateful task")


def owners(group: StreamsGroup) -> dict[Task, str]:
    return {task: member.member_id for member in group.members.values() for task in member.assigned.active}


def check_moves(before: Mapping[Task, str], after: Mapping[Task, str], members: int, *, cause: str) -> int:
    """How many tasks changed hands though their owner stayed; a joiner takes its share, a leaver leaves its own.

    Raises RuleBroken for more than that.
    """
    staying = set(after.values())
    gone = [task for task, owner in before.items() if owner not in staying]
    moved = [task for task, owner in after.items() if task in before and before[task] != owner]
    share = -(-len(after) // max(1, members))
    allowed = max(len(gone), share)
    if len(moved) > allowed:
        raise RuleBroken(f"{cause} moved {len(moved)} tasks, {allowed} would do")
    return len(moved)
