"""Resident slots of one subtopology, seen from the driver: their Spark jobs, their links, one micro-batch at a time.

Each slot is a Spark job of its own. In one job for all slots Spark would end every slot when one fails, and
`spark.task.maxFailures` would count the failures of a month.

A slot that fails ends: its link closes at once, and its job ends with Spark's exception. The driver waits until every
other slot has answered, so that no slot writes into a micro-batch that is being undone; then the failure takes the
same way as the failure of a micro-batch job. The next micro-batch starts the slot again.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from headrace.spark.runtime.chains import Chains
from headrace.spark.runtime.plan import MicroBatchPlan, SlotPlan, StageReport
from headrace.spark.runtime.prepared_plan import PreparedPlan
from headrace.spark.runtime.resident_stage import ResidentStage
from headrace.spark.runtime.slot_link import LinkClosed, SlotLink, SlotListener
from headrace.spark.runtime.stages import REPORT_SCHEMA, PythonStage
from headrace.spark.spark_session import threads_of

__all__ = ["ResidentSlots", "ResidentThreads", "SlotLost"]

log = logging.getLogger("headrace.spark")
START_S = 120.0  # the first Python worker of a session imports for seconds, on a loaded machine for many
_THREADS_FOR_JOBS = 2  # restores and the search for bad records run beside resident slots
_KILLS_IDLE = "spark.python.worker.killOnIdleTimeout"
ENDING_S = 10.0  # from a closed link to the end of its Spark job


class ResidentThreads:
    """Threads of a session that resident slots may hold. Mutable: each subtopology with resident slots takes some."""

    def __init__(self, spark: SparkSession, execution: str) -> None:
        """`execution`: the setting `headrace.execution`."""
        self._execution = execution
        self._left = threads_of(spark) - _THREADS_FOR_JOBS
        self._kills_idle = str(spark.conf.get(_KILLS_IDLE, "false")) == "true"

    def take(self, name: str, chains: Chains, slots: int) -> bool:
        """Take the threads of a subtopology's slots, if it can have resident ones and is to have them.

        Raises:
            ConfigError: `resident-impossible` if `headrace.execution` demands what is not possible.
        """
        if self._execution == "micro-batch":
            return False
        obstacle = self._obstacle(chains, slots)
        if obstacle is None:
            self._left -= slots
            return True
        reason, fix = obstacle
        if self._execution == "resident":
            raise ConfigError("resident-impossible", f"subtopology {name} cannot have resident slots: {reason}", fix)
        # Spark SQL is the program's own, and nothing to be reported; a session that is too small may be an oversight.
        level = logging.INFO if chains.resident else logging.DEBUG
        log.log(level, "%s runs a Spark job for each micro-batch: %s", name, reason)
        return False

    def _obstacle(self, chains: Chains, slots: int) -> tuple[str, str] | None:
        """Return why a subtopology cannot have resident slots, and what to do; None if it can."""
        if not chains.resident:
            return "Spark SQL or foreachBatch stands between its source and its sinks", 'headrace.execution="auto"'
        if self._kills_idle:
            return f"{_KILLS_IDLE} is true, and a slot is idle when no record arrives", f"Set {_KILLS_IDLE} to false"
        if slots > self._left:
            return (
                f"it needs {slots} threads of Spark's executor, {max(0, self._left)} are left",
                f"Leave the master out, or name local[N], N being the slots of all subtopologies + {_THREADS_FOR_JOBS}",
            )
        return None


class SlotLost(Exception):
    """A resident slot ended, and Spark reported no reason."""


@dataclass(slots=True)
class _Slot:
    """One started slot. Mutable: the thread that waits for its job sets `error`."""

    number: int
    thread: threading.Thread | None = None
    link: SlotLink | None = None
    error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class ResidentSlots:
    """Resident slots of one subtopology. Mutable: belongs to the thread of its runner, except `close`."""

    def __init__(
        self, spark: SparkSession, chains: Sequence[PythonStage], slots: int, *, name: str, group: str, description: str
    ) -> None:
        """Prepare slots; none is started.

        Args:
            spark: the session.
            chains: the stages that a slot runs for each micro-batch, one after another. Each is a whole chain.
            slots: how many.
            name: of the subtopology, whose scheduler pool the jobs run in.
            group: Spark job group: to cancel it ends the slots.
            description: of the application, for Spark's screens.
        """
        self._spark, self._chains, self._count = spark, tuple(chains), slots
        self._name, self._group, self._description = name, group, description
        self._listener = SlotListener()
        self._slots = {number: _Slot(number) for number in range(slots)}
        self._is_closed = False

    def start(self) -> None:
        """Start all slots that do not run.

        Raises:
            SlotLost: a slot did not say hello, and Spark does not say why.
            Exception: Spark's, if the job of a slot failed.
        """
        self._start(range(self._count))

    def process(self, plan: MicroBatchPlan) -> list[StageReport]:
        """Run a micro-batch, and start the slots that it needs and that do not run.

        Raises:
            SlotLost: a slot ended, and Spark does not say why.
            Exception: Spark's, of the first slot whose job failed. The other slots have finished.
        """
        numbers = [slot.slot for slot in plan.slots]
        self._start(numbers)
        for slot in plan.slots:
            self._send(self._slots[slot.slot], replace(plan, slots=(slot,)))
        return self._answers(numbers)

    def warm_up(self, plan: MicroBatchPlan) -> None:
        """Start all slots, and run a plan without tasks on each. Raises as `process`."""
        self.process(replace(plan, slots=tuple(SlotPlan(slot=number, tasks=()) for number in range(self._count))))

    @property
    def pids(self) -> dict[int, int]:
        """The worker processes of the running slots."""
        return {slot.number: slot.link.pid for slot in self._slots.values() if slot.link is not None}

    def close(self) -> None:
        """End all slots: each finishes the micro-batch that it runs."""
        self._is_closed = True
        self._listener.close()
        for slot in self._slots.values():
            if slot.link is not None:
                slot.link.close()
        deadline = time.monotonic() + ENDING_S
        for slot in self._slots.values():
            if slot.thread is not None:
                slot.thread.join(max(0.0, deadline - time.monotonic()))
        if any(slot.is_running for slot in self._slots.values()):
            log.warning("%s: resident slots did not end within %d s; cancelling their jobs", self._name, ENDING_S)
            self._spark.sparkContext.cancelJobGroup(self._group)

    def _start(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if not self._slots[number].is_running:
                self._forget_link(self._slots[number])  # it ended between two micro-batches: nothing is lost
        missing = {number: self._slots[number] for number in numbers if self._slots[number].link is None}
        if not missing:
            return
        for slot in missing.values():
            if slot.is_running:  # it was too late for an earlier start, and waits to be accepted
                continue
            slot.error = None
            slot.thread = threading.Thread(
                target=inheritable_thread_target(self._spark)(self._job_of(slot)),
                name=f"headrace-{self._name}-slot-{slot.number}",
                daemon=True,
            )
            slot.thread.start()
        deadline = time.monotonic() + START_S
        links = self._listener.accept(
            set(missing),
            gives_up=lambda: (
                self._is_closed or time.monotonic() > deadline or not all(slot.is_running for slot in missing.values())
            ),
        )
        for number, link in links.items():
            missing[number].link = link
            log.debug("%s: slot %d is process %d", self._name, number, link.pid)
        for slot in missing.values():
            if slot.link is None:
                raise self._reason(slot)

    def _job_of(self, slot: _Slot) -> Callable[[], None]:
        stage = ResidentStage(
            slot=slot.number, chains=self._chains, address=self._listener.address, token=self._listener.token
        )

        def run() -> None:
            try:
                context = self._spark.sparkContext
                context.setLocalProperty("spark.scheduler.pool", self._name)
                what = f"{self._description} {self._name}: slot {slot.number}"
                context.setJobGroup(self._group, what, interruptOnCancel=True)
                rows = self._spark.range(0, 1, 1, 1).mapInArrow(stage, REPORT_SCHEMA)
                PreparedPlan(lambda: rows).collect()
            except BaseException as error:  # noqa: BLE001 - raised by the runner's thread
                slot.error = error

        return run

    def _send(self, slot: _Slot, plan: MicroBatchPlan) -> None:
        assert slot.link is not None
        with contextlib.suppress(LinkClosed):  # its answer will be the end of the link
            slot.link.send({"plan": plan.to_json()})

    def _answers(self, numbers: Sequence[int]) -> list[StageReport]:
        """Wait until every slot has answered or ended."""
        reports: dict[int, list[StageReport]] = {}
        lost: list[_Slot] = []
        with selectors.DefaultSelector() as waiting:
            for number in numbers:
                slot = self._slots[number]
                assert slot.link is not None
                waiting.register(slot.link, selectors.EVENT_READ, slot)
            while waiting.get_map():
                for key, _ in waiting.select():
                    slot, link = key.data, key.fileobj
                    assert isinstance(link, SlotLink)
                    answer = link.receive()
                    waiting.unregister(link)
                    if answer is None:
                        lost.append(slot)
                    else:
                        reports[slot.number] = [StageReport.from_json(text) for text in answer["reports"]]
        errors = [self._reason(slot) for slot in lost]
        if errors:
            raise errors[0]
        return [report for number in numbers for report in reports[number]]

    @staticmethod
    def _forget_link(slot: _Slot) -> None:
        if slot.link is not None:
            slot.link.close()
            slot.link = None

    def _reason(self, slot: _Slot) -> BaseException:
        """End a slot that failed. Return Spark's reason, as soon as Spark knows it."""
        self._forget_link(slot)
        if slot.thread is not None:
            slot.thread.join(ENDING_S)
        if slot.error is not None:
            return slot.error
        # In the words of a job whose worker is gone (`spark_errors.kind_of`).
        return SlotLost(f"Python worker exited unexpectedly: the link of the resident slot {slot.number} closed")
