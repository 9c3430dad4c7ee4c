"""Application metrics as metric families for Prometheus, under Kafka Streams' names where Kafka Streams has the metric.

Values are read on each scrape; micro-batches only add to a few sums. Kafka Streams reports most of these per thread and
task. Tasks have no threads here, so the label is `task_id` (`<subtopology>_<partition>`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headrace.metrics.prometheus_text import Family, Values, counter, gauge, unlabeled
from headrace.spark.runtime.status import restoring, state_of

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance
    from headrace.spark.runtime.progress import SubtopologyProgress

__all__ = ["application_families"]

_TASK: Final = "kafka.streams:type=stream-task-metrics"
_CLIENT: Final = "kafka.streams:type=stream-metrics"
_UPDATER: Final = "kafka.streams:type=stream-state-updater-metrics"
_FETCHES: Final = "kafka.consumer:type=consumer-fetch-manager-metrics"
_OURS: Final = "headrace:type=app"
# KafkaStreams.State by its number: CREATED 0, REBALANCING 1, RUNNING 2, …, NOT_RUNNING 4, PENDING_ERROR 5, ERROR 6
_CLIENT_STATES: Final = {"starting": 1, "not-ready": 1, "running": 2, "stopped": 4, "failed": 6}


def application_families(runtime: RunningInstance) -> Iterator[Family]:
    """Return all metric families of a running application. Families without a current value have no samples."""
    # One scrape reads the state of several threads without a lock: figures may be a micro-batch apart, never half
    # written.
    yield from _client(runtime)
    yield from _tasks(runtime)
    yield from _restoring(runtime)
    yield from _batches({name: runner.progress for name, runner in runtime.runners.items()})
    yield from _loops(runtime)


def _client(runtime: RunningInstance) -> Iterator[Family]:
    state, snapshot = state_of(runtime), runtime.snapshot
    text = "The number of KafkaStreams.State: 1 joining or not ready, 2 running, 4 stopped, 6 failed."
    yield gauge(_CLIENT, "client-state", text, unlabeled(_CLIENT_STATES[state]))
    yield gauge(_OURS, "member-epoch", "The member's epoch; 0 outside of the group.", unlabeled(_epoch(snapshot)))
    yield gauge(
        _OURS,
        "tasks",
        "Tasks that run here, by subtopology.",
        [(len(runner.tasks()), {"subtopology": name}) for name, runner in runtime.runners.items()],
    )


def _epoch(snapshot: object) -> int:
    return max(0, int(getattr(snapshot, "member_epoch", 0)))


def _tasks(runtime: RunningInstance) -> Iterator[Family]:
    running = [(name, task) for name, runner in runtime.runners.items() for task in runner.tasks()]
    lag = [
        (max(0, end - task.positions.get(where, 0)), {"topic": where[0], "partition": str(where[1])})
        for _, task in running
        for where, end in task.ends.items()
    ]
    yield gauge(_FETCHES, "records-lag", "Records behind the end of an input partition, as last seen.", lag)
    progress = {name: runner.progress for name, runner in runtime.runners.items()}
    processed = [found for name, each in progress.items() for found in _by_task(name, each.totals.records)]
    yield counter(_TASK, "process-total", "Records processed and committed.", processed)
    dropped = [found for name, each in progress.items() for found in _by_task(name, each.totals.dropped)]
    yield counter(
        _TASK, "dropped-records-total", "Records that were skipped or became dead letters, and late rows.", dropped
    )
    keys = [(task.state_keys, _task_id(name, task.partition)) for name, task in running]
    yield gauge(_OURS, "state-keys", "Keys in the task's store.", keys)
    size = [(task.state_bytes, _task_id(name, task.partition)) for name, task in running]
    yield gauge(_OURS, "state-bytes", "Bytes of the task's store.", size)


def _restoring(runtime: RunningInstance) -> Iterator[Family]:
    opening = {name: runner.opening() for name, runner in runtime.runners.items()}
    found = {name: restoring(runtime, name, partitions) for name, partitions in opening.items()}
    active = sum(len(partitions) for partitions in opening.values())
    yield gauge(_UPDATER, "active-restoring-tasks", "Tasks that were assigned and do not run yet.", unlabeled(active))
    for attribute, key, text in (
        ("restore-total", "restored", "Changelog records restored so far, of tasks that are being restored."),
        ("restore-remaining-records-total", "remaining", "Changelog records still to come, of tasks being restored."),
    ):
        values = [
            (float(row.get(key) or 0), _task_id(name, int(partition)))
            for name, rows in found.items()
            for partition, row in rows.items()
        ]
        yield gauge(_TASK, attribute, text, values)
    yield from _copies(runtime, opening)


def _copies(runtime: RunningInstance, opening: dict[str, list[int]]) -> Iterator[Family]:
    state = runtime.state
    copies = {task: copy for task, copy in state.copies().items() if task[1] not in opening.get(task[0], [])}
    yield gauge(_UPDATER, "standby-updating-tasks", "Copies that are kept current.", unlabeled(len(copies)))
    lag = [(float(copy.end - copy.position), _task_id(*task)) for task, copy in sorted(copies.items())]
    yield gauge(_OURS, "standby-lag", "Changelog offsets that a copy kept current lacks.", lag)
    disk = unlabeled(state.disk_bytes())
    yield gauge(_OURS, "state-disk-bytes", "What all stores of the state directory take on disk.", disk)
    if state.replicas is None:
        return
    records, read = unlabeled(state.replicas.restored_records), unlabeled(state.replicas.restored_bytes)
    yield counter(_OURS, "restored-records-total", "Changelog records read into stores, copies included.", records)
    yield counter(_OURS, "restored-bytes-total", "Keys and values of those records.", read)
    rebuilt = unlabeled(state.replicas.rebuilt)
    yield counter(_OURS, "stores-rebuilt-total", "Stores that were of no use, and why is in the log.", rebuilt)


def _batches(progress: dict[str, SubtopologyProgress]) -> Iterator[Family]:
    def by_subtopology(name: str) -> Values:
        return [(getattr(each.totals, name), {"subtopology": found}) for found, each in progress.items()]

    yield counter(_OURS, "micro-batches-total", "Micro-batches committed.", by_subtopology("batches"))
    text = "Of these, micro-batches of resident slots; each of the others was a Spark job."
    yield counter(_OURS, "resident-micro-batches-total", text, by_subtopology("resident"))
    text = "Attempts of a micro-batch that came to nothing: failed, refused or undone."
    yield counter(_OURS, "failed-micro-batches-total", text, by_subtopology("failed"))
    yield counter(_OURS, "output-records-total", "Records written to topics and tables.", by_subtopology("records_out"))
    yield counter(_OURS, "dead-letters-total", "Records sent to a dead letter topic.", by_subtopology("dead_letters"))
    yield counter(_OURS, "state-updates-total", "Keys changed in stores.", by_subtopology("state_updates"))
    spent = [
        (milliseconds, {"subtopology": name, "stage": stage})
        for name, each in progress.items()
        for stage, milliseconds in sorted(each.totals.stage_ms.items())
    ]
    text = "Time of micro-batches by stage, ms: triggerExecution is the whole, of which addBatch is Spark's job."
    yield counter(_OURS, "batch-ms-total", text, spent)


def _loops(runtime: RunningInstance) -> Iterator[Family]:
    runners = runtime.runners.items()
    now = time.monotonic()
    quiet = [(now - runner.last_active_s, {"subtopology": name}) for name, runner in runners]
    yield gauge(_OURS, "last-turn-seconds", "Since the loop of a subtopology last turned; long: it is stuck.", quiet)
    limits = [(runner.records_limit, {"subtopology": name}) for name, runner in runners]
    yield gauge(_OURS, "batch-records-limit", "Records per task that the next micro-batch may take.", limits)
    lost = unlabeled(max((runner.losses for _, runner in runners), default=0))
    yield counter(_OURS, "memberships-lost-total", "How often all tasks were lost: fenced, or the guardian died.", lost)


def _by_task(name: str, counts: dict[int, int]) -> list[tuple[float, dict[str, str]]]:
    return [(count, _task_id(name, partition)) for partition, count in sorted(counts.items())]


def _task_id(subtopology: str, partition: int) -> dict[str, str]:
    return {"task_id": f"{subtopology}_{partition}"}
