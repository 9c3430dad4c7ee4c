"""Progress of a running application: in Spark's own keys, and in a status file for other processes.

`lastProgress` has the keys of Structured Streaming's `StreamingQueryProgress`, so code that watches queries works.
Headrace adds `subtopology`, `tasks`, and `residentSlots`: false for a micro-batch that was a Spark job of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.spark.listeners import timestamp
from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport, TaskReport
from headrace.spark.runtime.operators.silent_partitions import silent_partitions
from headrace.spark.runtime.tasks import RunningTask

__all__ = ["BatchTiming", "SubtopologyProgress", "Totals", "write_status"]

KEPT = 100
LEAST_MS, MOST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999
RATE_WINDOW = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTiming:
    """Monotonic seconds."""

    started: float
    processed: float
    committed: float


@dataclass(slots=True)
class Totals:
    """Monotonic counters since the start of this instance."""

    batches: int = 0
    resident: int = 0  # of these, in resident slots
    failed: int = 0  # attempts that came to nothing
    records_out: int = 0
    dead_letters: int = 0
    state_updates: int = 0
    records: dict[int, int] = field(default_factory=dict)  # by partition of the task, as are
    dropped: dict[int, int] = field(default_factory=dict)  # records that were skipped, and late rows
    late: dict[int, int] = field(default_factory=dict)  # of these, late rows
    dead: dict[int, int] = field(default_factory=dict)  # records sent to a dead letter topic
    watermarks_ms: dict[int, dict[str, int]] = field(default_factory=dict)  # the newest, by the operator's store
    stage_ms: dict[str, float] = field(default_factory=dict)

    def add(self, tasks: Mapping[int, TaskReport], durations_ms: Mapping[str, int], *, resident: bool) -> None:
        self.batches += 1
        self.resident += resident
        for partition, task in tasks.items():
            self.records_out += task.records_out
            self.dead_letters += task.dead
            self.state_updates += task.state_updates
            self.records[partition] = self.records.get(partition, 0) + task.records_in
            self.dropped[partition] = self.dropped.get(partition, 0) + task.skipped + task.late_rows
            self.late[partition] = self.late.get(partition, 0) + task.late_rows
            self.dead[partition] = self.dead.get(partition, 0) + task.dead
            if task.watermarks_ms:
                self.watermarks_ms[partition] = dict(task.watermarks_ms)
        for stage, spent in durations_ms.items():
            self.stage_ms[stage] = self.stage_ms.get(stage, 0) + spent


class SubtopologyProgress:
    """Progress of the last micro-batches of one subtopology. Written by its runner, read by any thread."""

    def __init__(self, name: str, topics: Sequence[str]) -> None:
        self.name, self._topics = name, list(topics)
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._rates: deque[tuple[float, int]] = deque()
        self.lag = 0
        self.records = 0
        self.restored = 0
        self.totals = Totals()
        self.on_progress: Callable[[Mapping[str, Any]], None] = lambda _row: None

    def set_lag(self, lag: int) -> None:
        self.lag = lag

    def add(
        self,
        plan: MicroBatchPlan,
        tasks: Mapping[int, TaskReport],
        reports: Sequence[StageReport],
        timing: BatchTiming,
        running: Sequence[RunningTask],
    ) -> None:
        """Add a committed micro-batch."""
        records = sum(task.records_in for task in tasks.values())
        seconds = max(1e-6, timing.committed - timing.started)
        self.lag = sum(task.lag for task in running)
        with self._lock:
            previous = self._rates[-1][0] if self._rates else timing.started - seconds
            self._rates.append((timing.committed, records))
            self.records += records
            # `inputRowsPerSecond` is over the time since the last commit, `processedRowsPerSecond` over the
            # micro-batch, as in Spark's `ProgressReporter`.
            waited = max(1e-6, timing.committed - previous)
            durations = _durations(reports, timing)
            resident = any(report.resident for report in reports)
            self.totals.add(tasks, durations, resident=resident)
            row = {
                "batchId": plan.batch.batch_id,
                "timestamp": timestamp(),
                "batchDuration": durations["triggerExecution"],
                "numInputRows": records,
                "inputRowsPerSecond": records / waited,
                "processedRowsPerSecond": records / seconds,
                "durationMs": durations,
                "stateOperators": _state(running, tasks, durations, len(plan.slots)),
                "sources": [self._source(plan, tasks, running, records, waited, seconds)],
                "sink": {
                    "description": f"headrace[{self.name}]",
                    "numOutputRows": sum(task.records_out for task in tasks.values()),
                },
                "subtopology": self.name,
                "tasks": sorted(task.partition for task in plan.tasks),
                "eventTime": _event_time(list(tasks.values())),
                "skippedRecords": sum(task.skipped for task in tasks.values()),
                "deadLetters": sum(task.dead for task in tasks.values()),
                "residentSlots": resident,
            }
            self._recent.append(row)
        self.on_progress(row)

    def add_failed(self, plan: MicroBatchPlan, reason: str) -> None:
        """Add a failed micro-batch as a row without records, so that `lastProgress` shows the failure."""
        ranges = [found for task in plan.tasks for found in task.ranges]
        starts = {f"{found.topic}-{found.partition}": found.start for found in ranges}
        source = {
            "description": f"headrace[{', '.join(self._topics)}]",
            "startOffset": starts,
            "endOffset": starts,
            "latestOffset": None,
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
        }
        row = {
            "batchId": plan.batch.batch_id,
            "timestamp": timestamp(),
            "batchDuration": 0,
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "durationMs": {"addBatch": 0, "commitOffsets": 0, "triggerExecution": 0},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": f"headrace[{self.name}]", "numOutputRows": 0},
            "subtopology": self.name,
            "tasks": sorted(task.partition for task in plan.tasks),
            "skippedRecords": 0,
            "deadLetters": 0,
            "failed": reason[:500],
        }
        with self._lock:
            self._recent.append(row)

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._recent)

    def records_per_second(self) -> float:
        """Over the last few seconds, idle time included."""
        now = time.monotonic()
        with self._lock:
            # A sliding window: an application that has become idle shows a rate of 0 after a few seconds.
            while self._rates and self._rates[0][0] < now - RATE_WINDOW:
                self._rates.popleft()
            return sum(count for _, count in self._rates) / RATE_WINDOW

    def _source(
        self,
        plan: MicroBatchPlan,
        tasks: Mapping[int, TaskReport],
        running: Sequence[RunningTask],
        records: int,
        waited: float,
        seconds: float,
    ) -> dict[str, Any]:
        ranges = [found for task in plan.tasks for found in task.ranges]
        latest = {f"{t}-{p}": end for task in running for (t, p), end in task.ends.items()}
        return {
            "description": f"headrace[{', '.join(self._topics)}]",
            "startOffset": {f"{found.topic}-{found.partition}": found.start for found in ranges},
            "endOffset": {name: at for task in tasks.values() for name, at in task.reached.items()},
            "latestOffset": latest,
            "numInputRows": records,
            "inputRowsPerSecond": records / waited,
            "processedRowsPerSecond": records / seconds,
        }


def _durations(reports: Sequence[StageReport], timing: BatchTiming) -> dict[str, int]:
    """Stages by their slowest slot; `triggerExecution` is the whole batch."""
    # Slots run side by side: the slowest one is what the micro-batch waited for.
    slowest: dict[str, float] = {}
    for report in reports:
        for name, spent in report.timings_ms.items():
            slowest[name] = max(spent, slowest.get(name, 0.0))
    return {
        "addBatch": round((timing.processed - timing.started) * 1000),
        "commitOffsets": round((timing.committed - timing.processed) * 1000),
        "triggerExecution": round((timing.committed - timing.started) * 1000),
        **{name: round(spent) for name, spent in sorted(slowest.items())},
    }


def _event_time(tasks: Sequence[TaskReport]) -> dict[str, str]:
    """Return the watermark that is furthest behind among these tasks, under Spark's key; nothing without one.

    A watermark that Python's calendar does not have is left out. `silentPartitions` names those that hold back windows.
    """
    silent = ", ".join(map(str, silent_partitions(tasks)))
    found = {"silentPartitions": silent} if silent else {}
    # The earliest, as Spark's default policy for several operators (`spark.sql.streaming.multipleWatermarkPolicy`).
    marks = [mark for task in tasks for mark in task.watermarks_ms.values()]
    if not marks or not LEAST_MS <= min(marks) <= MOST_MS:
        return found
    return {"watermark": timestamp(min(marks)), **found}


_OPERATORS = {
    "deduplicate": "dedupeWithinWatermark",
    "dedupe": "dedupe",
    "join": "symmetricHashJoin",
    "top_n": "topN",
}


def _state(
    running: Sequence[RunningTask], tasks: Mapping[int, TaskReport], durations: Mapping[str, int], slots: int
) -> list[dict[str, Any]]:
    """Spark's keys, all of them: its own listeners and dashboards read each."""
    updated = sum(task.state_updates for task in tasks.values())
    total, size = sum(task.state_keys for task in running), sum(task.state_bytes for task in running)
    if not total and not updated:
        return []
    return [
        {
            # Spark's own names, which by which its listeners tell operators apart.
            "operatorName": next((shown for kind, shown in _OPERATORS.items() if kind in durations), "aggregate"),
            "numRowsTotal": total,
            "numRowsUpdated": updated,
            "numRowsRemoved": 0,
            "allUpdatesTimeMs": durations["addBatch"],
            "allRemovalsTimeMs": 0,
            "commitTimeMs": durations["commitOffsets"],
            "memoryUsedBytes": size,
            "numRowsDroppedByWatermark": sum(task.late_rows for task in tasks.values()),
            "numShufflePartitions": slots,
            "numStateStoreInstances": len(running),
        }
    ]


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace the status file atomically: a reader sees the old file or the new one."""
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps(status))
    aside.replace(path)
