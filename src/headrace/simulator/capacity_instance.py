"""An instance of a large group: a real `StreamsMembership`, stores on a disk, and tasks that run when restored.

`SimulatedApplication` is the instance of the small worlds: it commits offsets and is broken in many ways. This one has
what decides how long a large group needs to settle: which stores are on its disk, how old they are, and how fast their
changelogs arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, task_ids
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.topology import Topology
from headrace.coordinator.assignors.task_assignor import by_subtopology
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import Connection, NetworkConditions
from headrace.simulator.restore_links import RestoreLinks
from headrace.simulator.simulated_broker import SimulatedBroker
from headrace.simulator.topologies import Task

__all__ = ["CapacityInstance", "InstanceProfile", "TaskLedger"]

HANDOVER_LOOK_MS = 250
HANDOVER_SIGN_MS = 8_000
HANDOVER_MAX_MS = 30_000
"""As `spark/runtime/handover.py` and `headrace.handover.max.wait.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """Properties that all instances of a group share.

    Attributes:
        task_bytes: size of a task's changelog after compaction, which a restore from nothing reads.
        growth_bytes_per_s: changelog bytes that a task writes per second, which an older store has to read.
        open_ms: time from a restored store to the first micro-batch.
        heartbeat_max_interval_ms: `headrace.heartbeat.max.interval.ms`.
        early_look: whether members read their target ahead, to restore before a task is theirs.
    """

    task_bytes: int = 64 * 2**20
    growth_bytes_per_s: int = 50_000
    open_ms: int = 100
    heartbeat_max_interval_ms: int = 500
    early_look: bool = True


class TaskLedger(Protocol):
    """The tasks that instances report to run; the world checks it."""

    def task_runs(self, task: Task, instance: str) -> None: ...
    def task_stops(self, task: Task, instance: str) -> None: ...
    def copy_of(self, task: Task, *, beside: str) -> tuple[bool, bool]:
        """Return whether another instance has a current copy of the task, and whether one receives a copy."""
        ...


class CapacityInstance:
    """Mutable: one process on one host. `stores` outlive the process, `current` and `running` do not."""

    def __init__(
        self,
        *,
        name: str,
        rack: str,
        topology: Topology,
        profile: InstanceProfile,
        static: bool,
        broker: SimulatedBroker,
        events: EventQueue,
        random: Random,
        links: RestoreLinks,
        ledger: TaskLedger,
    ) -> None:
        self.name, self.rack = name, rack
        self._topology, self._profile, self._static = topology, profile, static
        self._broker, self._events, self._random = broker, events, random
        self._links, self._ledger = links, ledger
        self.stores: dict[Task, int] = {}  # on disk → when the store was last current
        self.current: set[Task] = set()  # stores that follow their changelogs now
        self.running: set[Task] = set()
        self._active: frozenset[Task] = frozenset()
        self._standby: frozenset[Task] = frozenset()
        self._ahead: frozenset[Task] = frozenset()  # of the target, not assigned yet
        self._closing: dict[Task, int] = {}  # revoked and still running → since when
        self._receiving: set[Task] = set()
        self._watches_copies = False
        self.alive = False
        self._life = 0
        self.looks = 0  # descriptions of the whole group that it asked for
        self.answered_ms = 0
        self._wake_ms = NEVER_MS

    # --- what the world does to it ---

    def start(self) -> None:
        """Start a process, under the ids that its state directory holds if it is static."""
        self.alive = True
        self._life += 1
        self._wake_ms = NEVER_MS
        self._watches_copies = False
        member_id = self.name if self._static else f"{self.name}.{self._life}"
        self._membership = StreamsMembership(
            "large",
            member_id,
            self.name,
            self._topology,
            chance=self._random.random,
            heartbeat_max_interval_ms=self._profile.heartbeat_max_interval_ms,
            rack_id=self.rack,
            instance_id=self.name if self._static else None,
            early_look=self._profile.early_look,
            keeps_member_id=self._static,
        )
        self._membership.report_offsets(self._positions(), at_once=True)
        # A calm network: the figures answer how long a healthy group needs. Losses and duplicates belong to the small
        # worlds.
        self._link = Connection(self._events, NetworkConditions(), self._random)
        self._membership.join(self._events.now_ms)
        self._poll_membership()

    def stop(self) -> None:
        """End the process after its current micro-batch: a static member for a while, others leave."""
        self._drop_tasks()
        self._membership.leave(self._events.now_ms, for_a_while=self._static)
        self._poll_membership()

    def kill(self) -> None:
        """End the process, and everything it had under way, without a leave."""
        self._drop_tasks()
        self.end_process()

    def end_process(self) -> None:
        """End a process that has left."""
        self._link.cut()
        self.alive = False
        self._life += 1

    @property
    def has_left(self) -> bool:
        return self._membership.state is MemberState.UNSUBSCRIBED

    @property
    def member_id(self) -> str:
        return self._membership.assignment.member_id

    @property
    def is_redundant(self) -> bool:
        """Whether all of its standby tasks are current."""
        return self._standby <= self.current

    # --- heartbeats ---

    def _poll_membership(self) -> None:
        if not self.alive:
            return
        result = self._membership.poll(self._events.now_ms)
        self._handle_events()
        for outgoing in result.requests:
            self._send(outgoing)
        # The queue has no removal, so each look plans at most one wake-up, and none if an earlier one is planned.
        # Without this every answer would add a wake-up that plans the next: with 1,000 instances the queue grows
        # without bound.
        if result.next_poll_ms < NEVER_MS and not self._events.now_ms < self._wake_ms <= result.next_poll_ms:
            self._wake_ms = result.next_poll_ms
            self._events.at(result.next_poll_ms, self._in_this_life(self._poll_membership))

    def _send(self, outgoing: Outgoing) -> None:
        request = outgoing.request
        if type(request).__name__ == "StreamsGroupDescribeRequest":
            self.looks += 1
        self._link.call(
            lambda answer: self._broker.serve(request, self.name, answer),
            answered=self._answered,
            failed=self._in_this_life(self._failed),
        )

    def _answered(self, response: object) -> None:
        if self.alive:
            self.answered_ms = self._events.now_ms
            self._membership.on_response(response, self._events.now_ms)
            self._handle_events()
            self._poll_membership()

    def _failed(self) -> None:
        self._membership.on_failure(self._events.now_ms)
        self._handle_events()
        self._poll_membership()

    def _in_this_life(self, action: Callable[[], None]) -> Callable[[], None]:
        # What was planned before a kill must not act in the successor, which is the same object: events cannot be taken
        # out of the queue, so each one carries the life that it belongs to.
        life = self._life

        def act() -> None:
            if self.alive and self._life == life:
                action()

        return act

    # --- tasks ---

    def _handle_events(self) -> None:
        for event in self._membership.take_events():
            match event:
                case e.Assigned(assignment=assignment) | e.AssignmentChanged(assignment=assignment):
                    self._take(assignment)
                case e.TargetSeen(target=target, to_come=to_come):
                    self._ahead = task_ids(to_come) | task_ids(target.standby)
                    self._restore_missing()
                case e.Lost():
                    self._drop_tasks()
                case e.Fatal(error=error):
                    raise error
                case _:
                    pass

    def _take(self, assignment: AssignmentSnapshot) -> None:
        self._active, self._standby = task_ids(assignment.active), task_ids(assignment.standby)
        # 1. A task that was known ahead has arrived; restoring goes on without a break, since `wanted` below still
        #    holds it.
        self._ahead -= self._active | self._standby
        # 2. Revoked tasks keep running until their next owner has a copy (`spark/runtime/handover.py`); one that came
        #    back before that was never stopped.
        for task in self.running - self._active - self._closing.keys():
            self._closing[task] = self._events.now_ms
        for task in self._active & self._closing.keys():
            del self._closing[task]
        self._restore_missing()
        self._run_restored()
        # 3. The acknowledgement is what lets the coordinator give the tasks away: it waits for the copies.
        if self._closing:
            self._let_go()
        else:
            self._acknowledge()

    def _restore_missing(self) -> None:
        """Start a transfer for each store that is not current; give up stores that are no longer needed."""
        wanted = self._active | self._standby | self._ahead
        for task in sorted(self._receiving - wanted):
            self._receiving.discard(task)
            self._links.cancel(self.name, task)
        for task in sorted(wanted - self.current - self._receiving):
            self._receiving.add(task)
            self._links.start(self.name, task, self._missing_bytes(task), self._copied(task))
        for task in sorted(self.current - wanted - self._closing.keys()):
            self._date_store(task)

    def _missing_bytes(self, task: Task) -> float:
        if task not in self.stores:
            return float(self._profile.task_bytes)
        # A store on disk needs what was written since; compaction bounds that by the size of the whole changelog. At
        # least one byte, so that an up-to-date store costs one step of the links as well.
        age_s = (self._events.now_ms - self.stores[task]) / 1000
        return min(self._profile.task_bytes, max(1.0, age_s * self._profile.growth_bytes_per_s))

    def _copied(self, task: Task) -> Callable[[], None]:
        def on_end() -> None:
            self._receiving.discard(task)
            self.current.add(task)
            self.stores[task] = self._events.now_ms
            self._run_restored()

        return self._in_this_life(on_end)

    def _date_store(self, task: Task) -> None:
        self.current.discard(task)
        self.stores[task] = self._events.now_ms

    def _run_restored(self) -> None:
        ready = (self._active & self.current) - self.running
        if ready:
            # The set is captured now and intersected again at its time: tasks may have been revoked in between.
            self._events.after(self._profile.open_ms, self._in_this_life(lambda: self._open(ready)))

    def _open(self, tasks: frozenset[Task]) -> None:
        for task in sorted(tasks & self._active & self.current - self.running):
            self.running.add(task)
            self._ledger.task_runs(task, self.name)

    def _let_go(self) -> None:
        """Stop revoked tasks whose copy is complete, as `Handover` does; look again while some are left."""
        now_ms = self._events.now_ms
        ended = []
        for task, since_ms in self._closing.items():
            has_copy, receives = self._ledger.copy_of(task, beside=self.name)
            # Three ends, as in `Handover`: a complete copy; no copy in sight for 8 s, since the next owner may run
            # without a state directory or be gone; 30 s in any case, so that one slow link does not hold up a whole
            # rebalance.
            no_sign = not receives and now_ms - since_ms >= HANDOVER_SIGN_MS
            if has_copy or no_sign or now_ms - since_ms >= HANDOVER_MAX_MS:
                ended.append(task)
        for task in ended:
            del self._closing[task]
            self._stop_task(task)
        if ended or not self._closing:
            self._restore_missing()
            self._acknowledge()
        if self._closing and not self._watches_copies:
            self._watches_copies = True
            self._events.after(HANDOVER_LOOK_MS, self._in_this_life(self._update_copies))

    def _update_copies(self) -> None:
        self._watches_copies = False
        if self._closing:
            self.looks += 1
            self._let_go()

    def _stop_task(self, task: Task) -> None:
        self.running.discard(task)
        self._ledger.task_stops(task, self.name)

    def _acknowledge(self) -> None:
        owned = dict(by_subtopology(sorted(self._active | self._closing.keys())))
        self._membership.report_offsets(self._positions())
        self._membership.acknowledge(owned, self._events.now_ms)
        self._poll_membership()

    def _drop_tasks(self) -> None:
        for task in sorted(self.running):
            self._stop_task(task)
        for task in self._receiving:
            self._links.cancel(self.name, task)
        self._receiving.clear()
        for task in sorted(self.current):
            self._date_store(task)
        self._closing.clear()
        self._active = self._standby = self._ahead = frozenset()

    def _positions(self) -> Mapping[Task, int]:
        """Return changelog offsets: any number that grows with time shows which store is the newest."""
        now_ms = self._events.now_ms
        return {task: now_ms if task in self.current else since_ms for task, since_ms in self.stores.items()}
