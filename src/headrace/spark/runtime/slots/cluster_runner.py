"""`ClusterRunner`: the stages of one subtopology on the executors of a cluster, in resident slots only.

Micro-batches as Spark jobs are not supported there: Spark chooses an executor for each of their tasks, and the store of
a task is on one. For the same reason a failed micro-batch is not looked into by Spark jobs. The recovery then narrows
down the records by micro-batches of prefixes, which run in the slots as all others do.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from headrace.errors import ConfigError, HeadraceError, SlotGone
from headrace.spark.cluster_masters import link_addresses, settings_of
from headrace.spark.machine.events import SlotHello
from headrace.spark.runtime.batches.bad_record_search import BadRecord
from headrace.spark.runtime.batches.job_runner import BatchFailed
from headrace.spark.runtime.batches.plan import MicroBatchPlan, SlotPlan, StageReport
from headrace.spark.runtime.batches.stage_reports import error_of
from headrace.spark.runtime.slots.cluster_slots import ClusterSlots, Seat, SlotReport
from headrace.spark.runtime.slots.executor_site import ExecutorSite
from headrace.spark.runtime.slots.resident_chains import ResidentChains, resident_chains
from headrace.spark.runtime.slots.resident_slots import MARKER_S, SlotLost, impossible
from headrace.spark.runtime.slots.slot_link import LinkClosed
from headrace.spark.runtime.spark_errors import kind_of, reason_of
from headrace.spark.topology.nodes import CompiledSubtopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["ClusterRunner", "cluster_chains", "start_cluster_runner"]

log = logging.getLogger("headrace.spark")

START_S = 300.0  # for the first slot: executors start, and their first Python worker imports, on a loaded host for long
TOLD_S = 15.0  # then the wait is logged
OTHERS_S = 20.0  # for the other slots after the first
MOST_FAILED_STARTS = 8  # without a single hello: the same fault each time
REASON_S = 10.0  # for Spark to tell why a slot was lost
LOOK_S = 0.1
LEAVING_S = 5.0  # for a micro-batch to begin that was planned before a slot was given up
_OTHER_SPARK = "Use a Spark release that Headrace is tested with"


def cluster_chains(
    spark: SparkSession, subtopology: CompiledSubtopology, slots: int, access: Mapping[str, str]
) -> ResidentChains:
    """Return what each slot of a subtopology runs.

    Raises:
        ConfigError: `cluster-unsupported` if it cannot have resident slots of one chain.
    """
    chains = resident_chains(spark, subtopology, slots, access)
    if isinstance(chains, str):
        reason = chains
    elif chains.count > 1:
        # Each is a Spark job, and Spark may run them on executors of two hosts: a slot would have two sites.
        reason = f"each slot would run {chains.count} chains, on executors that Spark chooses for each"
    elif chains.has_sql:
        reason = "it has Spark SQL between its source and its sink, which was not tested there"
    else:
        return chains
    raise ConfigError(
        "cluster-unsupported",
        f"subtopology {subtopology.subtopology_id} cannot run on a Spark cluster: {reason}",
        'use master="local[*]" and start one instance of the application per host: instances share the tasks',
    )


def start_cluster_runner(runtime: RunningInstance, subtopology: CompiledSubtopology, slots: int) -> ClusterRunner:
    """Start the slots of a subtopology on the executors of the session's cluster.

    Raises:
        ConfigError: `cluster-unsupported` if it cannot have resident slots of one chain.
    """
    name = subtopology.subtopology_id
    chains = cluster_chains(runtime.spark, subtopology, slots, runtime.security.to_settings())
    group = f"headrace-{runtime.group_id}-{name}"
    listen_on, reached_at = link_addresses(settings_of(runtime.spark))
    site = ExecutorSite(group_id=runtime.group_id, process_id=runtime.directory.process_id, subtopology_id=name)
    return ClusterRunner(
        ClusterSlots(
            runtime.spark,
            chains,
            slots,
            name=name,
            group=group,
            description=runtime.group_id,
            site=site,
            listen_on=listen_on,
            reached_at=reached_at,
        ),
        name=name,
        group=group,
    )


class ClusterRunner:
    """Runs the stages of one subtopology. `process` belongs to the runner's thread, `restore` to the opener's."""

    has_probes = False

    def __init__(self, slots: ClusterSlots, *, name: str, group: str) -> None:
        self._slots, self._name, self.group = slots, name, group
        self.restore_group = f"{group}-restore"  # no job has it
        self._is_processing = False

    def first_hello(self) -> SlotHello:
        """Return the first event of the machine: slots are reported one by one."""
        return SlotHello(slots=(), stores={})

    def watch_slots(self, report: SlotReport) -> None:
        """Report slots as they come and go, beginning with those that are here."""
        self._slots.watch(report)

    def slot_places(self) -> dict[int, str]:
        """Return host and executor of each slot that runs."""
        return {slot: seat.describe() for slot, seat in self._slots.live().items()}

    # -- cores --------------------------------------------------------------------------------------------------------

    @property
    def is_short_of_cores(self) -> bool:
        """Whether some of the slots do not run."""
        return self._slots.is_short

    def give_up_slot(self) -> None:
        """Free the core of a slot when the micro-batch that it runs has ended."""
        self._slots.give_up_one()
        timer = threading.Timer(LEAVING_S, self._end_leaving)
        timer.daemon = True
        timer.start()

    def _end_leaving(self) -> None:
        if not self._is_processing:  # else at the end of the micro-batch
            self._slots.end_leaving()

    # -- micro-batches ------------------------------------------------------------------------------------------------

    def process(self, plan: MicroBatchPlan) -> list[StageReport]:
        """Run a micro-batch in its slots. Raises BatchFailed."""
        self._is_processing = True
        try:
            return self._process(plan, self._slots.live())
        finally:
            self._is_processing = False
            self._slots.end_leaving()

    def _process(
        self, plan: MicroBatchPlan, live: Mapping[int, Seat], *, within_s: float | None = None
    ) -> list[StageReport]:
        # 1. Lost since the plan was made. Nothing is sent to the others: they need not be waited for.
        missing = [slot.slot for slot in plan.slots if slot.slot not in live]
        if missing:
            raise BatchFailed(SlotLost(f"Python worker exited unexpectedly: slot {missing[0]} is lost"), [])
        seats = {slot.slot: live[slot.slot] for slot in plan.slots}
        for slot in plan.slots:
            with contextlib.suppress(LinkClosed):  # its answer is the end of its link
                seats[slot.slot].plans_to.send({"plan": replace(plan, slots=(slot,)).to_json()})
        # 2. All answers are awaited, also after a failure: a slot that is alive must not write while its micro-batch is
        #    undone. A slot that is cut off is waited for until its lease ends; it is fenced before anything is done
        #    again.
        reports: list[StageReport] = []
        lost: list[Seat] = []
        for seat in seats.values():
            try:
                answer = seat.answers.get(timeout=within_s)
            except queue.Empty as error:
                raise impossible(self._name, f"no answer of a slot within {within_s:.0f} s", _OTHER_SPARK) from error
            if answer is None:
                lost.append(seat)
            else:
                reports += [StageReport.from_json(text) for text in answer["reports"]]
        if lost:
            raise _failure(lost)
        return reports

    def warm_up(self, plan: MicroBatchPlan) -> None:
        """Wait for the slots, and run a plan without tasks in each. Raises HeadraceError."""
        wanted, deadline, has_one = len(self._slots), time.monotonic() + START_S, False
        told_at, is_told = time.monotonic() + TOLD_S, False
        while len(live := self._slots.live()) < wanted and time.monotonic() < deadline:
            if live and not has_one:
                has_one, deadline = True, min(deadline, time.monotonic() + OTHERS_S)
            if not live and self._slots.failed_starts >= MOST_FAILED_STARTS:
                break
            if not live and not is_told and time.monotonic() > told_at:
                is_told = True
                log.warning("%s: no slot runs yet; waiting for executors with free cores", self._name)
            self._slots.await_change(LOOK_S)
        if not live:
            self._slots.close()
            raise self._no_slots()
        if len(live) < wanted:
            log.warning("%s: %d of %d slots run; the others wait for cores of executors", self._name, len(live), wanted)
        try:
            every = tuple(SlotPlan(slot=slot, tasks=()) for slot in live)
            self._process(replace(plan, slots=every), live, within_s=MARKER_S)
        except BatchFailed as failed:
            if failed.cause is not None:
                self._slots.close()
                raise failed.cause from failed
            log.info("%s: a slot was lost in the warm-up: %s", self._name, failed.reason)

    def _no_slots(self) -> HeadraceError:
        error = self._slots.last_error
        if isinstance(error, HeadraceError):
            return error
        if error is not None:
            return ConfigError(
                "slots-missing",
                f"no slot of {self._name} starts on the executors: {reason_of(error)}",
                "Install this version of headrace on every host, for the Python of PYSPARK_PYTHON; see the log of an "
                "executor for the reason.",
            )
        return ConfigError(
            "slots-missing",
            f"no slot of {self._name} said hello within {START_S:.0f} s",
            "Give the application executors with free cores, and let executors reach spark.driver.host.",
        )

    def restore(self, plan: MicroBatchPlan, *, gives_up: Callable[[], bool] = lambda: False) -> list[StageReport]:
        """Bring the stores of the plan's tasks to their positions, where their slots are. Raises BatchFailed."""
        live = self._slots.live()
        reports: list[StageReport] = []
        seats: list[Seat] = []
        for slot in plan.slots:
            seat = live.get(slot.slot)
            if seat is None:
                raise self._slot_gone(slot.slot)
            try:
                seat.links["restore"].send({"plan": replace(plan, slots=(slot,)).to_json()})
            except LinkClosed as error:
                raise self._slot_gone(slot.slot) from error
            seats.append(seat)
        for seat in seats:
            reports += self._restored(seat, plan, gives_up)
        return reports

    def _restored(self, seat: Seat, plan: MicroBatchPlan, gives_up: Callable[[], bool]) -> list[StageReport]:
        while not gives_up():
            try:
                answer = seat.restored.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            match answer:
                case None:
                    raise self._slot_gone(seat.slot)
                case {"failed": facts, "batch": batch} if batch == [plan.batch.batch_id, plan.batch.attempt]:
                    error = error_of(facts)
                    raise BatchFailed(error, [error])
                case {"reports": texts}:
                    found = [StageReport.from_json(text) for text in texts]
                    if all(report.batch == plan.batch for report in found):  # else of a restore that was given up
                        return found
        error = HeadraceError("stopped", f"{self._name} was stopped while it restored")
        raise BatchFailed(error, [error])

    def _slot_gone(self, slot: int) -> BatchFailed:
        error = SlotGone("slot-lost", f"slot {slot} of {self._name} was lost while it restored")
        return BatchFailed(error, [error])

    def close(self) -> None:
        """End the slots. Each finishes the micro-batch that it runs."""
        self._slots.close()

    # -- what Spark jobs would do -------------------------------------------------------------------------------------

    def can_guard(self) -> bool:
        """Return False: a guarded micro-batch is a Spark job."""
        return False

    def process_guarded(
        self,
        plan: MicroBatchPlan,
        *,
        bad_expected: bool,  # noqa: ARG002 - as `Executor`
        tick: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> tuple[list[StageReport], list[BadRecord]]:
        """Raise BatchFailed."""
        self._refuse(plan)

    def probe(self, plan: MicroBatchPlan) -> str | None:
        """Raise BatchFailed."""
        self._refuse(plan)

    def find_bad_records(
        self,
        plan: MicroBatchPlan,
        *,
        most: int,  # noqa: ARG002 - as `Executor`
        thorough: bool,  # noqa: ARG002
        tick: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> list[BadRecord]:
        """Raise BatchFailed: the recovery searches by prefixes then."""
        self._refuse(plan)

    def trace_records(self, plan: MicroBatchPlan, code: str) -> list[BadRecord]:  # noqa: ARG002
        """Raise BatchFailed, as `find_bad_records`."""
        self._refuse(plan)

    def _refuse(self, plan: MicroBatchPlan) -> NoReturn:
        error = HeadraceError("stage-failed", f"{plan.subtopology_id}: no Spark job looks for records on a cluster")
        raise BatchFailed(error, [])


def _failure(lost: Iterable[Seat]) -> BatchFailed:
    """Return the failure of a micro-batch whose slots are lost.

    Spark is asked for the reason only if a stage reported an error, since the other slots are idle meanwhile: Spark may
    need seconds to notice that an executor is gone. A slot without a last message was killed or cut off. Spark SQL,
    whose errors only Spark knows, is refused on clusters (`cluster_chains`).
    """
    deadline = time.monotonic() + REASON_S
    said: list[HeadraceError] = []
    errors: list[BaseException] = []
    for seat in lost:
        # In the words of a job whose worker is gone (`spark_errors.kind_of`).
        errors.append(SlotLost(f"Python worker exited unexpectedly: slot {seat.slot} on {seat.describe()} is lost"))
        if seat.said and seat.job_ended.wait(max(0.0, deadline - time.monotonic())) and seat.error is not None:
            errors[-1] = seat.error
        said += seat.said
    # Several slots may be lost because of one: the error that a stage reported is the reason, the end of a worker may
    # follow.
    return BatchFailed(next((error for error in errors if kind_of(error) == "sql"), errors[0]), said)
