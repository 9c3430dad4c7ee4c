"""The status file: what `headrace run`, `top` and `demo` in another process show of an instance.

`<state_dir>/status.json`, replaced atomically four times a second:

    {"time": s, "pid", "group", "state": "starting" | "not-ready" | "running" | "stopped" | "failed", "member_id",
     "member_epoch", "tasks": {subtopology: [partitions]}, "opening": {subtopology: [partitions]}, "restoring":
     {subtopology: {partition: {"restored", "remaining", "bytes", "records_per_second"}}}, "standby": the same of copies
     that are kept current, "restored": {subtopology: records replayed when tasks were opened}, "records_per_second",
     "records", "lag", "batches": {subtopology: committed micro-batches}, "resident_batches": of these, those of
     resident slots, "batch_ms", "state_bytes", "state_keys", "state_disk_bytes", "error": null | {"code", "message",
     "fix"}, "not_ready": [[code, detail]], "url": where metrics are served, or null}
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from headrace.spark.runtime.progress import write_status
from headrace.spark.runtime.stores.restore_stage import progress_path
from headrace.spark.runtime.stores.state_coordinator import progress_of

if TYPE_CHECKING:
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["restoring", "state_of", "write_status_of"]


def state_of(runtime: RunningInstance) -> str:
    """Return the state of the instance in one word."""
    if runtime.error is not None:
        return "failed"
    if runtime.is_stopped.is_set():
        return "stopped"
    if runtime.not_ready and not runtime.has_tasks:  # with tasks it runs on, and something is left out
        return "not-ready"
    return "running" if runtime.snapshot is not None else "starting"


def write_status_of(runtime: RunningInstance, pid: int) -> None:
    """Write the status file of a running application."""
    write_status(runtime.directory.path / "status.json", _status(runtime, pid))


def _status(runtime: RunningInstance, pid: int) -> dict[str, Any]:
    runners = runtime.runners
    snapshot = runtime.snapshot
    running = {name: runner.tasks() for name, runner in runners.items()}
    last = [recent[-1] for runner in runners.values() if (recent := runner.progress.recent())]
    error = runtime.error
    return {
        "time": time.time(),
        "pid": pid,
        "group": runtime.group_id,
        "state": state_of(runtime),
        "member_id": snapshot.member_id if snapshot else None,
        "member_epoch": snapshot.member_epoch if snapshot else None,
        "tasks": {name: sorted(task.partition for task in tasks) for name, tasks in running.items()},
        "opening": {name: runner.opening() for name, runner in runners.items()},
        "restoring": {
            name: found for name, runner in runners.items() if (found := restoring(runtime, name, runner.opening()))
        },
        "standby": _standby(runtime),
        "restored": {name: runner.progress.restored for name, runner in runners.items()},
        "records_per_second": round(sum(runner.progress.records_per_second() for runner in runners.values()), 1),
        "records": {name: runner.progress.records for name, runner in runners.items()},
        "lag": {name: sum(task.lag for task in tasks) for name, tasks in running.items()},
        "batches": {name: runner.progress.totals.batches for name, runner in runners.items()},
        "resident_batches": {name: runner.progress.totals.resident for name, runner in runners.items()},
        "batch_ms": max((row["durationMs"]["triggerExecution"] for row in last), default=None),
        "state_bytes": sum(task.state_bytes for tasks in running.values() for task in tasks),
        "state_disk_bytes": runtime.state.disk_bytes(),
        "state_keys": sum(task.state_keys for tasks in running.values() for task in tasks),
        "error": {"code": error.code, "message": error.message, "fix": error.fix} if error else None,
        "not_ready": [list(found) for found in runtime.not_ready],
        "url": runtime.metrics_url,
    }


def restoring(runtime: RunningInstance, name: str, partitions: list[int]) -> dict[str, Any]:
    """Return the progress of each task's restore, as last reported by the replica process or the restore stage."""
    copies = runtime.state.copies()
    found: dict[str, Any] = {}
    for partition in partitions:
        if (name, partition) in copies:
            found[str(partition)] = progress_of(copies[name, partition])
            continue
        with contextlib.suppress(OSError, ValueError):
            found[str(partition)] = json.loads(progress_path(runtime.directory.path, name, partition).read_text())
    return found


def _standby(runtime: RunningInstance) -> dict[str, Any]:
    opening = {(name, partition) for name, runner in runtime.runners.items() for partition in runner.opening()}
    found: dict[str, Any] = {}
    for (name, partition), copy in sorted(runtime.state.copies().items()):
        if (name, partition) not in opening:
            found.setdefault(name, {})[str(partition)] = progress_of(copy)
    return found
