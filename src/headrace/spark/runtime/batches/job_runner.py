"""Execution of plans as Spark jobs, and collection of the reports or errors of their stages."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import BrokerError, CannotConnect, HeadraceError, RecordError, UserCodeError
from headrace.spark.machine.events import Event, SlotHello
from headrace.spark.runtime.batches.bad_record_search import BadRecord
from headrace.spark.runtime.batches.driver_evaluation import DriverRows, failing_rows
from headrace.spark.runtime.batches.fetch_stage import name_of
from headrace.spark.runtime.batches.plan import (
    PLAN_PROPERTY,
    InputRange,
    MicroBatchPlan,
    SlotPlan,
    StageReport,
    TaskReport,
    merged,
)
from headrace.spark.runtime.batches.prepared_plan import fetching_session
from headrace.spark.runtime.batches.stage_reports import StageReports
from headrace.spark.runtime.batches.suspect_rows import GUARDING, suspect_rows
from headrace.spark.runtime.chains import Chains, ForeachBatchChain, GuardedChain, GuardedMain, PreparedPlan, Probe
from headrace.spark.runtime.python_worker_repair import forget_dead_daemons, has_lost_its_daemon
from headrace.spark.runtime.slots.resident_chains import ResidentChains
from headrace.spark.runtime.slots.resident_slots import MarkersLost, ResidentSlots, impossible
from headrace.spark.runtime.spark_errors import kind_of, reason_of, user_error
from headrace.spark.runtime.stores.store_files import disk_full, is_disk_full
from headrace.spark.runtime.tasks import only
from headrace.spark.spark_internals import run_plan
from headrace.spark.topology.nodes import OFFSET_COLUMN, TASK_COLUMN, TOPIC_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchFailed", "BatchNumber", "JobRunner", "batch_number"]

log = logging.getLogger("headrace.spark")
WARM_UP_TRIES = 5
SEARCH_BYTES = 64 * 1024 * 1024  # of records that lie in the driver while bad ones are searched among them
_PLACE = attrgetter("task", "topic", "partition", "offset")  # of a bad record, in the order of reports
_CONSEQUENCES = ("upstream-died", "second-attempt", "stage-failed")


class BatchFailed(Exception):
    """A failed attempt of a micro-batch: Spark's exception, and the errors that stages reported beside it."""

    def __init__(self, error: BaseException, errors: list[HeadraceError], *, in_function: bool = False) -> None:
        """`in_function`: whether a job of the user's `foreachBatch` function failed, not one of ours."""
        super().__init__(str(error)[:500])
        self.error = error
        self.errors = errors
        self.in_function = in_function

    @property
    def record_error(self) -> RecordError | None:
        return next((error for error in self.errors if isinstance(error, RecordError)), None)

    @property
    def cause(self) -> HeadraceError | None:
        """The first error reported by a stage, without consequences of an input that was cut off."""
        # Stages behind one that failed report that their input broke off. The first error that is no such consequence
        # is the cause.
        return next((error for error in self.errors if error.code not in _CONSEQUENCES), None)

    @property
    def reason(self) -> str:
        """The cause in one line."""
        return str(self.cause) if self.cause is not None else reason_of(self.error)

    @property
    def is_broker_error(self) -> bool:
        """Whether a broker refused a stage or was unreachable."""
        return any(isinstance(error, (BrokerError, CannotConnect)) for error in self.errors)

    @property
    def is_worker_lost(self) -> bool:
        """Whether a Python worker ended without reporting an error."""
        return self.cause is None and kind_of(self.error) == "worker-lost"

    @property
    def was_run_again(self) -> bool:
        """Whether Spark repeated a slot (`spark.task.maxFailures`).

        Its exception is then about the refused repetition.
        """
        return any(error.code == "second-attempt" for error in self.errors)

    @property
    def unexpected_error(self) -> HeadraceError | None:
        """An exception in a stage that was not foreseen."""
        return next((error for error in self.errors if error.code == "stage-failed"), None)


class _GuardFailed(Exception):
    """A guarded micro-batch and the plan itself disagree about a record."""


class _FunctionFailed(Exception):
    """A Spark job of the user's function failed: its cause."""


class BatchNumber(int):
    """Batch id for `foreachBatch`: Spark's int, with the offsets and tasks of the micro-batch."""

    offsets: dict[str, tuple[int, int]]
    tasks: tuple[int, ...]


def batch_number(plan: MicroBatchPlan) -> BatchNumber:
    """Return the batch id that a `foreachBatch` function gets."""
    number = BatchNumber(plan.batch.batch_id)
    ranges = [found for task in plan.tasks for found in task.ranges]
    number.offsets = {f"{found.topic}-{found.partition}": (found.start, found.end) for found in ranges}
    number.tasks = tuple(task.partition for task in plan.tasks)
    return number


class JobRunner:
    """Spark jobs of one subtopology in one session. Each calling thread has its own local properties."""

    def __init__(
        self,
        spark: SparkSession,
        chains: Chains,
        *,
        name: str,
        app_name: str,
        resident: ResidentChains | None = None,
        slots: int = 0,
    ) -> None:
        """`resident`: what `slots` resident slots run; None: a Spark job for each micro-batch."""
        self._spark, self._chains, self._name, self._app_name = spark, chains, name, app_name
        self._slots = slots
        self._resident = (
            ResidentSlots(spark, resident, slots, name=name, group=self.group, description=app_name)
            if resident is not None
            else None
        )
        self._evaluating: SparkSession | None = None
        self._sieves: dict[Probe, PreparedPlan | None] = {}
        self._guarded: GuardedMain | None = None
        self._guard_built = False

    @property
    def group(self) -> str:
        """The Spark job group of this subtopology's micro-batches."""
        return f"headrace-{self._app_name}-{self._name}"

    @property
    def restore_group(self) -> str:
        """That of its restores: they run beside micro-batches, and are cancelled without them."""
        return f"{self.group}-restore"

    @property
    def has_probes(self) -> bool:
        """Whether Spark SQL sees records before an aggregate or a sink does."""
        return any(probe.plan is not None for probe in self._chains.probes)

    def first_hello(self) -> SlotHello:
        """Return the first event of the machine: all slots, which share one state directory."""
        return SlotHello(slots=tuple(range(self._slots)))

    def slot_places(self) -> dict[int, str]:
        """Return nothing: all slots are on this host."""
        return {}

    def watch_slots(self, report: Callable[[Event], None]) -> None:
        """Do nothing: a slot that ends is started again by the next micro-batch."""

    def process(self, plan: MicroBatchPlan) -> list[StageReport]:
        """All chains of one micro-batch. Raises BatchFailed, UserCodeError (`foreachBatch`)."""
        # Resident slots, or one Spark job for all chains that end in topics, then the user's functions one after the
        # other.
        if self._resident is not None and self._resident.takes(plan):
            with self._collecting_errors(plan):
                return self._resident.process(plan)
        with self._running(plan, f"batch {plan.batch.batch_id}") as stage_reports:
            reports = _rows(self._chains.main) if self._chains.main is not None else []
            for chain in self._chains.foreach:
                self._call(chain, plan, stage_reports)
            return reports + stage_reports.reports()

    def can_guard(self) -> bool:
        """Return whether `process_guarded` is possible; the first call plans it."""
        if not self._guard_built:
            self._guard_built = True
            try:
                self._guarded = self._chains.guarded()
            except (Py4JError, PySparkException) as error:  # a Spark with other classes
                log.info("%s: bad records need a search, its plan cannot be guarded: %s", self._name, str(error)[:200])
        return self._guarded is not None

    def process_guarded(
        self, plan: MicroBatchPlan, *, bad_expected: bool, tick: Callable[[], None] = lambda: None
    ) -> tuple[list[StageReport], list[BadRecord]]:
        """Process a micro-batch and skip the records that Spark SQL cannot process.

        One Spark job, and one more if records go to dead-letter topics. Rows that fail in it are evaluated one by one
        by the plan itself before anything counts.

        Args:
            plan: No source may have the policy "fail".
            bad_expected: Whether the micro-batch failed before. Then it fails again if no row fails.
            tick: Called now and then.

        Returns:
            The reports of all stages, and the records that were passed over.

        Raises:
            BatchFailed: Also if a row that fails in the guarded form does not fail in the plan itself.
        """
        assert self._guarded is not None
        # 1. Dead-letter topics are written by a second job within the same transactions, so they count as shared:
        #    sequence numbers continue.
        shared = {*plan.shared_topics, *self._chains.dead_letter_topics.values()}
        plan = replace(plan, shared_topics=tuple(sorted(shared)))
        with self._running(plan, f"batch {plan.batch.batch_id}, guarded") as stage_reports:
            # 2. The guarded job. Bad rows do not fail it: stages take them out and leave them in files.
            reports = [*_rows(self._guarded.plan), *stage_reports.reports()]
            bad: dict[tuple[str, int, int], BadRecord] = {}
            for chain in self._guarded.chains:
                rows = stage_reports.failed_rows(chain.stage)
                if rows is not None:
                    # 3. Each of these rows is evaluated by the plan itself. Only if it fails there, too, the record is
                    #    bad.
                    bad |= _by_place(self._evaluated(chain, rows, tick))
            # 4. The plain form failed before on these records, and no row fails in the guarded one: the two disagree,
            #    so nothing of it counts.
            if bad_expected and not bad:
                raise _GuardFailed("no record fails in the guarded plan")
            found = sorted(bad.values(), key=_PLACE)
            return [*reports, *self._report_skipped(plan, found)], found

    def _evaluated(self, chain: GuardedChain, rows: pa.Table, tick: Callable[[], None]) -> Iterator[BadRecord]:
        """Evaluate rows by the plan itself, which must fail on all of them."""
        schema = chain.rows.schema
        session = self._evaluating_session()
        given = DriverRows(session, session.createDataFrame(rows, schema))
        failing = failing_rows(given, chain.sql, most=rows.num_rows + 1, tick=tick)
        if len(failing) < rows.num_rows:
            raise _GuardFailed(f"{rows.num_rows - len(failing)} of {rows.num_rows} rows fail in the guarded plan only")
        places = (rows.column(name).to_pylist() for name in (TASK_COLUMN, TOPIC_COLUMN, OFFSET_COLUMN))
        for task, topic, offset, (_, reason) in zip(*places, failing, strict=True):
            yield self._bad_record(task, topic, offset, reason)

    def _report_skipped(self, plan: MicroBatchPlan, bad: Sequence[BadRecord]) -> list[StageReport]:
        """Report records as skipped, and write those with a dead-letter topic there: in the same transactions."""
        assert self._guarded is not None
        buried = self._chains.dead_letter_topics
        letters = [row for row in bad if row.topic in buried]
        tasks: dict[int, TaskReport] = {}
        for row in bad:
            tasks.setdefault(row.task, TaskReport(partition=row.task)).skipped += row.topic not in buried
        if letters and self._guarded.dead_letters is not None:
            skipping = replace(plan, slots=_skipping(plan, letters), ends_early=False)
            self._spark.sparkContext.setLocalProperty(PLAN_PROPERTY, skipping.to_json())
            for partition, written in merged(_rows(self._guarded.dead_letters)).items():
                tasks[partition].skipped += written.skipped
                tasks[partition].dead += written.dead
        return [StageReport(stage="skipped", slot=0, batch=plan.batch, tasks=tuple(tasks.values()))]

    def probe(self, plan: MicroBatchPlan) -> str | None:
        """Run the user's SQL on the plan's records without output. Return Spark's message if it fails, else None."""
        try:
            with self._running(plan, "probe"):
                for probe in self._chains.probes:
                    if probe.plan is not None:
                        probe.plan.run()
        except BatchFailed as failed:
            return reason_of(failed.error)
        return None

    def find_bad_records(
        self, plan: MicroBatchPlan, *, most: int, thorough: bool, tick: Callable[[], None] = lambda: None
    ) -> list[BadRecord]:
        """The records of a plan that Spark SQL cannot process, up to `most` of each chain, in order of their tasks.

        One Spark job for every 64 MB of records brings those that may fail into the driver, where they are tried row by
        row; `thorough`: all records, where none of those fails. Raises BatchFailed when such a job fails; Py4JError,
        LookupError on a Spark whose insides are unknown.
        """
        attempts = itertools.count(plan.batch.attempt + 1)
        for probe in self._chains.probes:
            found = self._search(plan, probe, self._sieve(probe), attempts, most=most, tick=tick)
            if not found and thorough and self._sieve(probe) is not None:
                found = self._search(plan, probe, None, attempts, most=most, tick=tick)
            if found:  # what follows the failing SQL has no rows as long as it fails
                return sorted(found, key=_PLACE)
        return []

    def _search(
        self,
        plan: MicroBatchPlan,
        probe: Probe,
        sieve: PreparedPlan | None,
        attempts: Iterator[int],
        *,
        most: int,
        tick: Callable[[], None],
    ) -> list[BadRecord]:
        found: dict[tuple[str, int, int], BadRecord] = {}
        rest = {task.partition: task.ranges for task in plan.tasks}
        # One piece of the failed range after the other, bounded by bytes: the rows lie in the driver's memory.
        while rest and len(found) < most:
            tick()
            part = replace(
                plan,
                slots=only(plan.slots, rest),
                batch=replace(plan.batch, attempt=next(attempts)),
                probe=True,
                ends_early=True,
                max_bytes_per_task=max(1, SEARCH_BYTES // len(rest)),
            )
            with self._running(part, "search for bad records") as stage_reports:
                rows = DriverRows(self._evaluating_session(), sieve.kept() if sieve is not None else probe.rows())
                reached = {task: report.reached for task, report in merged(stage_reports.reports()).items()}
            for bad in self._bad_rows(rows, probe, most=most, tick=tick):
                found.setdefault((bad.topic, bad.partition, bad.offset), bad)
            rest = _behind(rest, reached)
        return list(found.values())

    def _sieve(self, probe: Probe) -> PreparedPlan | None:
        """Return the plan that selects the rows of a chain that may fail; None if Spark cannot select them. Planned at
        the first search.
        """
        if probe not in self._sieves:
            rows = suspect_rows(probe.rows(), probe.sql)
            if rows is None:
                self._sieves[probe] = None
            else:
                # With the settings `GUARDING`, without which Spark evaluates guarded expressions outside of their
                # guard.
                session = fetching_session(self._spark, GUARDING)
                self._sieves[probe] = PreparedPlan(lambda: rows, session=session)
        return self._sieves[probe]

    def _bad_rows(self, rows: DriverRows, probe: Probe, *, most: int, tick: Callable[[], None]) -> Iterator[BadRecord]:
        failing = failing_rows(rows, probe.sql, most=most, tick=tick)
        places = rows.integers([row for row, _ in failing], (TASK_COLUMN, TOPIC_COLUMN, OFFSET_COLUMN))
        for (task, topic, offset), (_, reason) in zip(places, failing, strict=True):
            yield self._bad_record(task, topic, offset, reason)

    def _bad_record(self, task: int, topic: int, offset: int, reason: str, code: str = "undigestible") -> BadRecord:
        """Return a record by its place; `topic` is its number among the topics of the source."""
        # Partition p of every input is task p's.
        return BadRecord(
            task=task, topic=self._chains.topics[topic], partition=task, offset=offset, reason=reason, code=code
        )

    def trace_records(self, plan: MicroBatchPlan, code: str) -> list[BadRecord]:
        """The records of a plan on which an aggregate or a sink fails, found by one run that writes nothing.

        `code`: of the error that the micro-batch failed with. Raises BatchFailed.
        """
        batch = replace(plan.batch, attempt=plan.batch.attempt + 1)
        with self._running(replace(plan, batch=batch, probe=True), "trace of bad records") as stage_reports:
            for traced in self._chains.traced:
                run_plan(traced())
            found = _by_place(self._bad_record(*traced, code=code) for traced in stage_reports.bad_records())
        return sorted(found.values(), key=_PLACE)

    def _evaluating_session(self) -> SparkSession:
        if self._evaluating is None:
            self._evaluating = fetching_session(self._spark)
        return self._evaluating

    def restore(self, plan: MicroBatchPlan, *, gives_up: object = None) -> list[StageReport]:  # noqa: ARG002
        """Bring the stores of the plan's tasks to their committed positions; ended by `restore_group`."""
        assert self._chains.restore is not None
        with self._running(plan, "restore", self.restore_group):
            return _rows(self._chains.restore)

    def warm_up(self, plan: MicroBatchPlan) -> None:
        """Run everything once with nothing to do: JVM, workers, imports, connections.

        If all sources may skip records, that includes the guarded form. A worker that died meanwhile is no reason to
        give up. Raises HeadraceError.
        """
        # Only a lost worker is tried again. Anything else would fail in the first micro-batch as well, and is better
        # reported at the start.
        for attempt in range(WARM_UP_TRIES):
            try:
                with self._running(plan, "warm-up"):
                    self._warm_up_resident(plan)
                    if self._chains.main is not None:
                        self._chains.main.collect()
                    if self._chains.restore is not None:
                        self._chains.restore.collect()
                    for probe in self._chains.probes:
                        if probe.plan is not None:
                            probe.plan.run()
            except BatchFailed as failed:
                if attempt == WARM_UP_TRIES - 1 or failed.cause is not None or kind_of(failed.error) != "worker-lost":
                    raise failed.cause or user_error(failed.error, f"{self._name}: warming up failed") from failed
                log.warning("%s: a worker died in the warm-up, trying again: %s", self._name, reason_of(failed.error))
                time.sleep(0.2 * 2**attempt)
            else:
                break
        if self._chains.skips and self.can_guard():
            self._warm_up_guarded(plan)

    def _warm_up_resident(self, plan: MicroBatchPlan) -> None:
        """Start the resident slots. Where markers do not come back, do without; raises ConfigError if demanded."""
        if self._resident is None:
            return
        try:
            self._resident.warm_up(plan)
        except MarkersLost as lost:
            self._resident.close()
            if self._resident.is_demanded:
                raise impossible(self._name, str(lost)) from lost
            self._resident = None
            log.warning("%s runs a Spark job for each micro-batch: %s", self._name, lost)

    def _warm_up_guarded(self, plan: MicroBatchPlan) -> None:
        """Plan and compile the guarded form ahead, so that a failed micro-batch does not wait for it."""
        assert self._guarded is not None
        try:
            with self._running(plan, "warm-up, guarded"):
                self._guarded.plan.collect()
        except BatchFailed as failed:
            if kind_of(failed.error) == "worker-lost":
                return
            self._guarded = None
            log.info("%s: bad records need a search, the guarded plan fails: %s", self._name, failed.reason[:200])

    def close(self) -> None:
        """End resident slots. Each finishes the micro-batch that it runs."""
        if self._resident is not None:
            self._resident.close()

    @contextlib.contextmanager
    def _running(self, plan: MicroBatchPlan, what: str, group: str | None = None) -> Iterator[StageReports]:
        context = self._spark.sparkContext
        # Local properties belong to the calling thread (each has a JVM thread of its own), so a restore beside a
        # micro-batch has another plan.
        context.setLocalProperty(PLAN_PROPERTY, plan.to_json())
        context.setLocalProperty("spark.scheduler.pool", self._name)
        context.setJobGroup(group or self.group, f"{self._app_name} {self._name}: {what}", interruptOnCancel=True)
        with self._collecting_errors(plan) as stage_reports:
            yield stage_reports

    @contextlib.contextmanager
    def _collecting_errors(self, plan: MicroBatchPlan) -> Iterator[StageReports]:
        """Raise BatchFailed with the errors that stages reported, for any error of Spark in the block."""
        stage_reports = StageReports(plan.state_dir, plan.subtopology_id, plan.batch)
        try:
            yield stage_reports
        except HeadraceError:
            raise
        except Exception as error:
            in_function = isinstance(error, _FunctionFailed)
            cause = error.__cause__ if in_function and error.__cause__ is not None else error
            # A defect of Spark that persists until the JVM ends; see `python_worker_repair`.
            if has_lost_its_daemon(cause) and forget_dead_daemons(self._spark):
                log.info("%s: the Python daemon died while it started; the next task starts another", self._name)
            errors = stage_reports.errors() or _disk_full_errors(plan.state_dir)
            raise BatchFailed(cause, errors, in_function=in_function) from error
        finally:
            stage_reports.remove()

    def _call(self, chain: ForeachBatchChain, plan: MicroBatchPlan, stage_reports: StageReports) -> None:
        dataframe = chain.plan.dataframe()
        # `persist` and one run: the store is merged exactly once, however often the function evaluates the frame.
        if chain.stateful:  # whatever the function does with the rows, the store is updated once
            dataframe = dataframe.persist()
            run_plan(dataframe)
        try:
            chain.sink.function(dataframe, batch_number(plan))
        except UserCodeError:
            raise
        except Exception as error:
            # A stage failed inside of the function's own job: that error counts, not the exception that the function
            # made of it.
            if stage_reports.errors():
                raise
            if _is_spark(error):
                raise _FunctionFailed from error
            raise user_error(error, f"the function of {chain.sink.name} raised", where=chain.sink.where) from error
        finally:
            if chain.stateful:
                dataframe.unpersist()


def _by_place(records: Iterable[BadRecord]) -> dict[tuple[Any, ...], BadRecord]:
    """Return one entry for each record; several chains may fail on the same one."""
    return {_PLACE(bad): bad for bad in records}


Ranges = Mapping[int, tuple[InputRange, ...]]


def _behind(ranges: Ranges, reached: Mapping[int, Mapping[str, int]]) -> dict[int, tuple[InputRange, ...]]:
    """Return the ranges without the part that was reached.

    A task without a report counts as finished; otherwise its range would be repeated for ever.
    """
    left = {}
    for task, of_task in ranges.items():
        at = reached.get(task, {})
        moved = tuple(replace(r, start=at.get(name_of(r.topic, r.partition), r.end)) for r in of_task)
        left[task] = tuple(now for now, was in zip(moved, of_task, strict=True) if was.start < now.start < now.end)
    return {task: of_task for task, of_task in left.items() if of_task}


def _skipping(plan: MicroBatchPlan, bad: Sequence[BadRecord]) -> tuple[SlotPlan, ...]:
    """The slots of a plan with the ranges of these records only, which are to be skipped."""
    reasons: dict[tuple[int, str, int], dict[int, str]] = {}
    for row in bad:
        reasons.setdefault((row.task, row.topic, row.partition), {})[row.offset] = row.reason
    slots = []
    for slot in plan.slots:
        tasks = []
        for task in slot.tasks:
            ranges = tuple(
                replace(
                    found,
                    start=min(of_range),
                    end=max(of_range) + 1,
                    skipped=tuple(sorted(of_range)),
                    dead={str(offset): reason for offset, reason in of_range.items()},
                )
                for found in task.ranges
                if (of_range := reasons.get((task.partition, found.topic, found.partition)))
            )
            if ranges:
                tasks.append(replace(task, ranges=ranges))
        if tasks:
            slots.append(replace(slot, tasks=tuple(tasks)))
    return tuple(slots)


def _rows(prepared: PreparedPlan) -> list[StageReport]:
    return [StageReport.from_json(row["report"]) for row in prepared.collect()]


def _disk_full_errors(state_dir: str) -> list[HeadraceError]:
    """Return the disk-full error if the disk is full: a stage cannot write its error file then."""
    path = Path(state_dir)
    return [disk_full(path)] if is_disk_full(path) else []


def _is_spark(error: Any) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j"))
