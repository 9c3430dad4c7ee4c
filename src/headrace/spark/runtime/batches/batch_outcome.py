"""Evaluation of a micro-batch's reports: the offsets its tasks reached, and figures for the size of the next one.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.spark.runtime.batches.batch_limits import BatchMeasure
from headrace.spark.runtime.batches.fetch_stage import name_of
from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport, TaskReport
from headrace.spark.runtime.progress import BatchTiming

__all__ = ["complete", "measure"]


def measure(
    plan: MicroBatchPlan,
    tasks: Mapping[int, TaskReport],
    reports: list[StageReport],
    timing: BatchTiming,
    *,
    succeeded: bool,
) -> BatchMeasure:
    """Return the figures from which `BatchLimits` derives the size of the next batch.

    Time outside of Headrace's stages counts as overhead, or as time of a `foreachBatch` function.
    """
    spent_ms = (timing.committed - timing.started) * 1000
    stages_ms = max((report.timings_ms.get(report.stage, 0.0) for report in reports), default=0.0)
    read = [
        max(0, tasks[t.partition].reached[name_of(r.topic, r.partition)] - r.start)
        for t in plan.tasks
        for r in t.ranges
    ]
    return BatchMeasure(
        largest_records=max(read),
        largest_bytes=max(task.bytes_in for task in tasks.values()),
        spent_ms=spent_ms,
        overhead_ms=max(0.0, spent_ms - stages_ms),
        succeeded=succeeded,
    )


def complete(plan: MicroBatchPlan, tasks: dict[int, TaskReport], reports: list[StageReport]) -> dict[int, TaskReport]:
    """Check that every task of the plan reports the offsets it reached, and that chains with the same input agree on
    them.
    """
    fetched = [task for report in reports for task in report.tasks if task.reached]
    for planned in plan.tasks:
        report = tasks.setdefault(planned.partition, TaskReport(partition=planned.partition))
        mine = [task.reached for task in fetched if task.partition == planned.partition]
        for found in planned.ranges:
            name = f"{found.topic}-{found.partition}"
            if not plan.ends_early:
                report.reached[name] = found.end
                continue
            report.reached[name] = min((seen[name] for seen in mine if name in seen), default=found.start)
    return tasks
