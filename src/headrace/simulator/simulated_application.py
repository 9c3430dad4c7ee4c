"""A simulated application: a real `StreamsMembership` and a minimal model of what a Spark driver does with tasks.

It opens a task some time after its assignment (position = committed offset), processes, commits with the epoch captured
when the batch was planned, commits and closes a task before it gives it back, and drops all tasks when they are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace.client.membership import events as e
from headrace.client.membership.assignment import Tasks, task_ids
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.request_manager import NEVER_MS, Outgoing
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.errors import HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.simulator.broker_answers import CommitRefused
from headrace.simulator.commit_queue import commit_request
from headrace.simulator.event_queue import EventQueue
from headrace.simulator.network import Connection, NetworkConditions
from headrace.simulator.simulated_broker import BrokerUnavailable, SimulatedBroker
from headrace.simulator.topologies import Shape, Task

__all__ = ["SimulatedApplication", "WorkloadProfile"]

RETRY_MS = 100
# OffsetCommit 9 checks member epochs (KIP-848) and still names topics; version 10 carries their ids.
COMMIT_API_VERSION = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Speed of an application. `closing_ms` beyond the rebalance timeout gets it fenced."""

    opening_ms: tuple[int, int] = (1, 200)
    closing_ms: tuple[int, int] = (1, 400)
    batch_ms: tuple[int, int] = (150, 700)
    late_commit_ms: tuple[int, int] = (1, 4_000)
    rebalance_timeout_ms: int = 5_000
    session_timeout_ms: int = 8_000


class SimulatedApplication:
    """Mutable: one process. Nothing happens in it while it is paused or after it was killed."""

    def __init__(
        self,
        *,
        name: str,
        process_id: str,
        instance_id: str | None,
        group_id: str,
        shape: Shape,
        profile: WorkloadProfile,
        broker: SimulatedBroker,
        events: EventQueue,
        conditions: NetworkConditions,
        random: Random,
        note: Callable[[str], None],
    ) -> None:
        self.name = name
        self.process_id = process_id
        self.instance_id = instance_id
        self._group_id = group_id
        self._shape = shape
        self._profile = profile
        self._broker = broker
        self._events = events
        self._random = random
        self._tell_world = note
        self.membership = StreamsMembership(
            group_id,
            name,
            process_id,
            shape.topology,
            chance=random.random,
            rebalance_timeout_ms=profile.rebalance_timeout_ms,
            session_timeout_ms=profile.session_timeout_ms,
            instance_id=instance_id,
            # Descriptions of the group in between must not change what members do; a third of the applications send
            # them.
            early_look=random.random() < 0.3,
        )
        # Two connections, as the guardian's and the driver's: a commit may overtake the heartbeat that would have told
        # of a new epoch.
        self._heartbeats = Connection(events, conditions, random)
        self._commits = Connection(events, conditions, random)
        self.open: dict[Task, int] = {}  # active tasks that run → next position
        self._opening: set[Task] = set()
        self._closing: set[Task] = set()
        self._epoch = 0  # of the last batch that was planned
        self._life = 0  # what was begun in an earlier one has no effect
        self._committing = False
        self.alive = True
        self.leaving = False
        self.paused_until_ms = 0
        self.fatal: HeadraceError | None = None
        self._wake_ms = NEVER_MS
        self.membership.join(events.now_ms)
        self._poll_membership()
        self._plan_batch()

    # --- what the world does to it ---

    def kill(self) -> None:
        self.alive = False
        self._heartbeats.close()
        self._commits.close()
        self.open.clear()
        self._note("is killed")

    def succeeded(self) -> None:
        """Killed before; now another process has its ids."""
        self._heartbeats.cut()
        self._commits.cut()

    def pause(self, duration_ms: int) -> None:
        """Pause the whole process; responses wait in its socket."""
        self.paused_until_ms = self._events.now_ms + duration_ms
        self._note(f"stands still for {duration_ms} ms")
        self._events.at(self.paused_until_ms, self._poll_membership)

    def leave(self, *, for_a_while: bool = False) -> None:
        self.leaving = True
        self._note("leaves for a while" if for_a_while else "leaves")
        self.membership.leave(self._events.now_ms, for_a_while=for_a_while)
        self._poll_membership()

    @property
    def runs(self) -> bool:
        """Whether it does anything at this moment."""
        return self.alive and self._events.now_ms >= self.paused_until_ms

    @property
    def has_left(self) -> bool:
        return self.membership.state is MemberState.UNSUBSCRIBED

    # --- heartbeats ---

    def _poll_membership(self) -> None:
        """Poll the membership, send its requests and handle its events."""
        if not self.runs:
            return
        result = self.membership.poll(self._events.now_ms)
        self._handle_events()
        for outgoing in result.requests:
            self._send(outgoing)
        if result.next_poll_ms < NEVER_MS:
            self._wake_at(result.next_poll_ms)

    def _wake_at(self, time_ms: int) -> None:
        if self._events.now_ms < self._wake_ms <= time_ms:
            return  # an earlier look is planned and will plan the next
        self._wake_ms = time_ms
        self._events.at(time_ms, self._poll_membership)

    def _send(self, outgoing: Outgoing) -> None:
        request = outgoing.request
        self._heartbeats.call(
            lambda answer: self._broker.serve(request, self.name, answer),
            answered=lambda response: self._when_running(lambda: self._answered(response)),
            failed=lambda: self._when_running(self._failed),
        )

    def _answered(self, response: object) -> None:
        self.membership.on_response(response, self._events.now_ms)
        self._handle_events()
        self._poll_membership()

    def _failed(self) -> None:
        self.membership.on_failure(self._events.now_ms)
        self._handle_events()
        self._poll_membership()

    def _when_running(self, action: Callable[[], None]) -> None:
        """Now, or when the pause is over: a process that wakes finds the answer after its own clock has gone on."""
        if not self.alive:
            return
        if self._events.now_ms < self.paused_until_ms:
            self._events.at(self.paused_until_ms, lambda: self._when_running(action))
        else:
            action()

    # --- tasks ---

    def _handle_events(self) -> None:
        for event in self.membership.take_events():
            match event:
                case e.Assigned(assignment=assignment):
                    self._take(assignment.active, {})
                case e.AssignmentChanged(added=added, revoked=revoked):
                    self._take(added, revoked)
                case e.Lost(reason=reason):
                    self._note(f"loses its tasks: {reason}")
                    self._life += 1
                    self._commit_too_late()
                    self.open.clear()
                    self._opening.clear()
                    self._closing.clear()
                case e.Fatal(error=error):
                    self._note(f"meets a fatal error: {error}")
                    self.fatal = error
                case _:
                    pass

    def _take(self, added: Tasks, revoked: Tasks) -> None:
        given, taken = task_ids(added), task_ids(revoked)
        for task in given:
            # A task that comes back while it is being closed is opened again after the close; one that runs goes on.
            if task in self._closing or task not in self.open:
                self._opening.add(task)
        self._opening -= taken
        self._closing |= taken & self.open.keys()
        life = self._life
        self._after(self._profile.opening_ms, lambda: self._open(life, given))
        if taken:
            self._after(self._profile.closing_ms, lambda: self._close(life))
        else:
            self._acknowledge()

    def _open(self, life: int, tasks: frozenset[Task]) -> None:
        if life != self._life:
            return
        ready = {task for task in tasks & self._opening if task not in self._closing}
        try:
            positions = {task: self._committed(task) for task in sorted(ready)}
        except BrokerUnavailable:
            self._events.after(RETRY_MS, lambda: self._when_running(lambda: self._open(life, tasks)))
            return
        for task, position in positions.items():
            self.open.setdefault(task, position)
        self._opening -= ready

    def _close(self, life: int) -> None:
        """The last commit of the tasks to give back; then they are let go, whatever became of the commit."""
        # Tasks that were lost in the meantime are not this life's to commit or to acknowledge.
        if life != self._life or not self._closing:
            return
        closing = frozenset(self._closing & self.open.keys())
        # The acknowledgement names the assignment that it answers: a newer one may have arrived during the commit, and
        # it has its own tasks to close.
        version = self.membership.assignment.version

        def let_go(_: object = None) -> None:
            if life != self._life:
                return
            for task in closing:
                self.open.pop(task, None)
            self._closing -= closing
            again = frozenset(self._opening & closing)
            if again:
                self._after(self._profile.opening_ms, lambda: self._open(life, again))
            self._acknowledge(version)

        self._commit({task: self.open[task] for task in closing}, let_go)

    def _acknowledge(self, version: int | None = None) -> None:
        owned: dict[str, list[int]] = {}
        for subtopology_id, partition in sorted(self.open.keys() | self._opening):
            owned.setdefault(subtopology_id, []).append(partition)
        self.membership.acknowledge(owned, self._events.now_ms, version=version)
        self._poll_membership()

    # --- micro-batches ---

    def _plan_batch(self) -> None:
        self._after(self._profile.batch_ms, self._run_batch)

    def _run_batch(self) -> None:
        """Process some records of every open task and commit them with the current epoch."""
        if self.alive and not self.has_left and self.fatal is None:
            # The epoch is captured at the plan and not at the commit: a batch that outlives its assignment must be
            # refused, and would not be if it asked for the newest epoch at the end (Kafka accepts the current epoch for
            # a task of another member).
            self._epoch = self.membership.assignment.member_epoch
            for task in self.open:
                self.open[task] += self._random.randint(0, 5)
            stores = {task: position for task, position in self.open.items() if task[0] in self._shape.stateful}
            self.membership.report_offsets(stores)
            if self.open and not self._committing:
                self._committing = True
                self._commit(dict(self.open), self._batch_committed)
            self._plan_batch()

    def _batch_committed(self, _: object = None) -> None:
        self._committing = False

    def _commit_too_late(self) -> None:
        """Commit the batch of a worker that does not know that its tasks were lost."""
        offsets, epoch = dict(self.open), self._epoch
        # Workers of a Spark job do not learn of a lost membership. Up to 4 s later is within and beyond the next
        # owner's first commit.
        if offsets and self._random.random() < 0.5:
            self._after(self._profile.late_commit_ms, lambda: self._commit(offsets, lambda _: None, epoch=epoch))

    def _commit(self, offsets: dict[Task, int], done: Callable[[object], None], *, epoch: int | None = None) -> None:
        if not offsets:
            done(None)
            return
        request = commit_request(
            self._group_id,
            self.name,
            self.membership.assignment.member_epoch if epoch is None else epoch,
            {(self._shape.read_topic[name], number): offset for (name, number), offset in sorted(offsets.items())},
        )
        self._commits.call(
            lambda answer: self._broker.serve(request, self.name, answer, api_version=COMMIT_API_VERSION),
            answered=lambda answer: self._when_running(lambda: self._commit_answered(answer, done)),
            failed=lambda: self._when_running(lambda: done(None)),
        )

    def _commit_answered(self, answer: object, done: Callable[[object], None]) -> None:
        if isinstance(answer, CommitRefused):
            self._note(f"has a commit refused: {answer.code.name}")
        elif isinstance(answer, m.offset_commit_response.OffsetCommitResponse):
            refused = [p for topic in answer.topics for p in topic.partitions if p.error_code != ErrorCode.none]
            if refused:
                self._note(f"has {len(refused)} partitions of a commit refused: {refused[0].error_code.name}")
        done(answer)

    def _committed(self, task: Task) -> int:
        return self._broker.committed(self._group_id, self._shape.read_topic[task[0]], task[1])

    # --- parts ---

    def _after(self, bounds_ms: tuple[int, int], action: Callable[[], None]) -> None:
        self._events.after(self._random.randint(*bounds_ms), lambda: self._when_running(action))

    def _note(self, text: str) -> None:
        self._tell_world(f"{self.name} {text}")
