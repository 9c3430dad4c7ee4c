"""Restore of stores before their tasks run: by the replica process if there is one, the rest by a Spark job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.spark.machine.commands import Open
from headrace.spark.runtime.batches.fetch_stage import input_name
from headrace.spark.runtime.batches.job_runner import BatchFailed
from headrace.spark.runtime.batches.plan import InputRange, SlotPlan, StageReport, TaskPlan, merged
from headrace.spark.runtime.executor import Executor
from headrace.spark.runtime.progress import SubtopologyProgress
from headrace.spark.runtime.spark_errors import user_error
from headrace.spark.runtime.stores.store import BatchKey
from headrace.spark.runtime.tasks import RunningTask
from headrace.spark.topology.nodes import CompiledSubtopology

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["StoreRestorer", "restore_slots", "take_restored"]

log = logging.getLogger("headrace.spark")
RETRIES = 4


def restore_slots(tasks: Sequence[RunningTask]) -> tuple[SlotPlan, ...]:
    """Return the slots of a restore: each task with empty ranges at its positions."""
    rows: dict[int, list[TaskPlan]] = {}
    for task in tasks:
        ranges = tuple(
            # Empty ranges: this plan reads no records. Its starts name the positions that stores must have.
            InputRange(topic=topic, partition=partition, start=at, end=at, topic_id=task.topic_ids[topic])
            for (topic, partition), at in sorted(task.positions.items())
        )
        rows.setdefault(task.slot, []).append(TaskPlan(partition=task.partition, ranges=ranges))
    return tuple(SlotPlan(slot=slot, tasks=tuple(rows[slot])) for slot in sorted(rows))


def take_restored(tasks: Sequence[RunningTask], found: Sequence[StageReport], batch: BatchKey) -> int:
    """Note in tasks what their restore reported. Return the number of records replayed.

    Args:
        tasks: The restored tasks.
        found: The reports.
        batch: The first attempt of the restore.
    """
    placed = found[0].batch if found else batch  # a restore that failed once was another attempt
    reports = merged(found)
    for task in tasks:
        task.committed = placed
        task.state_keys = reports[task.partition].state_keys
        task.state_bytes = reports[task.partition].state_bytes
    return sum(report.changelog_records for report in reports.values())


class StoreRestorer:
    """Restores the stores of one subtopology. `restore` belongs to the thread that opens tasks."""

    def __init__(
        self,
        runtime: RunningInstance,
        subtopology: CompiledSubtopology,
        jobs: Executor,
        progress: SubtopologyProgress,
        next_batch: Callable[[], BatchKey],
    ) -> None:
        self._runtime, self._subtopology, self._jobs, self._progress = runtime, subtopology, jobs, progress
        self._name, self._next_batch = subtopology.subtopology_id, next_batch
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Cancel restores. A later one continues from their positions."""
        self._cancelled.set()

    def restore(self, request: Open, tasks: list[RunningTask]) -> None:
        """Bring the stores of these tasks to their positions. Raises HeadraceError."""
        if not tasks:
            return
        started = time.monotonic()
        # A replay is a writer of the stores like a micro-batch, and takes a number from the same sequence: a straggler
        # of an earlier micro-batch is refused by it.
        batch = self._next_batch()
        committed = {
            task.partition: {input_name(*where, task.topic_ids[where[0]]): at for where, at in task.positions.items()}
            for task in tasks
        }
        # Changelogs may have been created again since the last look; their ids are part of the stores' identity.
        self._runtime.plan_factory.forget_topic_ids(self._subtopology)
        found = self._runtime.state.catch_up(self._name, committed, self._cancelled.is_set, batch)
        replicas_s = time.monotonic() - started
        for task in tasks:
            done = found.restored.get(task.partition)
            if done is not None:
                task.committed, task.state_keys, task.state_bytes = batch, done.keys, done.bytes
        left = [task for task in tasks if task.partition not in found.restored]
        replayed = found.records + (self._restore_in_spark(request, left, batch) if left else 0)
        self._progress.restored += replayed
        log.info(
            "%s: opened tasks %s; replayed %d changelog records in %.2f s, %.2f s of it by the replica process",
            *(self._name, [task.partition for task in tasks], replayed, time.monotonic() - started, replicas_s),
        )

    def _restore_in_spark(self, request: Open, tasks: list[RunningTask], batch: BatchKey) -> int:
        """Restore by a Spark job. Return the number of records replayed."""
        found = self._run_job(request, restore_slots(tasks), batch)
        for report in merged(found).values():
            for note in report.notes:
                log.warning("%s: %s", self._name, note)
        return take_restored(tasks, found, batch)

    def _run_job(self, request: Open, slots: tuple[SlotPlan, ...], batch: BatchKey) -> list[StageReport]:
        for attempt in range(RETRIES):
            if self._cancelled.is_set():
                break
            try:
                key = replace(batch, attempt=attempt)
                plan = self._runtime.plan_factory.plan(self._subtopology, request.assignment, slots, key)
                return self._jobs.restore(plan, gives_up=self._cancelled.is_set)
            except BatchFailed as failed:
                # A changelog that ends in an open transaction took the API timeout already: the opener logs it, and
                # tries again for as long as the tasks are assigned.
                # The tasks of a lost slot are opened in another one.
                is_held_up = failed.cause is not None and failed.cause.code in ("range-unreachable", "slot-lost")
                if attempt == RETRIES - 1 or is_held_up or self._cancelled.is_set():
                    raise failed.cause or user_error(failed.error, f"{self._name}: restoring failed") from failed
                self._cancelled.wait(0.2 * 2**attempt)
        raise HeadraceError("stopped", f"{self._name} was stopped while it restored")
