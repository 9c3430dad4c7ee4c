"""`SubtopologyMachine`: which tasks of a subtopology run here, when a micro-batch runs, and what becomes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import Fenced
from headrace.spark.machine import commands, events
from headrace.spark.machine.batch_outcome import Batch, is_retriable
from headrace.spark.machine.commands import Command, Open, Work
from headrace.spark.machine.events import Event
from headrace.spark.machine.placement import excess, place
from headrace.spark.machine.states import (
    BATCH_STEPS,
    SLOT_STEPS,
    TASK_STEPS,
    BatchState,
    IllegalStep,
    SlotState,
    TaskState,
    step,
)

__all__ = ["RETRY_BACKOFF_MS", "SubtopologyMachine"]

RETRY_BACKOFF_MS = 500


class SubtopologyMachine:
    """State of one subtopology on one instance. Mutable; a caller with several threads holds a lock around each call.

    `handle(event, now_ms)` returns commands. Work (`commands.Work`) is answered by an event of its own; there is always
    exactly one piece of work under way, from the `Wait` that SlotHello returns to `End` or `Fail`.

    **Tasks.** An assignment takes effect between micro-batches: what is new is opened beside the running one.

    ============ =============================================== =======================================================
    state        meaning                                         leads to
    ============ =============================================== =======================================================
    AWAY         not here                                        OPENING: assigned
    OPENING      positions and stores are looked up              OPENED: Opened with the number of its Open ·
                                                                 AWAY: no longer assigned, or lost
    OPENED       ready, a micro-batch of others is under way     RUNNING: the batch has ended · AWAY: as above
    RUNNING      bound to a slot                                 RELEASING: no longer assigned, in a batch · LOST: lost,
                                                                 in a batch · AWAY: the same between batches, or
                                                                 position or store are uncertain, or its slot is lost
                                                                 or has too many tasks; then opened again
    RELEASING    finishes its last micro-batch                   AWAY: the batch has ended · RUNNING: assigned again ·
                                                                 LOST: lost
    LOST         in a batch that will not be committed           AWAY: the batch has ended; opened if assigned again
    ============ =============================================== =======================================================

    **Slots.** Slots of a local master say hello once, all together. On a cluster they come and go, which takes effect
    between micro-batches: the job of a micro-batch in a lost slot fails, and its outcome is resolved before.

    ============ =============================================== =======================================================
    AWAY         did not say hello                               READY: SlotHello
    READY        nothing is open                                 WRITING: Began · AWAY: SlotLost
    WRITING      the job runs, its transaction may be open       PREPARED: JobFinished · UNKNOWN: JobFailed ·
                                                                 READY: Aborted; at least once, JobFailed
    PREPARED     rows are flushed, stores can be rolled back     READY: committed, or Aborted · UNKNOWN: anything else
    UNKNOWN      the broker must be asked for the outcome        READY: OffsetsRead or Aborted
    ============ =============================================== =======================================================

    **Micro-batches.**

    ============ =============================================== =======================================================
    IDLE         between micro-batches: Wait or WaitForInput     LOOKING: tasks run · CHECKING: none · ENDED: a stop
    CHECKING     CheckEnded                                      IDLE
    LOOKING      LookUpEnds                                      PLANNING: input · CHECKING: none · IDLE: failed, or
                                                                 tasks must be opened again
    PLANNING     Run, before its job starts                      RUNNING: Began · IDLE: ActionFailed
    RUNNING      Run                                             COMMITTING: JobFinished · ABORTING: tasks were lost, or
                                                                 a stop and JobFailed · JobFailed: RESOLVING exactly
                                                                 once, ADVANCING at least once
    COMMITTING   Commit                                          ADVANCING: certain · RESOLVING: not, exactly once ·
                                                                 ABORTING: not, and a stop or lost
    RESOLVING    Resolve, or the pause before another            ADVANCING: OffsetsRead · ABORTING: a stop or lost
    ABORTING     Abort                                           IDLE · ADVANCING: other slots are committed
    ADVANCING    Advance                                         IDLE · RECOVERING: after JobFailed
    RECOVERING   Recover                                         IDLE
    ENDED        stopped or failed                               nothing
    ============ =============================================== =======================================================

    An error that no retry can resolve leads to ENDED from any state that waits for brokers. A step outside of these
    tables (module `states`) raises IllegalStep.
    """

    def __init__(self, subtopology_id: str, *, transactional: bool, trigger_interval_ms: int = 0) -> None:
        """Create without tasks or slots.

        Args:
            subtopology_id: Its key in assignments.
            transactional: Whether slots write in transactions (exactly once).
            trigger_interval_ms: Least time between the starts of two micro-batches.
        """
        self._name, self._transactional, self._trigger_interval_ms = subtopology_id, transactional, trigger_interval_ms
        self._tasks: dict[int, TaskState] = {}  # all that are not AWAY
        self._requests: dict[int, int] = {}  # task OPENING or OPENED → number of its Open
        self._slots: dict[int, SlotState] = {}
        self._slot_changes: deque[events.SlotHello | events.SlotLost] = deque()  # in the order of their arrival
        self._stores: dict[int, frozenset[int]] | None = None  # slot → tasks; None: all slots share one directory
        self._placed: dict[int, int] = {}  # task that is not AWAY → slot
        self._has_begun = False
        self._state = BatchState.IDLE
        self._batch: Batch | None = None
        self._assignment: AssignmentSnapshot | None = None
        self._looked_ms = 0
        self._not_before_ms = 0
        self._stopping = False
        self._next_open = self._next_batch = 0
        self.losses = 0  # how often everything was lost
        self._now_ms = 0
        self._out: list[Command] = []

    # -- views --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> BatchState:
        return self._state

    @property
    def tasks(self) -> Mapping[int, TaskState]:
        """All tasks that are not AWAY."""
        return self._tasks

    @property
    def slots(self) -> Mapping[int, SlotState]:
        """All slots that reported ready (`SlotHello`)."""
        return self._slots

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def opening(self) -> list[int]:
        """Tasks that do not run yet."""
        return sorted(self._requests)

    @property
    def assignment(self) -> AssignmentSnapshot | None:
        """The newest assignment; None before the first and after a loss."""
        return self._assignment

    def is_opening(self, number: int) -> bool:
        """Whether a task still waits for this Open."""
        return not self._stopping and number in self._requests.values()

    def assignment_of(self, request: Open) -> AssignmentSnapshot | None:
        """Return the newest assignment, if all tasks of this Open are still to be opened; None otherwise.

        Offsets that a task begins with are committed with its epoch. With the epoch of an assignment that revoked the
        task, a late commit would be accepted, and could overwrite offsets of the next owner.
        """
        waits = self.is_opening(request.number) and set(request.partitions) <= self._assigned()
        return self._assignment if waits else None

    def has_released(self, snapshot: AssignmentSnapshot) -> bool:
        """Whether no task outside of `snapshot` runs or is being opened.

        One that is kept beyond its revocation may have to be opened again, after a failure. Acknowledged in this
        moment, it would be given to its new owner, and opened here as well.
        """
        return set(self._tasks) <= set(snapshot.active.get(self._name, ()))

    # -- input --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ms: int) -> tuple[Command, ...]:
        """Return the commands that follow from an event. Raises IllegalStep if it answers no command."""
        self._now_ms, self._out = now_ms, []
        _HANDLERS[type(event)](self, event)
        return tuple(self._out)

    # -- the group ----------------------------------------------------------------------------------------------------

    def _on_slot_hello(self, event: events.SlotHello) -> None:
        # Assigned tasks are opened only now: an Open names the slot of each task, and slots are known from here on.
        self._slot_changes.append(event)
        self._reconcile_tasks()
        if not self._has_begun:
            self._has_begun = True
            self._out.append(commands.Wait(until_ms=self._now_ms))

    def _on_slot_lost(self, event: events.SlotLost) -> None:
        self._slot_changes.append(event)
        self._reconcile_tasks()

    def _change_slots(self) -> None:
        """Apply what was reported about slots, in order: a slot may have been lost and started again meanwhile."""
        while self._slot_changes:
            match self._slot_changes.popleft():
                case events.SlotHello(slots=slots, stores=stores):
                    if stores is not None:
                        self._stores = (self._stores or {}) | {slot: stores[slot] for slot in slots}
                    for slot in slots:
                        self._move_slot(slot, SlotState.READY)
                case events.SlotLost(slots=slots):
                    lost = [task for task, slot in self._placed.items() if slot in slots]
                    # Their stores lie where no slot of this application can reach them. Openings are given up as well.
                    self._release(task for task in lost if task not in self._requests)
                    for task in lost:
                        if task in self._requests:
                            self._move(task, TaskState.AWAY)
                    for slot in slots:
                        if slot in self._slots:
                            self._move_slot(slot, SlotState.AWAY)
                            del self._slots[slot]
                        if self._stores is not None:
                            self._stores.pop(slot, None)

    def _on_assigned(self, event: events.Assigned) -> None:
        self._assignment = event.assignment
        mine = self._assigned()
        # 1. Assigned again before its micro-batch ended: position and store in memory are current, so it just
        #    continues.
        # 2. Not assigned any more while it is being opened: dropped. Its Opened, if it still comes, has a number that
        #    no task waits for.
        # 3. Not assigned any more while it runs: it finishes its micro-batch. Releasing it here would leave rows of a
        #    task that another member already runs uncommitted.
        for task, state in sorted(self._tasks.items()):
            if state is TaskState.RELEASING and task in mine:
                self._move(task, TaskState.RUNNING)
            elif task in self._requests and task not in mine:
                self._move(task, TaskState.AWAY)
            elif state is TaskState.RUNNING and task not in mine:
                self._move(task, TaskState.RELEASING)
        # 4. LOST tasks are still in `_tasks`: they are opened again when their micro-batch has ended, since its
        #    transaction must be decided first.
        self._open(mine - set(self._tasks))
        self._reconcile_tasks()

    def _on_lost(self, _: events.Lost) -> None:
        self.losses += 1
        self._assignment = None
        # Fenced or timed out: other members may run these tasks already. The micro-batch goes on, because its stages
        # cannot be stopped at any point, but it is marked, and none of its commands after this one commits.
        for task in sorted(self._tasks):
            self._move(task, TaskState.AWAY if task in self._requests else TaskState.LOST)
        if self._batch is not None:
            self._batch.lost = True
        self._reconcile_tasks()

    def _on_stop_requested(self, _: events.StopRequested) -> None:
        if not self._stopping:
            self._stopping = True
            self._out.append(commands.CancelOpenings())

    # -- opening ------------------------------------------------------------------------------------------------------

    def _on_opened(self, event: events.Opened) -> None:
        # The number tells an answer to this Open from one to an earlier Open of the same task, which went and came back
        # in between.
        for task in event.partitions:
            if self._requests.get(task) == event.number and self._tasks[task] is TaskState.OPENING:
                self._move(task, TaskState.OPENED)
        self._reconcile_tasks()

    def _on_open_failed(self, event: events.OpenFailed) -> None:
        if not self.is_opening(event.number):
            return
        # Fenced, the commit of start offsets had an old epoch: the next assignment shows whether the tasks are still
        # this member's.
        if not is_retriable(event.error) and not isinstance(event.error, Fenced):
            self._out.append(commands.Fail(error=event.error))
            return
        tasks = [task for task, number in self._requests.items() if number == event.number]
        self._ask_to_open(event.number, tasks, self._now_ms + RETRY_BACKOFF_MS)

    def _open(self, tasks: Iterable[int]) -> None:
        wanted = sorted(tasks)
        if not wanted or self._stopping or not self._slots:
            return
        self._placed |= self._place(wanted)
        for task in wanted:
            self._move(task, TaskState.OPENING)
            self._requests[task] = self._next_open
        self._ask_to_open(self._next_open, wanted, 0)
        self._next_open += 1

    def _ask_to_open(self, number: int, tasks: Iterable[int], not_before_ms: int) -> None:
        assert self._assignment is not None
        slots = {task: self._placed[task] for task in tasks}
        command = Open(number=number, assignment=self._assignment, slots=slots, not_before_ms=not_before_ms)
        self._out.append(command)

    def _place(self, tasks: list[int]) -> dict[int, int]:
        """Return the slot of each task that is to be opened."""
        if self._stores is None:
            slots = sorted(self._slots)
            return {task: slots[task % len(slots)] for task in tasks}
        return place(tasks, self._placed, self._stores, assigned=len(self._assigned()))

    def _reconcile_tasks(self) -> None:
        """Apply what had to wait for the end of a micro-batch."""
        if self._state is not BatchState.IDLE:
            return
        # 1. Release first: the new owner of a task waits for it.
        self._release(task for task, state in self._tasks.items() if state in (TaskState.RELEASING, TaskState.LOST))
        # 2. Slots that are lost take their tasks along, before any of these is bound.
        self._change_slots()
        # 3. Bind what was opened beside the micro-batch.
        for task in [task for task, state in self._tasks.items() if state is TaskState.OPENED]:
            self._move(task, TaskState.RUNNING)
            number = self._requests.pop(task)
            self._out.append(commands.Bind(partition=task, slot=self._placed[task], number=number))
        # 4. A slot that came later takes its part of the tasks.
        if self._stores and not self._stopping:
            running = [task for task, state in self._tasks.items() if state is TaskState.RUNNING]
            self._release(excess(running, self._placed, self._stores, assigned=len(self._assigned())))
        # 5. Open what is assigned and not here: tasks that were lost, or released because their position is uncertain.
        self._open(self._assigned() - set(self._tasks))

    def _reopen(self, tasks: Iterable[int]) -> None:
        """Release tasks whose position or store is uncertain; `_reconcile_tasks` opens the assigned ones again."""
        self._release(task for task in tasks if self._tasks.get(task) is TaskState.RUNNING)

    def _release(self, tasks: Iterable[int]) -> None:
        gone = tuple(sorted(tasks))
        for task in gone:
            self._move(task, TaskState.AWAY)
        if gone:
            self._out.append(commands.Release(partitions=gone))

    def _assigned(self) -> set[int]:
        return set(self._assignment.active.get(self._name, ())) if self._assignment is not None else set()

    # -- between micro-batches ----------------------------------------------------------------------------------------

    def _on_woken(self, _: events.Woken) -> None:
        if self._state is BatchState.RESOLVING:
            self._resolve()
        else:
            self._continue()

    def _continue(self) -> None:
        self._expect(BatchState.IDLE)
        if self._stopping:
            self._work(BatchState.ENDED, commands.End())
        elif self._now_ms < self._not_before_ms:
            self._out.append(commands.Wait(until_ms=self._not_before_ms))
        # The start of the look-up counts as the start of the micro-batch, so the trigger interval includes the look-up.
        elif TaskState.RUNNING in self._tasks.values():
            self._looked_ms = self._now_ms
            self._work(BatchState.LOOKING, commands.LookUpEnds())
        else:
            self._work(BatchState.CHECKING, commands.CheckEnded())

    def _on_ended_checked(self, _: events.EndedChecked) -> None:
        self._expect(BatchState.CHECKING)
        self._become_idle()
        self._out.append(commands.WaitForInput() if not self._stopping else commands.Wait(until_ms=self._now_ms))

    def _on_ends_seen(self, event: events.EndsSeen) -> None:
        self._expect(BatchState.LOOKING)
        if self._stopping or event.recreated:
            self._become_idle(reopen=event.recreated)
            self._continue()
            return
        # 1. Tasks that are RELEASING since the look-up began take part in no further micro-batch.
        ready = event.ready & {task for task, state in self._tasks.items() if state is TaskState.RUNNING}
        if not ready or self._assignment is None:
            self._work(BatchState.CHECKING, commands.CheckEnded())
            return
        # 2. The assignment is captured here. Member id and epoch of the commit are those of this moment, never newer
        #    ones, so a batch that outlived a fence and a rejoin is refused by the coordinator.
        self._batch = Batch(number=self._next_batch, assignment=self._assignment, started_ms=self._looked_ms)
        self._next_batch += 1
        run = commands.Run(batch=self._batch.number, assignment=self._assignment, partitions=ready)
        self._work(BatchState.PLANNING, run)

    def _on_broker_unreachable(self, _: events.BrokerUnreachable) -> None:
        self._out.append(commands.MarkUnknown())

    def _on_action_failed(self, event: events.ActionFailed) -> None:
        # Errors that waiting cannot resolve end the application from any of these states: none of them has anything to
        # commit.
        if not is_retriable(event.error):
            self._work(BatchState.ENDED, commands.Fail(error=event.error))
        elif self._state is BatchState.RESOLVING:
            self._out.append(commands.Wait(until_ms=self._now_ms + RETRY_BACKOFF_MS))
        elif self._state in (BatchState.CHECKING, BatchState.LOOKING, BatchState.PLANNING):
            self._not_before_ms = self._now_ms + RETRY_BACKOFF_MS
            self._become_idle()
            self._continue()
        else:
            raise IllegalStep(f"{event} in state {self._state.value}")

    # -- the micro-batch ----------------------------------------------------------------------------------------------

    def _on_began(self, event: events.Began) -> None:
        batch = self._running(event.batch, BatchState.PLANNING)
        self._enter(BatchState.RUNNING)
        for slot, tasks in event.slots.items():
            self._move_slot(slot, SlotState.WRITING)
            batch.slots[slot] = frozenset(tasks)
            batch.starts |= tasks

    def _on_job_finished(self, event: events.JobFinished) -> None:
        batch = self._running(event.batch, BatchState.RUNNING)
        # A worker lost a connection to a broker. Its commit may succeed, but markers of earlier transactions may be
        # missing (KAFKA-20734), so identities are resolved before they are used again.
        if event.reconnected:
            self._out.append(commands.MarkUnknown())
        for slot in batch.slots:
            self._move_slot(slot, SlotState.PREPARED)
        batch.reached |= event.reached
        if batch.lost:
            self._abort()
        else:
            self._work(BatchState.COMMITTING, commands.Commit(batch=batch.number))

    def _on_job_failed(self, event: events.JobFailed) -> None:
        batch = self._running(event.batch, BatchState.RUNNING)
        batch.failed = True
        if event.is_broker_error:
            self._out.append(commands.MarkUnknown())
        if self._stopping or batch.lost:
            self._abort()
        # 1. Exactly once: workers of the failed job may still write. New producer identities fence them and abort the
        #    transaction; only then may the same range run again.
        # 2. At least once: nothing was committed, so positions stay, and the rows may be written twice.
        elif self._transactional:
            for slot in batch.slots:
                self._move_slot(slot, SlotState.UNKNOWN)
            self._enter(BatchState.RESOLVING)
            self._resolve()
        else:
            self._advance()

    def _on_commit_outcome(self, event: events.CommitOutcome) -> None:
        batch = self._running(event.batch, BatchState.COMMITTING)
        batch.take_outcome(event.errors)
        # 1. Slots without an error are committed and stay so. For the others the broker's offsets decide: the commit
        #    may have taken effect although its response was lost.
        if batch.errors and self._transactional:
            for slot in batch.errors:
                self._move_slot(slot, SlotState.UNKNOWN)
            self._enter(BatchState.RESOLVING)
            self._resolve()
            return
        # 2. At least once there is nothing to ask: a late OffsetCommit of this process could still arrive after any
        #    look-up.
        batch.decide_without_fencing()
        self._advance()

    def _resolve(self) -> None:
        """Ask the broker for outcomes, unless the next owner of the tasks has to do it."""
        batch = self._current()
        # Resolving may wait for brokers without limit. A stop must not, and the next owner of the tasks reads stable
        # offsets anyway.
        if self._stopping or batch.lost:
            self._abort()
            return
        unknown = tuple(slot for slot in sorted(batch.slots) if self._slots[slot] is SlotState.UNKNOWN)
        self._out.append(commands.Resolve(batch=batch.number, slots=unknown))

    def _on_offsets_read(self, event: events.OffsetsRead) -> None:
        batch = self._running(event.batch, BatchState.RESOLVING)
        unknown = [slot for slot in batch.slots if self._slots[slot] is SlotState.UNKNOWN]
        batch.decide_by_offsets(unknown, event.offsets)
        self._advance()

    def _abort(self) -> None:
        batch = self._current()
        # Stores and positions of these tasks are not decided here, so they are opened anew if they are still assigned.
        batch.reopen |= batch.tasks - batch.committed
        self._work(BatchState.ABORTING, commands.Abort(batch=batch.number))

    def _on_aborted(self, event: events.Aborted) -> None:
        batch = self._running(event.batch, BatchState.ABORTING)
        # Some slots were committed before the stop or the loss: their tasks take their new positions.
        if batch.committed:
            self._advance()
            return
        self._end_batch()

    def _advance(self) -> None:
        batch = self._current()
        advance = commands.Advance(
            batch=batch.number,
            committed=frozenset(batch.committed),
            # Three disjoint sets that cover the batch: committed, as it was before, uncertain.
            unchanged=batch.tasks - batch.committed - batch.reopen,
            reopen=frozenset(batch.reopen),
            resolved=frozenset(batch.resolved),
            error=next(iter(batch.errors.values()), None),
        )
        self._work(BatchState.ADVANCING, advance)

    def _on_advanced(self, event: events.Advanced) -> None:
        batch = self._running(event.batch, BatchState.ADVANCING)
        # The cause of a failed job is looked for last, when nothing of the batch is open any more: the search itself
        # runs Spark jobs.
        if batch.failed:
            self._work(BatchState.RECOVERING, commands.Recover(batch=batch.number))
            return
        self._not_before_ms = batch.started_ms + self._trigger_interval_ms
        error = batch.error_to_report(transactional=self._transactional)
        if error is not None:
            if not is_retriable(error):
                self._work(BatchState.ENDED, commands.Fail(error=error))
                return
            self._not_before_ms = max(self._not_before_ms, self._now_ms + RETRY_BACKOFF_MS)
        self._end_batch()

    def _on_recovered(self, event: events.Recovered) -> None:
        batch = self._running(event.batch, BatchState.RECOVERING)
        batch.reopen |= event.reopen
        self._not_before_ms = batch.started_ms + self._trigger_interval_ms
        self._end_batch()

    def _end_batch(self) -> None:
        batch = self._current()
        # Whatever became of them, the next `begin` gives each slot a usable identity.
        for slot in batch.slots:
            if self._slots[slot] is not SlotState.READY:
                self._move_slot(slot, SlotState.READY)
        self._become_idle(reopen=batch.reopen)
        self._continue()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _become_idle(self, reopen: Iterable[int] = ()) -> None:
        self._batch = None
        self._enter(BatchState.IDLE)
        self._reopen(reopen)
        self._reconcile_tasks()

    def _work(self, state: BatchState, command: Work) -> None:
        self._enter(state)
        self._out.append(command)

    def _enter(self, state: BatchState) -> None:
        self._state = step(BATCH_STEPS, self._state, state, f"{self._name}: the micro-batch")

    def _expect(self, state: BatchState) -> None:
        if self._state is not state:
            raise IllegalStep(f"{self._name}: expected state {state.value}, found {self._state.value}")

    def _running(self, number: int, state: BatchState) -> Batch:
        self._expect(state)
        batch = self._current()
        if batch.number != number:
            raise IllegalStep(f"{self._name}: an event of batch {number} during batch {batch.number}")
        return batch

    def _current(self) -> Batch:
        assert self._batch is not None
        return self._batch

    def _move(self, task: int, after: TaskState) -> None:
        before = self._tasks.get(task, TaskState.AWAY)
        if before is after:
            return
        step(TASK_STEPS, before, after, f"{self._name}: task {task}")
        if after is TaskState.AWAY:
            del self._tasks[task]
            del self._placed[task]
            self._requests.pop(task, None)
        else:
            self._tasks[task] = after

    def _move_slot(self, slot: int, after: SlotState) -> None:
        before = self._slots.get(slot, SlotState.AWAY)
        self._slots[slot] = step(SLOT_STEPS, before, after, f"{self._name}: slot {slot}")


_HANDLERS: Mapping[type[Any], Callable[[SubtopologyMachine, Any], None]] = {
    events.SlotHello: SubtopologyMachine._on_slot_hello,
    events.SlotLost: SubtopologyMachine._on_slot_lost,
    events.Assigned: SubtopologyMachine._on_assigned,
    events.Lost: SubtopologyMachine._on_lost,
    events.StopRequested: SubtopologyMachine._on_stop_requested,
    events.Opened: SubtopologyMachine._on_opened,
    events.OpenFailed: SubtopologyMachine._on_open_failed,
    events.Woken: SubtopologyMachine._on_woken,
    events.EndsSeen: SubtopologyMachine._on_ends_seen,
    events.Began: SubtopologyMachine._on_began,
    events.JobFinished: SubtopologyMachine._on_job_finished,
    events.JobFailed: SubtopologyMachine._on_job_failed,
    events.CommitOutcome: SubtopologyMachine._on_commit_outcome,
    events.OffsetsRead: SubtopologyMachine._on_offsets_read,
    events.Aborted: SubtopologyMachine._on_aborted,
    events.Advanced: SubtopologyMachine._on_advanced,
    events.Recovered: SubtopologyMachine._on_recovered,
    events.EndedChecked: SubtopologyMachine._on_ended_checked,
    events.BrokerUnreachable: SubtopologyMachine._on_broker_unreachable,
    events.ActionFailed: SubtopologyMachine._on_action_failed,
}
