"""Recovery after a failed micro-batch: nothing of it counts; its cause decides how the next plan changes.

Failures that do not concern records (a dead worker, a cancelled job) are retried a few times. Failures of brokers are
retried for as long as they last: unreachable brokers without limit, retriable refusals for five minutes. A record that
does not decode is reported by its stage. Records that Spark SQL cannot process are found in the driver, all at once
(`driver_evaluation`). Failures behind SQL are traced (`record_tracing`), and anything else is searched for by
processing prefixes (`bad_record_search`). Then the source's `on_error` decides: skip these records, or process
everything before the first one and all other tasks, and fail.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from py4j.protocol import Py4JError

from headrace.errors import BrokerError, CannotConnect, Fenced, HeadraceError, RecordError, SinkError, StateError
from headrace.spark.runtime.batches.bad_record_search import (
    BadRecord,
    PrefixSearch,
    Probe,
    find_bad_records,
    only_record,
)
from headrace.spark.runtime.batches.job_runner import BatchFailed
from headrace.spark.runtime.batches.plan import InputRange, MicroBatchPlan, SlotPlan, StageReport
from headrace.spark.runtime.chains import source_topics
from headrace.spark.runtime.executor import Executor
from headrace.spark.runtime.spark_errors import is_data_error, kind_of, user_error
from headrace.spark.runtime.tasks import RunningTask, only
from headrace.spark.topology.nodes import CompiledSubtopology, RepartitionSource, Source

__all__ = ["BatchRecovery"]

log = logging.getLogger("headrace.spark")
RETRIES = 4
BROKER_PATIENCE_S = 300.0  # as long as Kafka Streams' `task.timeout.ms` has it
# Causes that single records may have.
_OF_RECORDS = frozenset({"arithmetic-overflow", "aggregate-too-large", "record-too-large"})
_HOPELESS = frozenset({"not-authorized", "record-too-large"})  # a user has to act first
_FIXES = {
    "arithmetic-overflow": "Sum a wider type, such as decimal(38,0) or double",
    "aggregate-too-large": "Group by a further column or by windows, so that groups are smaller",
    "record-too-large": "Raise max.message.bytes of the topic, or write less",
}
MOST_UNDIGESTIBLE = 5000  # passed over in one micro-batch
MOST_NAMED = 16  # searched for where the first one of a task ends the application
MOST_LOGGED = 3
GUARDED_BATCHES = 16  # micro-batches without bad records after which they are no longer guarded
UNGUARDED_BATCHES = 16  # after a guarded micro-batch failed


class BatchRecovery:
    """Consecutive failures of one subtopology, and the records at which the application will have to stop."""

    def __init__(
        self,
        subtopology: CompiledSubtopology,
        jobs: Executor,
        *,
        tasks: Mapping[int, RunningTask],
        reopen: Callable[[list[int]], None],
        tick: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subtopology, self._jobs = subtopology, jobs
        self._tasks, self._reopen, self._tick = tasks, reopen, tick
        self._failures = 0
        self._now_s = now_s
        self._refused_since: float | None = None
        self._stops: dict[tuple[str, int], RecordError] = {}
        self._searches_ahead = False
        self._guarded_batches = 0  # left before micro-batches are no longer guarded
        self._unguarded_batches = 0  # that have to succeed before one is guarded again
        self._bad_expected: tuple[InputRange, ...] = ()  # of a micro-batch that failed
        self._searched: dict[tuple[str, int, str], int] = {}  # of a topic id: up to where records were looked through
        self._search: PrefixSearch | None = None

    @property
    def guards(self) -> bool:
        """Whether to guard the next micro-batch: bad records arrived lately, and the plan can be guarded.

        It costs a tenth more than a micro-batch without a guard.
        """
        return self._guarded_batches > 0 and not self._unguarded_batches and self._search is None

    def process_guarded(self, plan: MicroBatchPlan) -> list[StageReport]:
        """Process a micro-batch and skip the records that Spark SQL cannot process. Raises BatchFailed."""
        reports, found = self._jobs.process_guarded(plan, bad_expected=self._expects_bad_records(plan), tick=self._tick)
        self._bad_expected = ()
        self._guarded_batches = GUARDED_BATCHES if found else self._guarded_batches - 1
        self._log_skipped(found)
        return reports

    def _expects_bad_records(self, plan: MicroBatchPlan) -> bool:
        ranges = {(r.topic, r.partition): r for task in plan.tasks for r in task.ranges}
        return bool(self._bad_expected) and all(
            (found := ranges.get((r.topic, r.partition))) is not None and found.start <= r.start and r.end <= found.end
            for r in self._bad_expected
        )

    @property
    def searches_ahead(self) -> bool:
        """Whether to search the next records before they are processed: the last ones included bad records, and the
        micro-batch cannot be guarded.

        It costs what a failed attempt costs, without the attempt.
        """
        return self._searches_ahead and not self.guards

    def search_ahead(self, plan: MicroBatchPlan) -> None:
        """Find and skip the records of the next plan that Spark SQL cannot process."""
        # Records that an earlier search has looked through are not searched again, if a failed commit brings them back.
        fresh = {task.partition: self._not_searched(task.ranges) for task in plan.tasks}
        fresh = {task: ranges for task, ranges in fresh.items() if ranges}
        if not fresh:
            return
        plan = replace(plan, slots=only(plan.slots, fresh))
        try:
            found = self._jobs.find_bad_records(plan, most=MOST_UNDIGESTIBLE, thorough=False, tick=self._tick)
        except (BatchFailed, Py4JError, LookupError) as error:  # the micro-batch itself has to tell
            self._searches_ahead = False
            log.info("%s: records were not looked through: %s", plan.subtopology_id, str(error)[:200])
            return
        self._note_searched(plan, found, MOST_UNDIGESTIBLE)
        self._searches_ahead = bool(found)
        self._skip_records(found)

    def _not_searched(self, ranges: tuple[InputRange, ...]) -> tuple[InputRange, ...]:
        moved = (
            replace(r, start=max(r.start, self._searched.get((r.topic, r.partition, r.topic_id), 0))) for r in ranges
        )
        return tuple(found for found in moved if found.start < found.end)

    def _note_searched(self, plan: MicroBatchPlan, found: Sequence[BadRecord], most: int) -> None:
        if len(found) < most:
            self._searched |= {(r.topic, r.partition, r.topic_id): r.end for task in plan.tasks for r in task.ranges}

    def next_slots(self, slots: tuple[SlotPlan, ...]) -> tuple[SlotPlan, ...]:
        """Return the slots to process now: the next prefix while a search is under way, else all of `slots`."""
        if self._search is None:
            return slots
        prefix = self._search.prefix(slots)
        if not prefix:
            self._search = None
        return prefix or slots

    def succeeded(self) -> None:
        self._failures, self._refused_since = 0, None
        self._unguarded_batches = max(0, self._unguarded_batches - 1)

    def recover(self, plan: MicroBatchPlan, failed: BatchFailed) -> bool:
        """Change the next plan according to the failure.

        Returns:
            Whether single records caused it, so that the next plan is expected to do better.

        Raises:
            HeadraceError: the error that ends the application.
        """
        record = failed.record_error
        # 1. A stage named a record of a source with the policy "fail". The next plans end before it, so that all other
        #    records are processed first.
        if record is not None:
            self._stop_at(record)
            return True
        # 2. A guarded micro-batch failed, perhaps because of its guard. The plain form decides.
        if self.guards and _runs_unguarded(failed):
            batch_id = plan.batch.batch_id
            log.info("%s: batch %d runs again without a guard: %s", plan.subtopology_id, batch_id, failed.reason[:200])
            self._unguarded_batches, self._searches_ahead = UNGUARDED_BATCHES, True
            return True
        # A worker may be lost for any reason: a single record is blamed for it after some tries.
        # 3. A search by prefixes is under way: this prefix failed, so the records to blame are in it.
        tries_again = failed.is_worker_lost and only_record(plan.slots) is not None
        if self._search is not None and _may_be_of_records(failed) and not tries_again:
            return self._narrow(plan, failed)
        # 4. Spark SQL failed. Guarding needs no search and one more job; where it is not possible, the driver evaluates
        #    the rows.
        if failed.cause is None and kind_of(failed.error) == "sql":
            if self._begin_to_guard(plan):
                return True
            if self._find_records(plan):
                return True
        # 5. An aggregate or a sink failed: run once more with steps that name records instead of writing.
        behind_sql = failed.cause or failed.unexpected_error
        if behind_sql is not None and self._trace_records(plan, behind_sql):
            return True
        # 6. Anything else is not about records as far as is known.
        return self._retry(plan, failed)

    def _begin_to_guard(self, plan: MicroBatchPlan) -> bool:
        """Whether the failed micro-batch runs again guarded, which takes sources that may all skip records."""
        policies = [source.on_error for source in self._subtopology.sources]
        if self._unguarded_batches or self._search is not None or not plan.slots or not policies or "fail" in policies:
            return False
        if not self._jobs.can_guard():
            return False
        self._guarded_batches = GUARDED_BATCHES
        self._bad_expected = tuple(found for task in plan.tasks for found in task.ranges if found.start < found.end)
        return True

    def _retry(self, plan: MicroBatchPlan, failed: BatchFailed) -> bool:
        cause = failed.cause
        recreated = cause is not None and cause.code == "topic-recreated"  # of the client or of the stage
        # 1. Brokers come back, and no record is to blame: without limit for an unreachable one, five minutes for
        #    refusals.
        if cause is not None and not recreated and self._waits_for_brokers(cause):
            log.warning("batch %d failed, trying again: %s", plan.batch.batch_id, str(cause)[:200])
            return False
        self._failures += 1
        # 2. Store or topic are not what the plan assumed. Opening the tasks looks everything up again.
        if (recreated or isinstance(cause, StateError)) and self._failures <= RETRIES:
            log.warning("%s: %s; opening the tasks anew", plan.subtopology_id, cause)
            self._reopen([task.partition for task in plan.tasks])
            return False
        # 3. Lost workers and cancelled jobs, a few times: machines fail.
        if _is_transient(failed) and self._failures <= RETRIES:
            log.warning("batch %d failed, trying again: %s", plan.batch.batch_id, str(cause or failed)[:200])
            return False
        # A record may as well kill each worker that meets it.
        if failed.is_worker_lost and self._find_records(plan):
            return True
        if failed.was_run_again and self._failures <= RETRIES:  # what made Spark do so is not the records' fault
            log.warning("batch %d failed, trying again: Spark ran a slot a second time", plan.batch.batch_id)
            return False
        # 4. Retries are used up: perhaps several records fail only together.
        if _may_be_of_records(failed) and self._narrow(plan, failed):
            return True
        what = f"{plan.subtopology_id}: Spark could not process batch {plan.batch.batch_id}"
        raise cause or failed.unexpected_error or user_error(failed.error, what)

    def _narrow(self, plan: MicroBatchPlan, failed: BatchFailed) -> bool:
        """Search among the records of this plan, which fail only together. Return whether any can be searched."""
        if not plan.slots:
            return False
        self._failures = 0
        # One record is left, and everything before it is committed: it is to blame. Otherwise the failed prefix is
        # halved.
        only = only_record(plan.slots)
        if only is None:
            if self._search is None:
                log.warning(
                    "%s: batch %d failed on no single row (%s); processing its records in prefixes.",
                    plan.subtopology_id,
                    plan.batch.batch_id,
                    failed.reason[:200],
                )
                self._search = PrefixSearch(plan.slots)
            self._search.narrow(plan.slots)
            return True
        self._search = None
        task, found = only
        code = failed.cause.code if failed.cause is not None else "undigestible"
        bad = BadRecord(
            task=task,
            topic=found.topic,
            partition=found.partition,
            offset=found.start,
            reason=failed.reason,
            code=code,
        )
        self._skip_records([bad])
        return True

    def check_stops(self) -> None:
        """Raise the final error once a task has processed everything before the record that stops it."""
        # The application fails only when the records before the bad one are committed: a restart then fails at once at
        # the same record, and repeats nothing.
        for task in self._tasks.values():
            for where, offset in task.stop_at.items():
                if task.positions[where] >= offset:
                    raise self._stops[where]

    def _waits_for_brokers(self, cause: HeadraceError) -> bool:
        """Whether to retry after a broker's failure. An unreachable broker is back: undoing the batch needed it."""
        if isinstance(cause, CannotConnect):
            return cause.code == "broker-unreachable"
        if not isinstance(cause, BrokerError) or not (cause.retriable or isinstance(cause, Fenced)):
            return False
        if cause.code in _HOPELESS or cause.code == "topic-missing":
            return False
        now = self._now_s()
        if self._refused_since is None:
            self._refused_since = now
        return now - self._refused_since < BROKER_PATIENCE_S

    def _find_records(self, plan: MicroBatchPlan) -> bool:
        """Whether records were found that Spark cannot process."""
        if not plan.slots:
            return False
        policies = [source.on_error for source in self._subtopology.sources]
        most = MOST_UNDIGESTIBLE if policies and "fail" not in policies else MOST_NAMED
        log.warning(
            "%s: Spark could not process batch %d; looking for the records among %d.",
            plan.subtopology_id,
            plan.batch.batch_id,
            sum(task.records for task in plan.tasks),
        )
        try:
            found = self._jobs.find_bad_records(plan, most=most, thorough=True, tick=self._tick)
        except BatchFailed as failed:
            if failed.record_error is None:
                log.warning("%s: the search for bad records failed: %s", plan.subtopology_id, str(failed)[:200])
                return False
            self._stop_at(failed.record_error)
            return True
        # Another Spark release may lack the internal classes. Halving by jobs needs public API only; it costs
        # log2(records) jobs for each bad record.
        except (Py4JError, LookupError) as error:
            log.warning("%s: searching by halves, this Spark is unknown: %r", plan.subtopology_id, str(error)[:200])
            found = find_bad_records(plan.slots, self._prober(plan), most_per_task=most)
        self._note_searched(plan, found, most)
        self._searches_ahead = bool(found) and most == MOST_UNDIGESTIBLE
        self._skip_records(found)
        return bool(found)

    def _trace_records(self, plan: MicroBatchPlan, cause: HeadraceError) -> bool:
        """Whether records were found on which an aggregate or a sink fails."""
        if not plan.slots or cause.code not in _OF_RECORDS | {"stage-failed"}:
            return False
        log.warning("%s: batch %d failed (%s); tracing it to records.", plan.subtopology_id, plan.batch.batch_id, cause)
        try:
            found = self._jobs.trace_records(plan, "undigestible" if cause.code == "stage-failed" else cause.code)
        except BatchFailed as failed:
            log.warning("%s: it was not traced: %s", plan.subtopology_id, failed.reason[:200])
            return False
        self._skip_records(found)
        return bool(found)

    def _prober(self, plan: MicroBatchPlan) -> Probe:
        attempts = itertools.count(plan.batch.attempt + 1)

        def probe(ranges: Mapping[int, tuple[InputRange, ...]]) -> str | None:
            """Whether Spark SQL fails on these ranges: its message, or None."""
            self._tick()
            batch = replace(plan.batch, attempt=next(attempts))
            return self._jobs.probe(replace(plan, slots=only(plan.slots, ranges), batch=batch, probe=True))

        return probe

    def _skip_records(self, found: Sequence[BadRecord]) -> None:
        """Skip these records in the next plans, or stop at them, as the policies of their sources require."""
        left_out = []
        for bad in found:
            source = next(found for found in self._subtopology.sources if bad.topic in source_topics(found))
            if source.on_error != "fail":
                self._tasks[bad.task].skipped.setdefault((bad.topic, bad.partition), {})[bad.offset] = bad.reason
                left_out.append(bad)
            else:
                self._stop_at(_record_error(bad, source))
        self._log_skipped(left_out)

    @staticmethod
    def _log_skipped(bad_records: Sequence[BadRecord]) -> None:
        for bad in bad_records[:MOST_LOGGED]:
            log.warning("%s-%d@%d is passed over: %s", bad.topic, bad.partition, bad.offset, bad.reason)
        if len(bad_records) > MOST_LOGGED:
            log.warning("%d more records of this batch are passed over.", len(bad_records) - MOST_LOGGED)

    def _stop_at(self, error: RecordError) -> None:
        where, offset = (error.facts["topic"], error.facts["partition"]), error.facts["offset"]
        for task in self._tasks.values():
            # The earliest record of an input counts. A search may find several, in any order of tasks.
            if where in task.positions and offset <= task.stop_at.get(where, offset):
                task.stop_at[where] = offset
                self._stops[where] = error


def _record_error(bad: BadRecord, source: Source) -> RecordError:
    origins = source.origins if isinstance(source, RepartitionSource) else ()
    internal = f" (of an internal topic, made from records of {', '.join(origins)})" if origins else ""
    return RecordError(
        bad.code,
        f"The record {bad.topic}-{bad.partition}@{bad.offset}{internal} cannot be processed: {bad.reason}",
        _FIXES.get(bad.code, "Correct the query (try_cast, nullif)")
        + ', or pass over it: on_error="skip" or DeadLetter("topic").',
        topic=bad.topic,
        partition=bad.partition,
        offset=bad.offset,
        reason=bad.reason,
        **({"source_topics": list(origins)} if origins else {}),
    )


def _may_be_of_records(failed: BatchFailed) -> bool:
    """Whether fewer or other records could have prevented the failure."""
    if failed.cause is not None:
        return failed.cause.code in _OF_RECORDS
    if failed.unexpected_error is not None:
        return bool(failed.unexpected_error.facts.get("of_values"))
    # Spark's exception is about its own repetition or about our cancellation, not about a record.
    if failed.was_run_again or kind_of(failed.error) == "cancelled":
        return False
    # SQL of the user's own function may fail for reasons of its own, such as a database that is away.
    return not failed.in_function or is_data_error(failed.error)


def _runs_unguarded(failed: BatchFailed) -> bool:
    """Whether a guarded micro-batch failed for a reason that may lie in its guard, so that the plain form has to
    decide.
    """
    if failed.was_run_again or _is_transient(failed):
        return False
    cause: HeadraceError | None = failed.cause
    return not isinstance(cause, (StateError, BrokerError, CannotConnect)) or cause.code in _OF_RECORDS


def _is_transient(failed: BatchFailed) -> bool:
    cause: HeadraceError | None = failed.cause
    if cause is None:
        return kind_of(failed.error) in ("worker-lost", "cancelled")
    return isinstance(cause, (CannotConnect, BrokerError, SinkError)) and cause.code not in _HOPELESS
