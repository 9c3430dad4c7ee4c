"""Simulation of `SubtopologyMachine`: drivers of one application, their slots, and a broker, in virtual time, one seed.

Each driver has a machine, and executes its commands against a modelled broker (offsets, transactions, a group with
member epochs). In some worlds it keeps revoked tasks for a while. Chaos crashes a driver, a slot's worker, the
executor or the broker at any command, loses requests and responses, moves tasks and fences members. After the chaos
everything must be processed. Rules that always hold:

- No offset is committed without its rows.
- Exactly once, no row is committed twice, and none without its offset.
- No task is bound to two slots, or run by two members of the group.
- After the chaos all input is committed, by tasks that all run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headrace.client.membership.assignment import AssignmentSnapshot, revoked_tasks, with_active
from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError
from headrace.simulator.checkers import RuleBroken
from headrace.simulator.event_queue import ClockStalled, EventQueue
from headrace.simulator.group_world import STEP_MS, run_world, settle
from headrace.simulator.transcript import Outcome, Transcript
from headrace.spark.machine import commands, events
from headrace.spark.machine.states import BatchState, TaskState
from headrace.spark.machine.subtopology_machine import SubtopologyMachine

__all__ = ["Crash", "simulate_subtopology"]

NAME = "counts"
CHAOS_MS = 4_000
CALM_MS = 60_000
# Shorter than the chaos, so that transactions of dead drivers also end by their timeout and not only by the guardian.
TRANSACTION_TIMEOUT_MS = 3_000
Places = dict[tuple[str, int], int]


class Crash(Enum):
    """A fault that chaos injects at a command."""

    DRIVER_BEFORE = "driver crashes before"
    DRIVER_AFTER = "driver crashes after"
    WORKER = "worker crashes"
    EXECUTOR = "executor crashes"
    BROKER = "broker crashes"
    REQUEST_LOST = "request lost"
    RESPONSE_LOST = "response lost"


def simulate_subtopology(
    seed: int, *, transactional: bool | None = None, crash_at: tuple[int, Crash] | None = None
) -> Outcome:
    """Run one world. A broken rule is part of the outcome and is never raised.

    Args:
        seed: Of all random decisions.
        transactional: Whether slots write in transactions; None: odd seeds do.
        crash_at: Only this crash at the command of this number, instead of random ones.
    """
    world = _World(seed, transactional=bool(seed % 2) if transactional is None else transactional, crash_at=crash_at)
    return run_world(
        world.run,
        seed=seed,
        groups="subtopology",
        transcript=world.transcript,
        did=world.did,
        checks=lambda: world.broker.checks,
        # AssertionError and KeyError count as broken rules here: the machine's own assertions are guarantees, and a
        # seed with its transcript is worth more than a traceback.
        findings=(RuleBroken, ClockStalled, AssertionError, KeyError),
    )


@dataclass(slots=True)
class _Transaction:
    rows: list[tuple[int, int]] = field(default_factory=list)  # task, offset
    offsets: dict[int, int] = field(default_factory=dict)  # task → next offset


class _Broker:
    """Offsets, rows and transactions. Mutable; what was answered survives a crash."""

    def __init__(self, queue: EventQueue, partitions: int, *, transactional: bool) -> None:
        self._queue = queue
        self.ends = dict.fromkeys(range(partitions), 0)
        self.committed = dict.fromkeys(range(partitions), -1)
        self.rows: list[Counter[int]] = [Counter() for _ in range(partitions)]
        self.members: dict[str, int] = {}
        self.is_down = False
        self.checks = 0
        self._transactional = transactional
        self._epochs: Counter[str] = Counter()
        self._open: dict[str, _Transaction] = {}
        self._checked = dict.fromkeys(range(partitions), 0)

    def initialise(self, transactional_id: str) -> int:
        # InitProducerId: aborts the open transaction of this id and fences everyone who has an older epoch.
        self._open.pop(transactional_id, None)
        self._epochs[transactional_id] += 1
        return self._epochs[transactional_id]

    def produce(self, transactional_id: str, epoch: int, rows: list[tuple[int, int]]) -> None:
        if not self._transactional:
            for task, offset in rows:
                self.rows[task][offset] += 1
            return
        self._check_epoch(transactional_id, epoch)
        self._transaction(transactional_id).rows += rows

    def commit(
        self, transactional_id: str, epoch: int, member: tuple[str, int], offsets: Mapping[int, int], *, end: bool
    ) -> None:
        """TxnOffsetCommit, then EndTxn if `end`; at least once OffsetCommit."""
        if self._transactional:
            self._check_epoch(transactional_id, epoch)
        # Stricter than Kafka, which also accepts an older epoch for a task that the member has kept: the machine must
        # not depend on that.
        if self.members.get(member[0]) != member[1]:
            raise Fenced("member-fenced", "another epoch")
        if not self._transactional:
            self._take(offsets)
            return
        transaction = self._transaction(transactional_id)
        transaction.offsets |= offsets
        if not end:
            return
        del self._open[transactional_id]
        self._epochs[transactional_id] += 1
        for task, offset in transaction.rows:
            self.rows[task][offset] += 1
            # Exactly once, first half: rows become visible at EndTxn, each of them once.
            if self.rows[task][offset] > 1:
                raise RuleBroken(f"row {offset} of task {task} is committed twice")
        self._take(transaction.offsets)

    def _transaction(self, transactional_id: str) -> _Transaction:
        """Return the open transaction of this id; begin it if there is none."""
        if transactional_id not in self._open:
            self._open[transactional_id] = begun = _Transaction()
            self._queue.after(TRANSACTION_TIMEOUT_MS, lambda: self._abort_overdue(transactional_id, begun))
        return self._open[transactional_id]

    def _abort_overdue(self, transactional_id: str, begun: _Transaction) -> None:
        if self._open.get(transactional_id) is begun:
            self.initialise(transactional_id)

    def epoch(self, transactional_id: str) -> int:
        return self._epochs[transactional_id]

    def abort_all_of(self, prefix: str) -> None:
        """Abort what a dead driver left open, as its guardian and the transaction timeout do."""
        for transactional_id in [found for found in self._open if found.startswith(prefix)]:
            self.initialise(transactional_id)

    def is_stable(self, task: int) -> bool:
        return all(task not in transaction.offsets for transaction in self._open.values())

    def _check_epoch(self, transactional_id: str, epoch: int) -> None:
        if self._epochs[transactional_id] != epoch:
            raise Fenced("producer-fenced", "another epoch")

    def _take(self, offsets: Mapping[int, int]) -> None:
        self.committed.update(offsets)
        for task, offset in offsets.items():
            self.checks += 1
            # No offset without its rows. Only the new part is looked at; a commit that goes back is looked at from its
            # offset on, which is nothing.
            for each in range(min(self._checked[task], offset), offset):
                if not self.rows[task][each]:
                    raise RuleBroken(f"offset {offset} of task {task} is committed without the row of {each}")
            self._checked[task] = offset
            if not self._transactional:
                continue
            # Exactly once, second half: a visible row behind the committed offset would be written again by the next
            # batch.
            if max(self.rows[task], default=-1) >= offset:
                raise RuleBroken(f"a row of task {task} is committed, and offset {offset} is not behind it")


class _Driver:
    """One driver: a machine, and what its loop and its opener hold."""

    def __init__(self, world: _World, name: str) -> None:
        self.world, self.name = world, name
        self.machine = SubtopologyMachine(NAME, transactional=world.transactional)
        self.is_alive = True
        self.has_ended = False
        self.positions: dict[int, int] = {}  # of bound tasks
        self.slots: dict[int, int] = {}
        self._found: dict[tuple[int, int], int] = {}  # of opened tasks: number and task
        self.in_batch: frozenset[int] = frozenset()  # tasks of the micro-batch under way
        self._identities: dict[int, int] = {}  # slot → epoch of the next transaction
        self._epochs: dict[int, int] = {}  # slot → epoch of the micro-batch under way
        self._is_unknown = False  # outcomes of finished transactions
        self._run: commands.Run | None = None
        self._planned: dict[int, dict[int, tuple[int, int]]] = {}  # slot → task → start, end
        self.job: _Job | None = None  # the newest
        self.live_slots: set[int] = set()  # on a cluster
        self._waiting = 0  # number of the wait that is under way
        self._assignment: AssignmentSnapshot | None = None  # of the group; None before the first and after a loss
        self._delayed: frozenset[tuple[str, int]] = frozenset()  # revoked tasks that are kept for now

    # -- the group ----------------------------------------------------------------------------------------------------

    def assign(self, assignment: AssignmentSnapshot) -> None:
        """Take an assignment of the group, as `StateCoordinator.assigned` does."""
        before, self._assignment = self._assignment, assignment
        opening = set(self.machine.opening)
        running = {(NAME, task) for task in self.machine.tasks if task not in opening}
        revoked = revoked_tasks(before, assignment, running=running, delayed=self._delayed)
        longest_ms = self.world.handover_ms()
        self._delayed = revoked if longest_ms else frozenset()
        if self._delayed:
            self.world.later(lambda: self._give_back(assignment), at_ms=self.world.queue.now_ms + longest_ms)
        self._feed_assignment(assignment)

    def lose(self) -> None:
        """Fenced, or the lease ran out."""
        self._assignment, self._delayed = None, frozenset()
        self.feed(events.Lost())

    def _give_back(self, assignment: AssignmentSnapshot) -> None:
        if self._assignment is assignment and self._delayed:
            self._delayed = frozenset()
            self._feed_assignment(assignment)

    def _feed_assignment(self, assignment: AssignmentSnapshot) -> None:
        self.feed(events.Assigned(assignment=with_active(assignment, self._delayed)))

    # -- events -------------------------------------------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        if not self.is_alive:
            return
        if isinstance(event, (events.Advanced, events.Aborted)):
            self.in_batch = frozenset()
        # A driver may crash at any of its commands: the others of the same event are lost then, as in a process that
        # dies between two statements.
        for command in self.machine.handle(event, self.world.queue.now_ms):
            if self.is_alive:
                self._execute(command)
        self.world.check_tasks()
        if not isinstance(event, (events.Woken, events.EndsSeen, events.EndedChecked)):
            self._wake()

    def _wake(self) -> None:
        """Notify of a change: it ends a wait for input, as the condition variable does."""
        if self._waiting:
            self._answer(events.Woken(), wait=self._waiting)

    def lose_slot(self, slot: int) -> None:
        """The executor of a slot ends or is cut off. Its workers may go on writing; a job with this slot fails."""
        self.live_slots.discard(slot)
        self.feed(events.SlotLost(slots=(slot,)))
        if self.job is not None:
            self.job.lose(slot)

    def start_slot(self, slot: int) -> None:
        if slot not in self.live_slots:
            self.live_slots.add(slot)
            # What lies in the state directory of the executor is of no importance for what is right.
            there = [task for task in range(self.world.partitions) if self.world.random.random() < 0.3]
            self.feed(events.SlotHello(slots=(slot,), stores={slot: frozenset(there)}))

    def crash(self) -> None:
        self.is_alive = False
        self.world.note(f"{self.name} is dead")

    # -- commands -----------------------------------------------------------------------------------------------------

    def _execute(self, command: commands.Command) -> None:
        crash = self.world.next_crash(self, command)
        if crash is Crash.DRIVER_BEFORE:
            self.crash()
            return
        self.world.note(f"{self.name}: {type(command).__name__}")
        match command:
            case commands.Open() | commands.Bind() | commands.Release():
                self._change_tasks(command)
            case commands.MarkUnknown():
                self._is_unknown = True
            case commands.CancelOpenings():
                pass
            case commands.Fail(error=error):
                raise RuleBroken(f"{self.name} fails: {error}")
            case commands.End():
                self.has_ended = True
            case commands.Wait(until_ms=until_ms):
                self._wait(max(1, until_ms - self.world.queue.now_ms))
            case commands.WaitForInput():
                self._wait(300)
            case _:
                self._work(command, crash)
        if crash is Crash.DRIVER_AFTER:
            self.crash()

    def _change_tasks(self, command: commands.Open | commands.Bind | commands.Release) -> None:
        match command:
            case commands.Open():
                self.world.later(lambda: self._open(command), at_ms=command.not_before_ms)
            case commands.Bind(partition=task, slot=slot, number=number):
                if task in self.slots:
                    raise RuleBroken(f"task {task} of {self.name} is bound to slot {slot} and to {self.slots[task]}")
                self.positions[task], self.slots[task] = self._found.pop((number, task)), slot
            case commands.Release(partitions=tasks):
                if busy := sorted(set(tasks) & set(self.in_batch)):
                    raise RuleBroken(f"tasks {busy} of {self.name} are released during their micro-batch")
                for task in tasks:
                    del self.positions[task], self.slots[task]

    def _wait(self, ms: int) -> None:
        self.world.waits += 1
        self._waiting = wait = self.world.waits
        self.world.queue.after(ms, lambda: self._answer(events.Woken(), wait=wait))

    def _answer(self, event: events.Event, *, wait: int = 0) -> None:
        if wait:
            if wait != self._waiting:
                return
            self._waiting = 0
        self.feed(event)

    def _work(self, command: commands.Work, crash: Crash | None) -> None:
        """Execute a command, now or later; its answer comes later still."""

        def act() -> None:
            if not self.is_alive:
                return
            # A lost request never took effect; a lost response did. The machine must treat both alike, because it
            # cannot tell them apart.
            lost = crash is Crash.REQUEST_LOST
            try:
                if (self.world.broker.is_down or lost) and not isinstance(
                    command, (commands.Advance, commands.Recover)
                ):
                    raise CannotConnect("broker-unreachable", "no answer")
                event = self._act(command, crash)
            except HeadraceError as error:
                event = self._failed(command, error)
            if event is not None:
                if crash is Crash.RESPONSE_LOST and isinstance(command, (commands.Resolve, commands.LookUpEnds)):
                    event = events.ActionFailed(error=CannotConnect("broker-unreachable", "no answer"))
                self.world.later(lambda: self.feed(event))

        self.world.later(act)

    def _failed(self, command: commands.Work, error: HeadraceError) -> events.Event:
        match command:
            case commands.Commit(batch=batch):
                return events.CommitOutcome(batch=batch, errors=dict.fromkeys(self._planned, error))
            case commands.Abort(batch=batch):
                self._forget_identities()
                return events.Aborted(batch=batch)
            case _:
                error.facts["retriable"] = True
                return events.ActionFailed(error=error)

    def _act(self, command: commands.Work, crash: Crash | None) -> events.Event | None:
        match command:
            case commands.LookUpEnds():
                ends = self.world.broker.ends
                return events.EndsSeen(ready=frozenset(t for t, at in self.positions.items() if at < ends[t]))
            case commands.CheckEnded():
                return events.EndedChecked()
            case commands.Run():
                self._begin(command, crash)
                return None
            case commands.Commit(batch=batch):
                return self._commit(batch, crash)
            case commands.Resolve():
                return self._resolve(command)
            case commands.Abort():
                return self._abort(command)
            case commands.Advance():
                return self._advance(command)
            case commands.Recover(batch=batch):
                return events.Recovered(batch=batch)
            case _:
                raise AssertionError(command)

    def _resolve(self, command: commands.Resolve) -> events.Event:
        broker = self.world.broker
        for slot in command.slots:
            self._identities[slot] = broker.initialise(self._id(slot))
        tasks = [task for slot in command.slots for task in self._planned[slot]]
        if not all(broker.is_stable(task) for task in tasks):
            raise BrokerError("offsets-unstable", "pending", retriable=True)
        return events.OffsetsRead(batch=command.batch, offsets={_input(task): broker.committed[task] for task in tasks})

    def _abort(self, command: commands.Abort) -> events.Event:
        self._forget_identities()
        for slot in self._planned:
            self.world.broker.initialise(self._id(slot))
        return events.Aborted(batch=command.batch)

    def _forget_identities(self) -> None:
        for slot in self._planned:
            self._identities.pop(slot, None)

    def _advance(self, command: commands.Advance) -> events.Event:
        for planned in self._planned.values():
            for task in command.committed & set(planned) & set(self.positions):
                self.positions[task] = planned[task][1]
        return events.Advanced(batch=command.batch)

    def _id(self, slot: int) -> str:
        return f"{self.name}-{slot}"

    def _open(self, command: commands.Open) -> None:
        broker = self.world.broker
        if not self.is_alive or not self.machine.is_opening(command.number):
            return
        error: HeadraceError | None = None
        if broker.is_down:
            error = CannotConnect("broker-unreachable", "no answer")
        elif not all(broker.is_stable(task) for task in command.partitions):
            error = BrokerError("offsets-unstable", "pending", retriable=True)
        if error is not None:
            failed = events.OpenFailed(number=command.number, error=error)
            self.world.later(lambda: self.feed(failed))
            return
        for task in command.partitions:
            self._found[command.number, task] = max(0, broker.committed[task])
        restored_ms = self.world.queue.now_ms + self.world.random.choice((0, 0, 0, 2000))
        opened = events.Opened(number=command.number, partitions=command.partitions)
        self.world.later(lambda: self.feed(opened), at_ms=restored_ms)

    def _begin(self, run: commands.Run, crash: Crash | None) -> None:
        broker = self.world.broker
        self._run, self._planned = run, {}
        for task in sorted(run.partitions):
            start = self.positions[task]
            end = self.world.random.randint(start + 1, broker.ends[task])
            self._planned.setdefault(self.slots[task], {})[task] = (start, end)
        if self._is_unknown:
            self._identities.clear()
            self._is_unknown = False
        for slot in self._planned:
            if slot not in self._identities:
                self._identities[slot] = broker.initialise(self._id(slot))
        self._epochs = {slot: self._identities[slot] for slot in self._planned}
        self.in_batch = run.partitions
        slots = {
            slot: {task: {_input(task): start} for task, (start, _) in tasks.items()}
            for slot, tasks in self._planned.items()
        }
        self.feed(events.Began(batch=run.batch, slots=slots))
        if not self.is_alive:
            return
        self.job = _Job(self, run.batch, self._planned, self._epochs)
        self.job.start(crash)
        for slot in self._planned:
            if self.world.is_cluster and slot not in self.live_slots:
                self.job.lose(slot)

    def _commit(self, batch: int, crash: Crash | None) -> events.Event:
        assert self._run is not None
        errors: dict[int, HeadraceError | None] = {}
        assignment = self._run.assignment
        for slot, tasks in self._planned.items():
            offsets = {task: end for task, (_, end) in tasks.items()}
            self._identities.pop(slot, None)
            epoch = self._epochs[slot]
            half = crash is Crash.WORKER or self.world.chance(0.05)  # TxnOffsetCommit took effect, EndTxn was lost
            try:
                self.world.broker.commit(
                    self._id(slot), epoch, (assignment.member_id, assignment.member_epoch), offsets, end=not half
                )
                errors[slot] = None
                if (half and self.world.transactional) or crash is Crash.RESPONSE_LOST or self.world.chance(0.05):
                    errors[slot] = CannotConnect("broker-unreachable", "no answer")
                else:
                    self._identities[slot] = self.world.broker.epoch(self._id(slot))
            except HeadraceError as error:
                errors[slot] = error
        if not self.world.transactional:
            first = next((error for error in errors.values() if error is not None), None)
            errors = dict.fromkeys(errors, first)
        return events.CommitOutcome(batch=batch, errors=errors)


class _Job:
    """The workers of one micro-batch. They go on when the job has failed or its driver is dead."""

    def __init__(
        self, driver: _Driver, batch: int, planned: Mapping[int, dict[int, tuple[int, int]]], epochs: dict[int, int]
    ) -> None:
        self._driver, self._world, self._batch = driver, driver.world, batch
        self._planned, self._epochs = dict(planned), epochs
        self._left = len(self._planned)
        self._prepared: set[int] = set()
        self._is_over = False

    def start(self, crash: Crash | None) -> None:
        # An executor takes all slots with it, a worker one.
        victims = set(self._planned) if crash is Crash.EXECUTOR else set()
        if crash is Crash.WORKER or self._world.chance(0.03):
            victims.add(self._world.random.choice(sorted(self._planned)))
        for slot in self._planned:
            self._world.later(lambda s=slot: self._write(s, 0, s in victims))  # type: ignore[misc]

    def lose(self, slot: int) -> None:
        """Fail if the slot still works on its part: the driver hears nothing more of it."""
        if slot in self._planned and slot not in self._prepared:
            self._end(events.JobFailed(batch=self._batch))

    def _write(self, slot: int, part: int, dies: bool) -> None:
        if dies and part:
            self._end(events.JobFailed(batch=self._batch))
            return
        rows = [
            (task, offset)
            for task, (start, end) in self._planned[slot].items()
            for offset in range(start, end)
            # Two interleaved halves: a worker that dies between them leaves a gap in the middle of the range, not only
            # a missing end.
            if (offset - start) % 2 == part
        ]
        try:
            if self._world.broker.is_down:
                raise CannotConnect("broker-unreachable", "no answer")
            self._world.broker.produce(self._driver._id(slot), self._epochs[slot], rows)
        except HeadraceError:
            self._end(events.JobFailed(batch=self._batch, is_broker_error=True))
            return
        if part == 0:
            self._world.later(lambda: self._write(slot, 1, dies))
            return
        self._left -= 1
        self._prepared.add(slot)
        if not self._left:
            reached = {
                task: {_input(task): end} for tasks in self._planned.values() for task, (_, end) in tasks.items()
            }
            self._end(events.JobFinished(batch=self._batch, reached=reached))

    def _end(self, event: events.Event) -> None:
        if not self._is_over:
            self._is_over = True
            self._world.later(lambda: self._driver.feed(event))


def _input(task: int) -> tuple[str, int]:
    return "flights", task


class _World:
    """Virtual time, the broker, the group and its drivers. Mutable."""

    def __init__(self, seed: int, *, transactional: bool, crash_at: tuple[int, Crash] | None) -> None:
        self.random = random.Random(seed)
        self.queue = EventQueue()
        self.transcript = Transcript(self.queue)
        self.transactional = transactional
        self.partitions = self.random.randint(1, 4)
        self.slots = self.random.randint(1, 3)
        self.broker = _Broker(self.queue, self.partitions, transactional=transactional)
        self.drivers: list[_Driver] = []
        self.did: Counter[str] = Counter()
        self.moved = 0
        self.waits = 0
        self._crash_at = crash_at
        self._outputs = 0
        self._is_chaos = True
        self._rate = self.random.choice((0.0, 0.01, 0.05)) if crash_at is None else 0.0
        self._epoch = 0
        self._numbers = 0
        # Slots that come and go, each with its stores. From numbers of its own: worlds without stay as they were.
        self.is_cluster = random.Random(seed ^ 0x5107).random() < 0.4
        self.handover = random.Random(seed ^ 0xA11D)  # numbers of its own, too
        # On a cluster there are no copies that a revocation could wait for.
        self.keeps_revoked = self.handover.random() < 0.5 and not self.is_cluster
        self._owners: dict[int, _Driver | None] = dict.fromkeys(range(self.partitions))
        self._targets: dict[int, _Driver] = {}
        self._told: dict[str, tuple[int, ...]] = {}

    def note(self, text: str) -> None:
        self.transcript.note(text)

    def chance(self, share: float) -> bool:
        return self._is_chaos and self._crash_at is None and self.random.random() < share

    def handover_ms(self) -> int:
        """Return how long a driver keeps tasks that are revoked now; 0: not at all."""
        return self.handover.choice((0, 50, 300, 1500)) if self.keeps_revoked else 0

    def later(self, action: Callable[[], None], *, at_ms: int = 0) -> None:
        self.queue.at(max(at_ms, self.queue.now_ms + self.random.randint(1, 40)), action)

    def next_crash(self, driver: _Driver, command: commands.Command) -> Crash | None:
        """Return what happens at this command; broker crashes are begun here."""
        self._outputs += 1
        crash: Crash | None = None
        if self._crash_at is not None:
            crash = self._crash_at[1] if self._outputs == self._crash_at[0] else None
        elif self._is_chaos and self.random.random() < self._rate:
            crash = self.random.choice(list(Crash))
        if crash is None:
            return None
        self.did[crash.name.lower()] += 1
        self.note(f"{crash.value}: {driver.name}, {type(command).__name__}")
        if crash is Crash.BROKER:
            self.broker.is_down = True
            self.queue.after(self.random.randint(20, 2000), self._start_broker)
            self.later(lambda: driver.feed(events.BrokerUnreachable()))
        return crash

    def _start_broker(self) -> None:
        self.broker.is_down = False

    # -- the group ----------------------------------------------------------------------------------------------------

    def start_driver(self) -> None:
        self._numbers += 1
        driver = _Driver(self, f"driver-{self._numbers}")
        self.drivers.append(driver)
        if self.is_cluster:
            driver.feed(events.SlotHello(slots=(), stores={}))
            for slot in range(self.slots):
                self.later(lambda s=slot: driver.start_slot(s))  # type: ignore[misc]
        else:
            driver.feed(events.SlotHello(slots=tuple(range(self.slots))))
        if driver.is_alive:
            self._join(driver)

    def _join(self, driver: _Driver) -> None:
        self._epoch += 1
        self.broker.members[driver.name] = self._epoch
        self._rebalance()

    def _leave(self, driver: _Driver) -> None:
        self.broker.members.pop(driver.name, None)
        self._told.pop(driver.name, None)
        for task, owner in self._owners.items():
            if owner is driver:
                self._owners[task] = None
        self._rebalance()

    def _members(self) -> list[_Driver]:
        return [driver for driver in self.drivers if driver.name in self.broker.members]

    def _rebalance(self) -> None:
        members = self._members()
        self._epoch += 1
        shift = self.random.randint(0, 3)
        self._targets = {t: members[(t + shift) % len(members)] for t in range(self.partitions)} if members else {}

    def heartbeat(self) -> None:
        """One round of heartbeats: release acknowledged tasks, hand out free ones."""
        for driver in self._members():
            if not driver.is_alive:
                continue
            self._acknowledge(driver)
            mine = []
            for task, target in sorted(self._targets.items()):
                if self._owners[task] is None and target is driver:
                    self._owners[task] = driver
                    self.moved += 1
                if self._owners[task] is driver and target is driver:
                    mine.append(task)
            if self._told.get(driver.name) != tuple(mine) or self.broker.members[driver.name] < self._epoch:
                self._told[driver.name] = tuple(mine)
                self.broker.members[driver.name] = self._epoch
                driver.assign(self._snapshot(driver, mine))

    def _snapshot(self, driver: _Driver, mine: list[int]) -> AssignmentSnapshot:
        epoch = self.broker.members[driver.name]
        return AssignmentSnapshot(member_id=driver.name, member_epoch=epoch, active={NAME: tuple(mine)})

    def _acknowledge(self, driver: _Driver) -> None:
        told = self._told.get(driver.name)
        # A task changes its owner only when its machine says that it is released: this is the acknowledgement of a
        # heartbeat.
        if told is None or not driver.machine.has_released(self._snapshot(driver, list(told))):
            return
        for task, owner in self._owners.items():
            if owner is driver and task not in told and self._targets.get(task) is not driver:
                self._owners[task] = None

    def check_tasks(self) -> None:
        """Check that no task is bound by two members of the group, nor to a lost slot.

        A fenced driver is no member, and commits nothing. During a micro-batch tasks stay where they are.
        """
        for driver in self.drivers if self.is_cluster else ():
            lost = set(driver.slots.values()) - driver.live_slots
            if lost and driver.is_alive and driver.machine.state is BatchState.IDLE:
                raise RuleBroken(f"a task of {driver.name} runs in the lost slot {min(lost)}")
        bound: dict[int, str] = {}
        for driver in self._members():
            for task in {*driver.slots, *driver.in_batch} if driver.is_alive else ():
                # A lost task is in a micro-batch that commits nothing; its driver may be a member again.
                if driver.machine.tasks.get(task) is TaskState.LOST:
                    continue
                if task in bound:
                    raise RuleBroken(f"task {task} runs in {bound[task]} and in {driver.name}")
                bound[task] = driver.name

    # -- chaos, then calm ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run the world; return how many tasks changed their owner."""
        chaos_end_ms = self.queue.now_ms + CHAOS_MS
        for _ in range(self.random.randint(1, 2)):
            self.start_driver()
        while self.queue.now_ms < chaos_end_ms:
            self.queue.run_until(self.queue.now_ms + STEP_MS)
            self._act()
            self.heartbeat()
        self._is_chaos, self._crash_at = False, None
        settle(self.queue, self._look, patience_ms=CALM_MS, cause="after the chaos")
        return self.moved

    def _look(self) -> str | None:
        """One round of heartbeats; replaces drivers that ended. Returns why the world has not settled."""
        self._bury()
        if not any(driver.is_alive and not driver.has_ended for driver in self.drivers):
            self.start_driver()
        self.heartbeat()
        if self._is_settled():
            return None
        states = {driver.name: (driver.machine.state.value, dict(driver.machine.tasks)) for driver in self._members()}
        return f"{self.broker.committed} of {self.broker.ends}, {states}"

    def _act(self) -> None:
        for task in self.broker.ends:
            self.broker.ends[task] += self.random.randint(0, 2)
        self._bury()
        live = [driver for driver in self._members() if driver.is_alive and not driver.has_ended]
        if len(live) < 3 and self.random.random() < (0.3 if not live else 0.03):
            self.start_driver()
        if not live or self._crash_at is not None:
            return
        chosen = self.random.choice(live)
        if self.is_cluster and chosen.live_slots and self.random.random() < 0.06:
            self.did["slot_lost"] += 1
            slot = self.random.choice(sorted(chosen.live_slots))
            chosen.lose_slot(slot)
            self.queue.after(self.random.randint(1, 1500), lambda: chosen.start_slot(slot))
        if self.random.random() < 0.02:
            self.did["member_fenced"] += 1
            self._leave(chosen)
            self.later(chosen.lose)
            again_ms = self.handover.randint(41, 400) if self.keeps_revoked else 400
            self.queue.after(again_ms, lambda: None if chosen.has_ended or not chosen.is_alive else self._join(chosen))
        elif self.random.random() < 0.02:
            self.did["rebalance"] += 1
            self._rebalance()
        elif self.random.random() < 0.01:
            self.did["stop"] += 1
            chosen.feed(events.StopRequested())

    def _bury(self) -> None:
        """The guardian of a dead driver leaves the group; its transactions end now or by their timeout."""
        for driver in [found for found in self.drivers if not found.is_alive or found.has_ended]:
            self.drivers.remove(driver)
            self.broker.members.pop(driver.name, None)
            self._leave(driver)
            name = driver.name
            # From at once (a guardian that notices the death) to the transaction timeout (a lost host).
            self.queue.after(self.random.randint(1, 3000), lambda n=name: self.broker.abort_all_of(f"{n}-"))  # type: ignore[misc]

    def _is_settled(self) -> bool:
        if any(self.broker.committed[task] < end for task, end in self.broker.ends.items() if end):
            return False
        bound = sorted(task for driver in self._members() for task in driver.slots if driver.is_alive)
        states = {driver.machine.state for driver in self._members() if driver.is_alive}
        return bound == list(range(self.partitions)) and BatchState.ENDED not in states
