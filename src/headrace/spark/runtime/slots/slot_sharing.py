"""Sharing of a cluster's cores between the subtopologies of an application.

Spark's fair scheduler gives a core that becomes free to the pool, so to the subtopology, with the fewest running tasks.
But a slot's job does not end, and frees none. A thread asks Spark which slots wait for a core, and lets a subtopology
with several give one up (`machine.slot_shares`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.spark.machine.slot_shares import SlotShare, SlotShares
from headrace.spark.runtime.slots.cluster_runner import ClusterRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SlotSharing", "share_of"]

log = logging.getLogger("headrace.spark")
LOOK_S = 1.0


class SlotSharing:
    """The thread of one application."""

    def __init__(self, spark: SparkSession, runners: Iterable[ClusterRunner]) -> None:
        """Start the thread. `runners`: of all subtopologies."""
        self._spark, self._runners = spark, {runner.group: runner for runner in runners}
        self._shares = SlotShares()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="headrace-slot-shares", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - a stopped session raises many kinds of errors here
                log.debug("cores were not shared: %s", error)

    def _look(self) -> None:
        # Spark is asked only while slots are missing.
        is_short = any(runner.is_short_of_cores for runner in self._runners.values())
        shares = {group: share_of(self._spark, group) for group in self._runners} if is_short else {}
        giver = self._shares.next_to_give_up(shares, time.monotonic())
        if giver is not None:
            self._runners[giver].give_up_slot()


def share_of(spark: SparkSession, group: str) -> SlotShare:
    """Return how many jobs of a group have a core, and how many wait for one. Each is a slot."""
    tracker = spark.sparkContext.statusTracker()
    active = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(group))
    held = 0
    for number in active:
        job = tracker.getJobInfo(number)
        stages = [tracker.getStageInfo(stage) for stage in (job.stageIds if job is not None else ())]
        held += any(stage is not None and stage.numActiveTasks > 0 for stage in stages)
    return SlotShare(held=held, waiting=len(active) - held)
