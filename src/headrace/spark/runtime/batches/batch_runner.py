"""The loop of one subtopology: feeds its machine with events, and executes the commands that come out.

`SubtopologyMachine` decides which tasks run, when a micro-batch runs and what becomes of it; `command_executor` does
the work. Workers prepare, the driver commits, with the member id and the epoch captured when the batch was planned,
after the whole Spark job has succeeded. Without input there is no Spark job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import CannotConnect, Fenced, HeadraceError
from headrace.spark.machine import commands, events
from headrace.spark.machine.commands import Command, Work
from headrace.spark.machine.events import Event
from headrace.spark.machine.states import BatchState, TaskState
from headrace.spark.machine.subtopology_machine import SubtopologyMachine
from headrace.spark.runtime.batches.job_runner import JobRunner
from headrace.spark.runtime.batches.task_inputs import BrokerInputs
from headrace.spark.runtime.chains import input_topics
from headrace.spark.runtime.command_executor import CommandExecutor
from headrace.spark.runtime.progress import SubtopologyProgress
from headrace.spark.runtime.slots.cluster_runner import ClusterRunner
from headrace.spark.runtime.stores.store_records import BatchKey
from headrace.spark.runtime.stores.store_restorer import StoreRestorer
from headrace.spark.runtime.task_opener import TaskOpener
from headrace.spark.runtime.tasks import RunningTask
from headrace.spark.topology.nodes import CompiledSubtopology, RepartitionSource, TopicSource

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["SubtopologyRunner"]

log = logging.getLogger("headrace.spark")


class SubtopologyRunner:
    """Drives the machine of one subtopology.

    The machine and the tasks are guarded by `_lock`. Work is done in the runner's thread; while the machine is between
    micro-batches, other threads may bind and release tasks.
    """

    def __init__(
        self, runtime: RunningInstance, subtopology: CompiledSubtopology, jobs: JobRunner | ClusterRunner
    ) -> None:
        self._runtime, self.subtopology, self._jobs = runtime, subtopology, jobs
        self.name = subtopology.subtopology_id
        self.progress = SubtopologyProgress(self.name, input_topics(subtopology))
        self._lock = threading.Condition()
        self._machine = SubtopologyMachine(
            self.name,
            transactional=runtime.plan_factory.exactly_once,
            trigger_interval_ms=runtime.trigger_interval_ms,
        )
        self._tasks: dict[int, RunningTask] = {}
        self._opened: dict[tuple[int, int], RunningTask] = {}  # by request and task, until they are bound
        self._released: dict[int, RunningTask] = {}  # the last opening of each task that is not here any more
        self._work: deque[Work] = deque()
        self.may_leave_transactions = False  # whether transactions may be open after the end
        self._executor = self._make_executor()
        self._restorer = (
            StoreRestorer(runtime, subtopology, jobs, self.progress, self._executor.next_batch)
            if subtopology.changelog_topics
            else None
        )
        self._opener = TaskOpener(
            subtopology,
            group_id=runtime.group_id,
            auto_offset_reset=runtime.auto_offset_reset,
            client=runtime.network_client(),
            host=self,
            schemas=runtime.schemas,
            restorer=self._restorer,
            tables=self._executor.tables,
            make_thread=runtime.make_thread,
        )
        self._thread = runtime.make_thread(target=self._loop, name=f"headrace-{self.name}", daemon=True)

    def _make_executor(self) -> CommandExecutor:
        runtime, subtopology = self._runtime, self.subtopology
        client = runtime.network_client()
        internal = frozenset(s.topic for s in subtopology.sources if isinstance(s, RepartitionSource))
        return CommandExecutor(
            runtime,
            subtopology,
            self._jobs,
            self._tasks,
            self.progress,
            inputs=BrokerInputs(client, runtime.network_client(), internal),
            commit=runtime.plan_factory.batch_commit(
                subtopology,
                client,
                announce=runtime.announce_transactions,
                forget=runtime.forget_transactions,
                epochs=runtime.commit_epochs,
            ),
            limits=runtime.plan_factory.batch_limits(self.name),
            spans=runtime.spans,
        )

    # -- called by other threads --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def assign(self, snapshot: AssignmentSnapshot) -> None:
        """Open new tasks at once; release others when their micro-batch has ended."""
        self._report(events.Assigned(assignment=snapshot))

    def lose(self) -> None:
        """Drop all tasks. The current micro-batch is not committed."""
        self._report(events.Lost())

    def stop(self) -> None:
        """Finish the micro-batch, commit, and end. A restore is cancelled; a later one continues from its position."""
        self._report(events.StopRequested())

    def abandon(self) -> None:
        """End without finishing: the current micro-batch will not be committed."""
        self._report(events.Lost())
        self._executor.end()
        self.cancel()

    def join(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the micro-batch to end, and return whether it has."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        # The opener's thread waits for the job, so it is cancelled before the opener is closed.
        self._cancel_group(self._jobs.restore_group)  # a restore that began during the stop
        self._opener.close()
        self._executor.close()
        self._jobs.close()

    def has_taken(self, snapshot: AssignmentSnapshot) -> bool:
        """Whether no task outside of `snapshot` is still running."""
        with self._lock:
            return self._machine.has_released(snapshot)

    def cancel(self) -> None:
        """Cancel a batch that does not end, as the last resort: its Python workers are killed."""
        self._cancel_group(self._jobs.group)

    @property
    def records_limit(self) -> int:
        """Records per task that the next micro-batch may take."""
        return self._executor.limits.records

    @property
    def losses(self) -> int:
        """How often its tasks were lost."""
        return self._machine.losses

    @property
    def last_active_s(self) -> float:
        """Time (monotonic) at which work was begun last."""
        return self._executor.last_active_s

    @property
    def batch_since(self) -> float | None:
        """Time (monotonic) at which the micro-batch under way was started."""
        # The executor learns of the end with its next work, which comes after the trigger interval.
        return None if self._machine.state is BatchState.IDLE else self._executor.batch_since

    @property
    def reads_user_topics(self) -> bool:
        """Whether records of the outside world enter the application here."""
        return any(isinstance(source, TopicSource) for source in self.subtopology.sources)

    def tasks(self) -> list[RunningTask]:
        with self._lock:
            return list(self._tasks.values())

    def committed(self) -> dict[int, BatchKey | None]:
        """Return the last committed micro-batch of each task that runs here and is not lost."""
        with self._lock:
            states = self._machine.tasks
            return {
                partition: task.committed
                for partition, task in self._tasks.items()
                # Lost ones run until their micro-batch ends, and another member may have them already.
                if states.get(partition) in (TaskState.RUNNING, TaskState.RELEASING)
            }

    def opening(self) -> list[int]:
        with self._lock:
            return self._machine.opening

    def slot_places(self) -> dict[int, str]:
        """Return host and executor of each slot; none where slots are threads of this host."""
        return self._jobs.slot_places()

    # -- called by the opener -----------------------------------------------------------------------------------------

    def is_opening(self, request: commands.Open) -> bool:
        """Whether a task still waits for this request."""
        with self._lock:
            return self._machine.is_opening(request.number)

    def newest_assignment(self, request: commands.Open) -> AssignmentSnapshot:
        """Return the latest assignment, which is the one of `request` or a later one.

        Raises:
            Fenced: A task of the request is not assigned any more.
        """
        with self._lock:
            newest = self._machine.assignment_of(request)
        if newest is None:
            raise Fenced(
                "member-fenced",
                f"Tasks of {self.name} were revoked while they were opened",
                "No action needed: their next owner opens them.",
            )
        return newest

    def take_opened(self, request: commands.Open, tasks: list[RunningTask]) -> None:
        """Run these tasks from the next micro-batch on, if they are still assigned."""
        with self._lock:
            self._opened |= {(request.number, task.partition): task for task in tasks}
        self._report(events.Opened(number=request.number, partitions=tuple(task.partition for task in tasks)))

    def take_open_failure(self, failure: events.OpenFailed) -> None:
        """Repeat the request later, or end the application."""
        self._report(failure)

    # -- events and commands ------------------------------------------------------------------------------------------

    def _report(self, event: Event) -> None:
        """Feed an event of another thread, and wake the loop."""
        # 1. Under the lock the machine takes the event and tasks are bound or released. No I/O happens here, so the
        #    member thread is never held up by a micro-batch.
        with self._lock:
            found = self._feed(event)
            self._lock.notify_all()
        # 2. The loop may wait in the poller of inputs, which knows nothing of the lock.
        self._executor.inputs.wake()
        # 3. Commands for this thread; those for the loop come from its own events only.
        for command in found:
            match command:
                case commands.CancelOpenings():
                    self._cancel_openings()
                case commands.Fail(error=error):
                    self._runtime.fail(error)

    def _feed(self, event: Event) -> list[Command]:
        """Apply the machine's commands about tasks, and return all other commands. The caller holds the lock."""
        others: list[Command] = []
        for command in self._machine.handle(event, int(time.monotonic() * 1000)):
            match command:
                case commands.Open():
                    self._opener.open(command)
                case commands.Bind(partition=partition, number=number):
                    task = self._tasks[partition] = self._opened.pop((number, partition))
                    if partition in self._released:
                        task.remember(self._released.pop(partition))
                case commands.Release(partitions=partitions):
                    for partition in partitions:
                        self._released[partition] = self._tasks.pop(partition)
                case _:
                    others.append(command)
        if not self._machine.opening:
            self._opened.clear()  # of requests that were dropped meanwhile
        return others

    def _cancel_openings(self) -> None:
        if self._restorer is not None:
            self._restorer.cancel()
        self._cancel_group(self._jobs.restore_group)

    def _cancel_group(self, group: str) -> None:
        try:
            self._runtime.spark.sparkContext.cancelJobGroup(group)
        except Exception as error:  # noqa: BLE001 - a stopped session raises many kinds of errors here
            log.debug("%s: jobs were not cancelled: %s", self.name, error)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            self._answer(self._jobs.first_hello())
            self._jobs.watch_slots(self._report)
            # One piece of work at a time. Its events put the next one into the queue, so the queue is empty only after
            # `End`.
            while not isinstance(work := self._work.popleft(), commands.End):
                self._do(work)
            error = self._executor.finish()
            if error is not None:
                self.may_leave_transactions = True
                log.info("%s: the next process resolves what a broker left open: %s", self.name, error)
            if not self._runtime.is_failed:
                self._executor.publish_tables()
        except Exception as error:
            # Rows of the last micro-batch are read again by the next owner; a stop does not wait for a broker that is
            # away.
            if self._machine.is_stopping and isinstance(error, CannotConnect):
                log.warning("%s stops with its last micro-batch undone: %s", self.name, error)
                return
            if isinstance(error, HeadraceError):
                self._runtime.fail(error)
                return
            log.exception("the loop of %s ended", self.name)
            self._runtime.fail(HeadraceError("runtime-failed", f"the runtime of {self.name} failed: {error!r}"))

    def _do(self, work: Work) -> None:
        match work:
            case commands.Wait(until_ms=until_ms):
                self._executor.tick()
                with self._lock:
                    pause_s = max(0.0, until_ms / 1000 - time.monotonic())
                    # `wait_for` returns at once for a stop; every other event has to wait for the pause, such as a
                    # backoff.
                    self._lock.wait_for(lambda: self._machine.is_stopping, pause_s)
                self._answer(events.Woken())
            case commands.WaitForInput():
                self._executor.tick()
                with self._lock:
                    positions = [dict(task.positions) for task in self._tasks.values()]
                self._executor.inputs.wait(positions)
                self._answer(events.Woken())
            case commands.Fail(error=error):
                raise error
            case _:
                for event in self._executor.execute(work):
                    self._answer(event)

    def _answer(self, event: Event) -> None:
        """Feed an event of this thread."""
        with self._lock:
            found = self._feed(event)
        for command in found:
            match command:
                case commands.MarkUnknown():
                    self._executor.mark_unknown()
                case commands.CancelOpenings():
                    self._cancel_openings()
                case commands.Open() | commands.Bind() | commands.Release():
                    pass  # done
                case _:
                    self._work.append(command)
