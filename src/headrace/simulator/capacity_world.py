"""A large streams group in virtual time: a coordinator, instances in racks, changelogs that arrive at a bounded rate.

The coordinator's rules and the members are the product's own. A course (`run_course`) is what operators plan for: all
instances start, a rolling restart, a rack is lost, a broker fails over. Each step reports how long the group needed to
settle, what moved and what was restored, and is checked:

ownership   no task runs at two instances, nor is held by two members at the coordinator
liveness    after each step every task runs at exactly one instance and every standby task is current
movement    a step moves no more tasks than a balanced, sticky assignment requires
bandwidth   no instance receives and no broker sends more bytes than its link carries in the time
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import median

from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.streams.group import GroupState, StreamsGroup
from headrace.simulator.capacity_instance import CapacityInstance, InstanceProfile
from headrace.simulator.checkers import RuleBroken
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.restore_links import RestoreLinks
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.topologies import Task

__all__ = ["CapacityWorld", "StepFigures", "WorldSize", "run_course"]

# Resolution of all durations in the figures.
LOOK_MS = 200
# An hour of virtual time: a course that does not settle is broken, however small its links are.
PATIENCE_MS = 3_600_000
SUBTOPOLOGY = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """Size of the group and of what it runs on.

    Attributes:
        tasks: stateful tasks, partitions of one source topic.
        restart_share: share of the instances that a rolling restart ends at a time.
        down_ms: time from the end of a process to its successor's first heartbeat.
        failover_ms: time from the loss of a broker until its partitions have new leaders.
        static: whether instances have a `group.instance.id`.
    """

    instances: int = 1_000
    tasks: int = 10_000
    racks: int = 3
    brokers: int = 30
    standbys: int = 1
    instance_bytes_per_s: float = 60e6
    broker_bytes_per_s: float = 500e6
    restart_share: float = 0.1
    down_ms: int = 20_000
    failover_ms: int = 15_000
    session_timeout_ms: int = 45_000
    static: bool = True
    profile: InstanceProfile = field(default_factory=InstanceProfile)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Figures of one step.

    Attributes:
        running_s: seconds of virtual time until every task runs.
        settled_s: seconds until the group is Stable and every standby task is current, too.
        tasks_moved: tasks that run at another instance than before.
        restored_bytes: changelog bytes that instances received.
        median_pause_s: median of the times that a task did not run; `longest_pause_s`: the longest.
        paused_task_s: seconds without processing, summed over tasks.
        requests_per_s: requests to the coordinator per second of virtual time; `busiest`: in the busiest second.
        describes: of these, descriptions of the whole group (StreamsGroupDescribe).
        assignments: runs of the task assignor.
        lost_copies: tasks that lost their active and every standby copy at once.
    """

    step: str
    running_s: float
    settled_s: float
    tasks_moved: int
    restored_bytes: int
    median_pause_s: float
    longest_pause_s: float
    paused_task_s: float
    requests_per_s: float
    busiest_second: int
    describes: int
    assignments: int
    lost_copies: int


class CapacityWorld:
    """Mutable: the world and the ledger of running tasks."""

    def __init__(self, size: WorldSize, seed: int = 1) -> None:
        self.size = size
        self.random = Random(seed)
        self.events = EventQueue()
        configuration = GroupCoordinatorConfiguration(
            streams_session_timeout_ms=size.session_timeout_ms,
            streams_num_standby_replicas=size.standbys,
            # A restarted dynamic member is a new one, and the old one stays until its session ends.
            streams_max_size=size.instances * 2,
        )
        self.assignments = 0
        self._requests: Counter[int] = Counter()
        self.broker = SimulatedBroker(
            self.events, self.random, configuration, note=self._note, watch=self._count_request
        )
        self.broker.create_topic("in", size.tasks)
        self.broker.metadata_changed()
        self.links = RestoreLinks(
            self.events,
            brokers=size.brokers,
            instance_bytes_per_s=size.instance_bytes_per_s,
            broker_bytes_per_s=size.broker_bytes_per_s,
        )
        changelog = InternalTopic(name="changelog")
        subtopology = Subtopology(
            subtopology_id=SUBTOPOLOGY, source_topics=("in",), state_changelog_topics=(changelog,)
        )
        self.instances = [
            CapacityInstance(
                name=f"i{number:05}",
                rack=f"rack-{number % size.racks}",
                topology=Topology(subtopologies=(subtopology,)),
                profile=size.profile,
                static=size.static,
                broker=self.broker,
                events=self.events,
                random=self.random,
                links=self.links,
                ledger=self,
            )
            for number in range(size.instances)
        ]
        self._by_name = {instance.name: instance for instance in self.instances}
        self.tasks = frozenset((SUBTOPOLOGY, partition) for partition in range(size.tasks))
        self.owner: dict[Task, str] = {}
        self._stopped_ms: dict[Task, int] = {}
        self._pauses_ms: list[int] = []
        self._target: dict[Task, str] = {}
        self._target_epoch = -1

    # --- ledger ---

    def task_runs(self, task: Task, instance: str) -> None:
        """Note that a task began to run. Raises RuleBroken if it runs elsewhere."""
        if task in self.owner:
            raise RuleBroken(f"{task} runs at {self.owner[task]} and at {instance}")
        self.owner[task] = instance
        stopped_ms = self._stopped_ms.pop(task, None)
        if stopped_ms is not None:
            self._pauses_ms.append(self.events.now_ms - stopped_ms)

    def task_stops(self, task: Task, instance: str) -> None:
        """Note that a task ended at an instance. Raises RuleBroken if it did not run there."""
        if self.owner.pop(task, None) != instance:
            raise RuleBroken(f"{task} ends at {instance}, where it does not run")
        self._stopped_ms[task] = self.events.now_ms

    def copy_of(self, task: Task, *, beside: str) -> tuple[bool, bool]:
        """Return whether the task's next owner has a current copy, and whether it receives one."""
        name = self._target_owner().get(task)
        instance = self._by_name[name] if name is not None and name != beside else None
        if instance is None:
            return False, False
        return task in instance.current, self.links.receives(instance.name, task)

    # --- steps ---

    def measure(self, step: str, act: Callable[[], Iterator[None]], *, most_moves: int) -> StepFigures:
        """Run one step, wait until the group has settled, check the rules and return the figures.

        Args:
            step: its name.
            act: performs the step; each `yield` waits until every task runs and every standby is current.
            most_moves: how many tasks a balanced, sticky assignment moves at most.
        """
        # 1. Counters are cumulative: a step is measured as a difference.
        began_ms, before = self.events.now_ms, dict(self.owner)
        received, sent = Counter(self.links.received), Counter(self.links.sent)
        copies = self._copies()
        self._pauses_ms, self._requests = [], Counter()
        looks, assignments = self._polls(), self.assignments
        lost_copies = 0
        # 2. A step may consist of several rounds (a rolling restart); each `yield` waits for the group. Copies are
        #    compared at the worst moment of each round, right after processes have ended.
        for _ in act():
            lost_copies = max(lost_copies, sum(not holders & self._alive() for holders in copies.values()))
            self._settle(step)
        lost_copies = max(lost_copies, sum(not holders & self._alive() for holders in copies.values()))
        # 3. Two durations: every task runs again, and redundancy is restored. Operators wait for the second one before
        #    the next restart.
        running_ms, settled_ms = self._settle(step)
        # 4. The rules. They compare with what is possible, not with an earlier result: a slower or less sticky assignor
        #    fails here.
        moved = sum(self.owner[task] != where for task, where in before.items())
        if moved > most_moves:
            raise RuleBroken(f"{step} moved {moved} tasks, {most_moves} would do")
        elapsed_s = (self.events.now_ms - began_ms) / 1000
        self._check_bandwidth(step, received, sent, elapsed_s)
        self._check_holders()
        return StepFigures(
            step=step,
            running_s=(running_ms - began_ms) / 1000,
            settled_s=(settled_ms - began_ms) / 1000,
            tasks_moved=moved,
            restored_bytes=round(sum(self.links.received.values()) - sum(received.values())),
            median_pause_s=median(self._pauses_ms or [0]) / 1000,
            longest_pause_s=max(self._pauses_ms, default=0) / 1000,
            paused_task_s=sum(self._pauses_ms) / 1000,
            requests_per_s=round(sum(self._requests.values()) / max(elapsed_s, 1e-9), 1),
            busiest_second=max(self._requests.values(), default=0),
            describes=self._polls() - looks,
            assignments=self.assignments - assignments,
            lost_copies=lost_copies,
        )

    def start_all(self) -> Iterator[None]:
        """Start all instances within ten seconds, as a deployment does."""
        for number, instance in enumerate(self.instances):
            self.events.after(number * 10_000 // len(self.instances), instance.start)
        self.advance(10_000)
        return iter(())

    def restart_all(self) -> Iterator[None]:
        """Restart all instances, a share of them at a time, the next ones when the group has settled."""
        at_once = max(1, round(self.size.restart_share * len(self.instances)))
        for first in range(0, len(self.instances), at_once):
            group = self.instances[first : first + at_once]
            for instance in group:
                instance.stop()
            # A second for the last micro-batch and the leave request.
            self.advance(1_000)
            for instance in group:
                instance.end_process()
            self.advance(self.size.down_ms)
            for instance in group:
                instance.start()
            yield

    def lose_rack(self) -> Iterator[None]:
        """End all instances of one rack at once; they do not come back, nor do their disks."""
        for instance in self.instances:
            if instance.rack == "rack-0":
                instance.kill()
        return iter(())

    def fail_broker_over(self) -> Iterator[None]:
        """Lose the broker that coordinates the group, until others lead its partitions and every member is back."""
        self.broker.crash()
        # The coordinator's broker also led a share of the changelogs: restores from it stop until others lead them.
        self.links.unreachable.add(0)
        self.advance(self.size.failover_ms)
        self.broker.start()
        self.links.unreachable.discard(0)
        since_ms = self.events.now_ms
        # Back means answered: a group whose members have not yet found the new coordinator is Stable by its log alone.
        while any(each.answered_ms < since_ms for each in self.instances if each.alive):
            self.advance(LOOK_MS)
        return iter(())

    def advance(self, duration_ms: int) -> None:
        """Let virtual time pass."""
        self.events.run_until(self.events.now_ms + duration_ms)

    # --- parts ---

    def _settle(self, step: str) -> tuple[int, int]:
        """Wait until the group has settled; return when every task ran, and when it had settled."""
        end_ms, running_ms = self.events.now_ms + PATIENCE_MS, None
        while True:
            runs = len(self.owner) == len(self.tasks)
            if not runs:
                running_ms = None
            elif running_ms is None:
                running_ms = self.events.now_ms
            if running_ms is not None and self._is_stable() and self._is_redundant():
                return running_ms, self.events.now_ms
            if self.events.now_ms >= end_ms:
                missing = len(self.tasks - self.owner.keys())
                raise RuleBroken(f"{step}: not settled after {PATIENCE_MS // 1000} s: {missing} tasks do not run")
            self.advance(LOOK_MS)

    def _is_stable(self) -> bool:
        group = self._group()
        alive = sum(instance.alive for instance in self.instances)
        return group is not None and group.state() is GroupState.STABLE and len(group.members) == alive

    def _is_redundant(self) -> bool:
        return self.links.busy == 0 and all(each.is_redundant for each in self.instances if each.alive)

    def _copies(self) -> dict[Task, set[str]]:
        """Return the instances that have a current store of each task."""
        copies: dict[Task, set[str]] = {task: set() for task in self.owner}
        for instance in self.instances:
            for task in instance.current & copies.keys():
                copies[task].add(instance.name)
        return copies

    def _alive(self) -> set[str]:
        return {instance.name for instance in self.instances if instance.alive}

    def _polls(self) -> int:
        return sum(instance.looks for instance in self.instances)

    def _check_bandwidth(self, step: str, received: Counter[str], sent: Counter[int], elapsed_s: float) -> None:
        for name, total in self.links.received.items():
            # A tolerance of 10⁻⁶ for sums of floats; a transfer that got twice its share would be far above it.
            if total - received[name] > self.size.instance_bytes_per_s * elapsed_s * (1 + 1e-6):
                raise RuleBroken(f"{step}: {name} received {total - received[name]:.0f} bytes in {elapsed_s} s")
        for broker, amount in self.links.sent.items():
            if amount - sent[broker] > self.size.broker_bytes_per_s * elapsed_s * (1 + 1e-6):
                raise RuleBroken(f"{step}: broker {broker} sent {amount - sent[broker]:.0f} bytes in {elapsed_s} s")

    def _check_holders(self) -> None:
        """Check that the coordinator and the instances agree about who runs what, and that loads are balanced."""
        group = self._group()
        assert group is not None
        held: dict[Task, str] = {}
        for member in group.members.values():
            for task in (*member.assigned.active, *member.pending_revocation.active):
                if task in held:
                    raise RuleBroken(f"{task} is active at {held[task]} and at {member.member_id}")
                held[task] = member.process_id
        if held != self.owner:
            raise RuleBroken(f"the coordinator knows other owners than run {len(held.items() - self.owner.items())}")
        loads = Counter(held.values())
        if max(loads.values()) - min(loads.get(name, 0) for name in self._alive()) > 1:
            raise RuleBroken(f"active tasks are not balanced: {sorted(loads.values())}")

    def _target_owner(self) -> dict[Task, str]:
        """Return the process that has each task in its target, computed once for each target."""
        group = self._group()
        if group is None:
            return {}
        if self._target_epoch != group.assignment_epoch:
            self._target_epoch = group.assignment_epoch
            self._target = {
                task: group.members[member_id].process_id
                for member_id, target in group.target.items()
                if member_id in group.members
                for task in target.active
            }
        return self._target

    def _group(self) -> StreamsGroup | None:
        group = self.broker.shard.group("large")
        return group if isinstance(group, StreamsGroup) else None

    def _note(self, line: str) -> None:
        self.assignments += line.startswith("TargetAssignmentComputed")

    def _count_request(self) -> None:
        self._requests[self.events.now_ms // 1000] += 1


def run_course(size: WorldSize, seed: int = 1) -> Iterator[StepFigures]:
    """Run the four steps in one world, and yield the figures of each. Raises RuleBroken."""
    world = CapacityWorld(size, seed)
    # ⌈n/m⌉ tasks per instance: a lost rack moves the tasks of its instances and no others.
    share = -(-size.tasks // size.instances)
    yield world.measure("start of all instances", world.start_all, most_moves=0)
    # A static member that is back within its session finds its tasks where they were. Others give their tasks away and
    # take as many back, which may be other ones: then nothing bounds the moves but the number of tasks.
    keeps_tasks = size.static and size.down_ms < size.session_timeout_ms
    yield world.measure("rolling restart", world.restart_all, most_moves=0 if keeps_tasks else size.tasks)
    yield world.measure("broker failover", world.fail_broker_over, most_moves=0)
    lost = sum(instance.rack == "rack-0" for instance in world.instances)
    yield world.measure("lost rack", world.lose_rack, most_moves=lost * share)


def main() -> int:
    """Run a course, print its figures as lines of JSON, and return the exit code."""
    size = WorldSize()
    parser = argparse.ArgumentParser(prog="python -m headrace.simulator.capacity_world", description=main.__doc__)
    parser.add_argument("--instances", type=int, default=size.instances)
    parser.add_argument("--tasks", type=int, default=size.tasks)
    parser.add_argument("--brokers", type=int, default=size.brokers)
    parser.add_argument("--standbys", type=int, choices=(0, 1, 2), default=size.standbys)
    parser.add_argument("--dynamic", action="store_true", help="instances without group.instance.id")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    size = WorldSize(
        instances=asked.instances,
        tasks=asked.tasks,
        brokers=asked.brokers,
        standbys=asked.standbys,
        static=not asked.dynamic,
    )
    try:
        for figures in run_course(size, asked.seed):
            print(json.dumps(asdict(figures)), flush=True)
    except RuleBroken as rule:
        print(f"broken: {rule}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
