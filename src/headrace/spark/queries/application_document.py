"""Internals of a running application as one document: topology, tasks, rates, watermarks, state sizes, durations.

    GET /v1/application

The page of a cluster (`headrace ui`) puts the documents of all instances of a group together. Each value comes from
counters that micro-batches keep anyway, so a document costs a few dictionaries and no look-up.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.spark.queries.http_requests import Answer
from headrace.spark.runtime.progress import LEAST_MS, MOST_MS
from headrace.spark.runtime.status import restoring, state_of
from headrace.spark.topology.nodes import (
    Branch,
    CompiledSubtopology,
    Deduplication,
    Join,
    OverRows,
    RepartitionSink,
    RepartitionSource,
    Sink,
    Source,
    TableJoin,
    TableSink,
    TopicSink,
    TopN,
    Transform,
    Watermark,
)
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunnerView, RunningInstance
    from headrace.spark.runtime.tasks import RunningTask

__all__ = ["APPLICATION_PATH", "answer_application", "application_document", "percentile"]

APPLICATION_PATH = ("v1", "application")
FORMAT = 1
"""Raised when a reader of the document before would misread it. New keys do not raise it."""


def answer_application(runtime: RunningInstance, *, now_ms: int) -> Answer:
    """Return the document of a running application as a response."""
    return Answer(status=200, body=json.dumps(application_document(runtime, now_ms=now_ms)).encode() + b"\n")


def application_document(runtime: RunningInstance, *, now_ms: int) -> dict[str, Any]:
    """Return the document of this instance.

    Args:
        runtime: The instance.
        now_ms: Wall-clock time, which readers compute ages from.
    """
    # Read without a lock, as for metrics: figures may be a micro-batch apart, never half written.
    snapshot = runtime.snapshot
    runners = {name: runtime.runners[name] for name in sorted(runtime.runners)}
    return {
        "format": FORMAT,
        "application": runtime.group_id,
        "version": __version__,
        "time_ms": now_ms,
        "started_ms": int(runtime.started_at * 1000),
        "state": state_of(runtime),
        "reasons": [detail for _, detail in runtime.not_ready],
        "member_id": None if snapshot is None else snapshot.member_id,
        "member_epoch": None if snapshot is None else snapshot.member_epoch,
        "host": platform.node(),
        "pid": os.getpid(),
        "guarantee": runtime.settings.processing_guarantee,
        "state_disk_bytes": runtime.state.disk_bytes(),
        "memberships_lost": max((runner.losses for runner in runners.values()), default=0),
        "subtopologies": [_subtopology(runtime, name, runner) for name, runner in runners.items()],
        "standby": _copies(runtime, runners),
    }


def _subtopology(runtime: RunningInstance, name: str, runner: RunnerView) -> dict[str, Any]:
    progress, totals = runner.progress, runner.progress.totals
    tasks = sorted(runner.tasks(), key=lambda task: task.partition)
    opening = runner.opening()
    finished = [row for row in progress.recent() if "failed" not in row]
    places = runner.slot_places()
    return {
        "id": name,
        **_topology(runner.subtopology),
        "records": progress.records,
        "records_per_second": round(progress.records_per_second(), 1),
        "output_records": totals.records_out,
        "lag": sum(task.lag for task in tasks),
        "batches": totals.batches,
        "resident_batches": totals.resident,
        "failed_batches": totals.failed,
        "batch_ms": _durations([row["batchDuration"] for row in finished]),
        "stages_ms": _stages(finished),
        "tasks": [_task(task, runner, places) for task in tasks],
        "opening": [
            {
                "partition": partition,
                **{key: progress.get(key) for key in ("restored", "remaining")},
            }
            for partition, progress in _opening(runtime, name, opening).items()
        ],
    }


def _opening(runtime: RunningInstance, name: str, partitions: list[int]) -> dict[int, Mapping[str, Any]]:
    found = restoring(runtime, name, partitions)
    return {partition: found.get(str(partition), {}) for partition in sorted(partitions)}


def _task(task: RunningTask, runner: RunnerView, places: Mapping[int, str]) -> dict[str, Any]:
    totals, partition = runner.progress.totals, task.partition
    late = totals.late.get(partition, 0)
    return {
        "partition": partition,
        "slot": task.slot,
        "place": places.get(task.slot, ""),
        "records": totals.records.get(partition, 0),
        "lag": task.lag,
        "state_keys": task.state_keys,
        "state_bytes": task.state_bytes,
        "watermarks_ms": {
            store: mark if LEAST_MS <= mark <= MOST_MS else None
            for store, mark in sorted(totals.watermarks_ms.get(partition, {}).items())
        },
        "late_rows": late,
        "skipped": totals.dropped.get(partition, 0) - late,
        "dead_letters": totals.dead.get(partition, 0),
    }


def _copies(runtime: RunningInstance, runners: Mapping[str, RunnerView]) -> list[dict[str, Any]]:
    opening = {(name, partition) for name, runner in runners.items() for partition in runner.opening()}
    return [
        {"subtopology": name, "partition": partition, "lag": max(0, copy.end - copy.position)}
        for (name, partition), copy in sorted(runtime.state.copies().items())
        if (name, partition) not in opening
    ]


# -- durations --------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed (nearest rank).

    Args:
        values: At least one.
        share: More than 0, at most 1.
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def _durations(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"count": 0, "p50": None, "p99": None, "max": None}
    return {
        "count": len(values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def _stages(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = sorted({name for row in rows for name in row["durationMs"]} - {"triggerExecution"})
    return {name: _durations([row["durationMs"][name] for row in rows if name in row["durationMs"]]) for name in names}


# -- topology ---------------------------------------------------------------------------------------------------------

_KINDS: tuple[tuple[type, str], ...] = (
    (Join, "join"),
    (Transform, "stateful processor"),
    (OverRows, "ranking over rows"),
    (Deduplication, "deduplication"),
    (Watermark, "watermark"),
    (TableJoin, "join of tables"),
    (TopN, "top n"),
)


def _topology(part: CompiledSubtopology) -> dict[str, Any]:
    operators = {operator["store"]: operator for branch in part.branches for operator in _operators(branch)}
    return {
        "sources": [_source(source) for source in part.sources],
        "operators": list(operators.values()),
        "sinks": list({json.dumps(_sink(branch.sink)): _sink(branch.sink) for branch in part.branches}.values()),
    }


def _operators(branch: Branch) -> list[dict[str, str]]:
    found = (branch.head, branch.deduplication, branch.watermark, branch.operator)
    return [
        {"store": each.name, "kind": _kind(each), "changelog": each.changelog_topic}
        for each in found
        # A relayed watermark has its store in another subtopology.
        if each is not None and hasattr(each, "changelog_topic")
    ]


def _kind(operator: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(operator, kind)), "aggregate")


def _source(source: Source) -> dict[str, Any]:
    if isinstance(source, RepartitionSource):
        return {"kind": "repartition", "topics": [source.topic]}
    return {"kind": "topic", "topics": list(source.topics)}


def _sink(sink: Sink) -> dict[str, str]:
    if isinstance(sink, RepartitionSink):
        return {"kind": "repartition", "name": sink.topic}
    if isinstance(sink, TopicSink):
        return {"kind": "topic", "name": sink.topic}
    return {"kind": "table" if isinstance(sink, TableSink) else "foreachBatch", "name": sink.name}
