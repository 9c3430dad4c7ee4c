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
import platform
import selectors
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from headrace.errors import ConfigError
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, StageReport
from headrace.spark.runtime.slots.marker_bypass import ENDED_EARLY
from headrace.spark.runtime.slots.resident_chains import ResidentChain, ResidentChains, resident_chains
from headrace.spark.runtime.slots.resident_stage import SlotEnd
from headrace.spark.runtime.slots.slot_link import LinkClosed, SlotLink, SlotListener
from headrace.spark.spark_session import threads_of
from headrace.spark.topology.nodes import CompiledSubtopology

__all__ = ["MarkersLost", "ResidentSlots", "ResidentThreads", "SlotLost", "impossible"]

log = logging.getLogger("headrace.spark")
MOST_RECORDS_WITH_SQL = 20_000  # of a slot in a micro-batch; then a job is as fast
MARKER_S = 60.0  # for Spark to compile and to pass the first marker, beside other programs on a loaded machine
START_S = 120.0  # the first Python worker of a session imports for seconds, on a loaded machine for many
_THREADS_FOR_JOBS = 2  # restores and the search for bad records run beside resident slots
TO_AUTO = 'Set headrace.execution to "auto"'
_KILLS_IDLE = "spark.python.worker.killOnIdleTimeout"
ENDING_S = 10.0  # from a closed link to the end of its Spark job


_held: dict[str, int] = {}  # threads held by resident slots of all applications in this process, by Spark application
_held_lock = threading.Lock()


class ResidentThreads:
    """Threads of a session that resident slots may hold. Mutable: each subtopology with resident slots takes some.

    Applications of one process share the session's threads: a second one that counted on those of the first would wait
    for a free thread for ever.
    """

    def __init__(self, spark: SparkSession, execution: str) -> None:
        """`execution`: the setting `headrace.execution`."""
        self._spark, self._execution = spark, execution
        self._context = str(spark.sparkContext.applicationId)
        self._threads = threads_of(spark) - _THREADS_FOR_JOBS
        self._taken = self._counted = 0
        self._kills_idle = str(spark.conf.get(_KILLS_IDLE, "false")) == "true"

    def take(self, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]) -> ResidentChains | None:
        """Take the threads of a subtopology's slots. Return its chains, or None if it is to have no resident slots.

        Args: as `build_chains`.

        Raises:
            ConfigError: `resident-impossible` if `headrace.execution` demands what is not possible.
        """
        if self._execution == "micro-batch":
            return None
        name, chains = subtopology.subtopology_id, resident_chains(self._spark, subtopology, slots, access)
        with _held_lock:
            obstacle = self._obstacle(chains, slots)
            if obstacle is None:
                assert not isinstance(chains, str)
                self._taken += slots * chains.count
                _held[self._context] = _held.get(self._context, 0) + slots * chains.count
        if obstacle is None:
            assert not isinstance(chains, str)
            return replace(chains, is_demanded=self._execution == "resident")
        reason, fix = obstacle
        if self._execution == "resident":
            raise impossible(name, reason, fix)
        # What the program needs is nothing to report; a session that is too small may be an oversight.
        level = logging.DEBUG if isinstance(chains, str) else logging.INFO
        log.log(level, "%s runs a Spark job for each micro-batch: %s", name, reason)
        return None

    def reason_for_jobs(self, subtopology: CompiledSubtopology, slots: int) -> str | None:
        """Return why a subtopology runs a Spark job for each micro-batch; None if it has resident slots.

        Counts their threads for the next subtopology, but holds none; raises nothing.
        """
        if self._execution == "micro-batch":
            return 'headrace.execution is "micro-batch"'
        chains = resident_chains(self._spark, subtopology, slots, {})
        obstacle = self._obstacle(chains, slots)
        if obstacle is not None:
            return obstacle[0]
        assert not isinstance(chains, str)
        self._counted += slots * chains.count
        return None

    def release(self) -> None:
        """Give the threads back, after the slots have ended. Calling it again changes nothing."""
        with _held_lock:
            _held[self._context] = _held.get(self._context, 0) - self._taken
            self._taken = 0

    def _obstacle(self, chains: ResidentChains | str, slots: int) -> tuple[str, str] | None:
        """Return why a subtopology cannot have resident slots, and what to do; None if it can."""
        if isinstance(chains, str):
            return chains, TO_AUTO
        # Spark kills workers without input, and a slot between micro-batches has none.
        if self._kills_idle:
            return f"{_KILLS_IDLE} is true, and a slot is idle when no record arrives", f"Set {_KILLS_IDLE} to false"
        left = self._threads - self._counted - _held.get(self._context, 0)
        if slots * chains.count > left:
            return (
                f"it needs {slots * chains.count} threads of Spark's executor, {max(0, left)} are left",
                f"Leave the master out, or name local[N], N being the slots of all subtopologies + {_THREADS_FOR_JOBS}",
            )
        return None


def impossible(name: str, reason: str, fix: str = TO_AUTO) -> ConfigError:
    """Return the error of a subtopology that is to have resident slots, and cannot."""
    return ConfigError("resident-impossible", f"subtopology {name} cannot have resident slots: {reason}", fix)


class SlotLost(Exception):
    """A resident slot ended, and Spark reported no reason."""


class MarkersLost(Exception):
    """Spark holds back or does not pass the marker of a micro-batch: there can be no resident slots."""


@dataclass(slots=True)
class _Job:
    """The job of one chain of one slot. Mutable: the thread that waits for its end sets `error`."""

    chain: int
    slot: int
    ends: tuple[str, ...] = ()  # names of its links: that takes plans first, that reports last
    thread: threading.Thread | None = None
    links: dict[str, SlotLink] = field(default_factory=dict)
    error: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    @property
    def is_linked(self) -> bool:
        return bool(self.ends) and self.links.keys() == set(self.ends)

    def forget_links(self) -> None:
        for link in self.links.values():
            link.close()
        self.links.clear()


class ResidentSlots:
    """Resident slots of one subtopology. Mutable: belongs to the thread of its runner, except `close`."""

    def __init__(
        self, spark: SparkSession, chains: ResidentChains, slots: int, *, name: str, group: str, description: str
    ) -> None:
        """Prepare slots; none is started.

        Args:
            spark: the session.
            chains: what each slot runs.
            slots: how many.
            name: of the subtopology, whose scheduler pool the jobs run in.
            group: Spark job group: to cancel it ends the slots.
            description: of the application, for Spark's screens.
        """
        self._spark, self._chains, self._slots = spark, chains, slots
        self._name, self._group, self._description = name, group, description
        self._listener = SlotListener()
        self._jobs = {(at, slot): _Job(at, slot) for slot in range(slots) for at in range(chains.count)}
        self._is_closed = False

    @property
    def pids(self) -> dict[int, tuple[int, ...]]:
        """The worker processes of the running slots that have links."""
        found: dict[int, set[int]] = {}
        for job in self._jobs.values():
            found.setdefault(job.slot, set()).update(link.pid for link in job.links.values())
        return {slot: tuple(sorted(pids)) for slot, pids in found.items() if pids}

    @property
    def is_demanded(self) -> bool:
        """Whether no job is to take their place."""
        return self._chains.is_demanded

    def takes(self, plan: MicroBatchPlan) -> bool:
        """Whether a micro-batch runs in the resident slots and not as a Spark job.

        Rows of a chain with Spark SQL pass the JVM in small batches, which costs more per row than a job, and less than
        a job does for few rows.
        """
        return not self._chains.has_sql or all(
            sum(task.records for task in slot.tasks) <= MOST_RECORDS_WITH_SQL for slot in plan.slots
        )

    def process(self, plan: MicroBatchPlan, *, within_s: float | None = None) -> list[StageReport]:
        """Run a micro-batch, and start the slots that it needs and that do not run.

        Args:
            plan: The micro-batch.
            within_s: For all slots to answer once they run; None: for ever.

        Raises:
            SlotLost: a slot ended, and Spark does not say why.
            MarkersLost: a slot did not answer in time.
            Exception: Spark's, of the first slot whose job failed. The other slots have finished.
        """
        jobs = [self._jobs[at, slot.slot] for slot in plan.slots for at in range(self._chains.count)]
        self._start(jobs, is_test=within_s is not None)
        parts = {slot.slot: {"plan": replace(plan, slots=(slot,)).to_json()} for slot in plan.slots}
        for job in jobs:
            # The reason of a dead slot is asked for in one place, when all answers are in.
            with contextlib.suppress(LinkClosed):  # its answer will be the end of its link
                job.links[job.ends[0]].send(parts[job.slot])
        return self._answers(jobs, None if within_s is None else time.monotonic() + within_s)

    def warm_up(self, plan: MicroBatchPlan) -> None:
        """Start all slots, and run a plan without tasks on each: the test that markers come back.

        Raises:
            MarkersLost: they do not.
            Exception: as `process`.
        """
        every = tuple(SlotPlan(slot=number, tasks=()) for number in range(self._slots))
        try:
            self.process(replace(plan, slots=every), within_s=MARKER_S)
        except MarkersLost:
            raise
        except Exception as error:
            if ENDED_EARLY in str(error):
                raise MarkersLost("Spark interprets a step of its Spark SQL, and ends it with the first one") from error
            raise

    def close(self) -> None:
        """End all slots: each finishes the micro-batch that it runs."""
        self._is_closed = True
        self._listener.close()
        jobs = list(self._jobs.values())
        for job in jobs:
            for link in list(job.links.values()):
                link.close()
        deadline = time.monotonic() + ENDING_S
        for job in jobs:
            if job.thread is not None:
                job.thread.join(max(0.0, deadline - time.monotonic()))
        if any(job.is_running for job in jobs):
            log.warning("%s: resident slots did not end within %d s; cancelling their jobs", self._name, ENDING_S)
            self._spark.sparkContext.cancelJobGroup(self._group)

    def _start(self, jobs: Sequence[_Job], *, is_test: bool) -> None:
        # 1. Slots that ended between micro-batches: their links are closed and forgotten.
        for job in jobs:
            if not job.is_running:
                job.forget_links()  # it ended between two micro-batches: nothing is lost
        missing = [job for job in jobs if not job.is_linked]
        if not missing:
            return
        built: dict[int, list[ResidentChain]] = {}
        # 2. Launch a job per missing chain.
        for job in missing:
            if job.is_running:  # it was too late for an earlier start, and waits to be accepted
                continue
            if job.slot not in built:
                built[job.slot] = self._chains.build(
                    SlotEnd(chain=0, slot=job.slot, address=self._listener.address, token=self._listener.token)
                )
            self._launch(job, built[job.slot][job.chain])
        deadline = time.monotonic() + START_S
        # 3. Wait for the hello of each end. It fails as soon as one of the jobs ends, and not only after the time
        #    limit.
        links = self._listener.accept(
            {end for job in missing for end in job.ends if end not in job.links},
            gives_up=lambda: (
                self._is_closed or time.monotonic() > deadline or not all(job.is_running for job in missing)
            ),
        )
        for job in missing:
            job.links |= {end: links[end] for end in job.ends if end in links}
            for end in job.links:
                log.debug("%s: process %d runs %s", self._name, job.links[end].pid, end)
        absent = [job for job in missing if not job.is_linked]
        ended = [job for job in missing if not job.is_running]  # one of them is why the others are not linked yet
        if absent and not ended and is_test and absent[0].links:
            raise MarkersLost(f"Spark did not pass the first rows within {START_S:.0f} s")
        if absent:
            raise self._reason((ended or absent)[0])

    def _launch(self, job: _Job, chain: ResidentChain) -> None:
        def run() -> None:
            try:
                context = self._spark.sparkContext
                # In the job's own thread: properties and group are those of its JVM thread.
                context.setLocalProperty("spark.scheduler.pool", self._name)
                part = "" if self._chains.count == 1 else f", chain {job.chain + 1} of {self._chains.count}"
                what = f"{self._description} {self._name}: resident slot {job.slot}{part} on {platform.node()}"
                context.setJobGroup(self._group, what, interruptOnCancel=True)
                chain.plan.collect()
            except BaseException as error:  # noqa: BLE001 - raised by the runner's thread
                job.error = error

        seat = f"{job.chain}.{job.slot}"
        job.ends = (f"{seat}.whole",) if chain.is_whole else (f"{seat}.first", f"{seat}.last")
        job.error = None
        job.thread = threading.Thread(
            target=inheritable_thread_target(self._spark)(run), name=f"headrace-{self._name}-{seat}", daemon=True
        )
        job.thread.start()

    def _answers(self, jobs: Sequence[_Job], deadline: float | None) -> list[StageReport]:
        """Wait until every job has answered or ended. Raises MarkersLost at `deadline`."""
        reports: dict[tuple[int, int], list[StageReport]] = {}
        lost: list[_Job] = []
        # All answers are awaited, also after a failure. A slot that still writes while its micro-batch is undone could
        # write into the next transaction of its identity.
        with selectors.DefaultSelector() as waiting:
            for job in jobs:
                waiting.register(job.links[job.ends[-1]], selectors.EVENT_READ, job)
            while waiting.get_map():
                ready = waiting.select(None if deadline is None else deadline - time.monotonic())
                if not ready and deadline is not None and time.monotonic() >= deadline:
                    raise MarkersLost(f"Spark did not pass the first marker within {MARKER_S:.0f} s")
                for key, _ in ready:
                    job, link = key.data, key.fileobj
                    assert isinstance(link, SlotLink)
                    answer = link.receive()
                    waiting.unregister(link)
                    if answer is None:
                        lost.append(job)
                    else:
                        reports[job.chain, job.slot] = [StageReport.from_json(text) for text in answer["reports"]]
        errors = [self._reason(job) for job in lost]
        if errors:
            raise errors[0]
        return [report for job in jobs for report in reports[job.chain, job.slot]]

    def _reason(self, job: _Job) -> BaseException:
        """End a job that failed. Return Spark's reason, as soon as Spark knows it."""
        job.forget_links()
        if job.thread is not None:
            job.thread.join(ENDING_S)
        if job.error is not None:
            return job.error
        # In the words of a job whose worker is gone (`spark_errors.kind_of`).
        return SlotLost(f"Python worker exited unexpectedly: a link of the resident slot {job.slot} closed")
