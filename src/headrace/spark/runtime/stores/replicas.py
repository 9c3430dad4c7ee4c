"""Driver side of the replica process: the tasks it follows, requested restores, and progress.

The process is started with an application that has state and runs on one machine. It is restarted when it dies. Pending
requests then return without a result, and the stage that opens a task replays the rest.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.child_process import ChildProcess, python_module
from headrace.spark.runtime.stores.store_records import BatchKey

__all__ = ["ReplicaProgress", "Replicas", "RestoreResult", "RestoredTask", "StoreOfTask"]

log = logging.getLogger("headrace.spark")

CLOSE_WAIT_S = 5.0
RESTART_PAUSE_S = 1.0
FIND_WAIT_S = 10.0

Task = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOfTask:
    """Name of one store of a subtopology's tasks, and the changelog that it copies."""

    name: str
    changelog_topic: str
    schema_hash: str
    source_topics: tuple[str, ...]  # of what it aggregates
    fingerprint: str = ""  # of its rows, in hex; empty: rows of any schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """Progress of one task's copy; offsets are sums over the changelogs of its stores."""

    position: int
    end: int
    records: int  # replayed since the copy was taken up
    bytes: int
    remaining: int  # offsets to the end, as last seen
    seconds: float

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTask:
    """A task whose stores are ready for its first micro-batch; sums over its stores."""

    keys: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """Result of a restore ahead of opening: records replayed, and the tasks that are complete, by partition."""

    records: int = 0
    restored: Mapping[int, RestoredTask] = field(default_factory=dict)


class Replicas:
    """Handle of the replica process. Mutable; its methods may be called from any thread."""

    def __init__(self, settings: Mapping[str, Any], started: Callable[[int], None] = lambda _pid: None) -> None:
        """Args: `settings` as `ReplicaProcess` takes them; `started` is called with the pid of each process."""
        self._settings, self._started = dict(settings), started
        self._lock = threading.Condition()
        self._followed: frozenset[Task] = frozenset()
        self._progress: dict[Task, ReplicaProgress] = {}
        self._opened: dict[int, RestoreResult] = {}
        self._numbers = 0
        self._waiting = 0
        self._finds: list[dict[Task, int]] = []
        self._on_disk: dict[Task, int] = {}
        self._generation = 0
        self._closed = False
        self.restored_records = 0
        self.restored_bytes = 0
        self.rebuilt = 0
        self._launch()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_asked(self) -> bool:
        """Whether a thread waits in `catch_up`."""
        return self._waiting > 0

    def progress(self) -> dict[Task, ReplicaProgress]:
        """Return the progress of all tasks that are followed or opened."""
        with self._lock:
            return dict(self._progress)

    def follow(self, tasks: Iterable[Task]) -> None:
        """Keep copies of exactly these tasks current."""
        wanted = frozenset(tasks)
        with self._lock:
            if wanted == self._followed:
                return
            self._followed = wanted
            self._send_followed()

    def catch_up(
        self,
        subtopology: str,
        tasks: Mapping[int, Mapping[str, int]],
        gives_up: Callable[[], bool],
        place_as: BatchKey | None = None,
    ) -> RestoreResult:
        """Wait until the stores of these tasks are near the ends of their changelogs, and released by the process.

        Args:
            subtopology: Id of the subtopology.
            tasks: Partition → {"topic-partition@topic id": committed input offset}. A store at these offsets is left as
                it is.
            gives_up: Asked repeatedly; True cancels.
            place_as: Stores that reach the very end become the active task's at once, as of this batch, and need no
                restore when the task is opened.

        Returns:
            An empty result if the process died or `gives_up` cancelled.
        """
        with self._lock:
            self._numbers += 1
            number, generation = self._numbers, self._generation
            # Removed here as well as in the process, or a repeated `follow` would let it take the store again while the
            # task is open.
            self._followed -= {(subtopology, partition) for partition in tasks}
            listed = [{"partition": p, "committed": dict(committed)} for p, committed in sorted(tasks.items())]
            batch = asdict(place_as) if place_as is not None else None
            self._send({"do": "open", "number": number, "subtopology": subtopology, "tasks": listed, "batch": batch})
            self._waiting += 1
            try:
                # `generation` changes with each process. A request that went to a process which died is never answered.
                while number not in self._opened:
                    if self._closed or generation != self._generation or gives_up():
                        return RestoreResult()
                    self._lock.wait(0.1)
                return self._opened.pop(number)
            finally:
                self._waiting -= 1

    def find(self, tasks: Iterable[Task]) -> dict[Task, int]:
        """Return changelog offsets of these tasks' usable stores on disk; nothing on timeout.

        The process maps the files, because mapping a damaged file can kill a process.
        """
        deadline = time.monotonic() + FIND_WAIT_S
        with self._lock:
            generation = self._generation
            self._finds.clear()
            self._send({"do": "find", "tasks": [list(task) for task in tasks]})
            while not self._finds:
                left = deadline - time.monotonic()
                if self._closed or generation != self._generation or left <= 0:
                    return {}
                self._lock.wait(left)
            return self._finds[-1]

    def request_offsets(self, tasks: Iterable[Task]) -> None:
        """Request the offsets of `find` without waiting; `take_offsets` returns them later."""
        with self._lock:
            self._send({"do": "find", "tasks": [list(task) for task in sorted(tasks)]})

    def take_offsets(self) -> dict[Task, int]:
        """Return the offsets on disk that arrived since the last call."""
        with self._lock:
            found, self._on_disk = self._on_disk, {}
            return found

    def begin_close(self) -> None:
        """Tell the process to end, without waiting for it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._send({"do": "close"})
                self._lock.notify_all()

    def close(self) -> None:
        """End the process."""
        self.begin_close()
        self._process.wait(CLOSE_WAIT_S)
        self._process.close()

    def _launch(self) -> None:
        self._process = process = ChildProcess(python_module("headrace.spark.runtime.stores.replica_process"))
        self._send(self._settings)
        # A new process learns what the last one followed.
        if self._followed:
            self._send_followed()
        self._started(process.pid)
        process.listen(
            lambda line: self._on_message(json.loads(line)),
            lambda code: self._on_end(process, code),
            thread_name="headrace-replicas",
        )

    def _on_end(self, process: ChildProcess, code: int) -> None:
        with self._lock:
            if self._closed:
                return
            process.close()
            # All waiting calls return without a result, and the stage that opens the tasks does the rest.
            self._generation += 1
            self._progress.clear()
            self._lock.notify_all()
        log.warning("the replica process ended (%s); starting another", code)
        time.sleep(RESTART_PAUSE_S)
        with self._lock:
            if not self._closed:
                self._launch()

    def _on_message(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            match message["type"]:
                case "progress":
                    self._take_progress(message["tasks"])
                case "opened":
                    restored = {p: RestoredTask(keys=keys, bytes=size) for p, keys, size in message["restored"]}
                    self._opened[message["number"]] = RestoreResult(records=message["records"], restored=restored)
                    self._lock.notify_all()
                case "found":
                    found = {(name, partition): offset for name, partition, offset in message["offsets"]}
                    self._finds.append(found)
                    self._on_disk |= found
                    self._lock.notify_all()
                case "note":
                    self.rebuilt += 1
                    log.warning("%s", message["text"])

    def _take_progress(self, tasks: list[Mapping[str, Any]]) -> None:
        now: dict[Task, ReplicaProgress] = {}
        for told in tasks:
            name, partition = told["task"]
            if not told["looked"]:
                continue
            found = ReplicaProgress(
                position=told["position"],
                end=told["end"],
                records=told["records"],
                bytes=told["bytes"],
                remaining=told["remaining"],
                seconds=told["seconds"],
            )
            before = self._progress.get((name, partition))
            # Counters of a copy begin at zero when it is taken up again. Totals of the instance only grow.
            if before is None or before.records > found.records:
                self.restored_records += found.records
                self.restored_bytes += found.bytes
            else:
                self.restored_records += found.records - before.records
                self.restored_bytes += found.bytes - before.bytes
            now[name, partition] = found
        self._progress = now

    def _send_followed(self) -> None:
        self._send({"do": "follow", "tasks": [list(task) for task in sorted(self._followed)]})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._process.send(message)
