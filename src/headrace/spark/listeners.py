"""Who is told what a running application does: `StreamingQueryListener`s, unchanged, and anything of their shape.

A listener has some of `onQueryStarted`, `onQueryProgress`, `onQueryIdle`, `onQueryTerminated`, which get Spark's own
event objects, and `onTasksChanged`, which gets a `TasksChanged`. All are called on one thread of their own, in order:
a slow listener holds up nobody but listeners. What an exception in one of them says is logged, and nothing else comes
of it. When a listener is so slow that thousands of events wait, progress is left out and counted, never the others.
"""

from __future__ import annotations

import inspect
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from headrace.errors import ArgumentError, HeadraceError

__all__ = ["Listeners", "TasksChanged", "check_listener", "timestamp"]

log = logging.getLogger("headrace.spark")
MOST_WAITING: Final = 1000
IDLE_INTERVAL_SECONDS: Final = 10.0
"""As `spark.sql.streaming.noDataProgressEventInterval`."""
_HAS_JOB_TAGS: Final = "jobTags" in inspect.signature(QueryStartedEvent).parameters
"""PySpark 4.0 creates the event without job tags, later releases require them."""
_METHODS: Final = ("onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated", "onTasksChanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksChanged:
    """The tasks of this instance, by subtopology: all it has now, and what came and went."""

    name: str
    timestamp: str
    member_epoch: int
    tasks: Mapping[str, tuple[int, ...]]
    assigned: Mapping[str, tuple[int, ...]]
    revoked: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Event:
    method: str
    make: Callable[[], object]


class Listeners:
    """Mutable: the listeners of one running application and the events that wait for them."""

    def __init__(self, name: str, run_id: uuid.UUID, *, idle_interval: float = IDLE_INTERVAL_SECONDS) -> None:
        self.name, self._run_id, self._idle_interval = name, run_id, idle_interval
        self._id = uuid.uuid5(uuid.NAMESPACE_URL, f"headrace:{name}")
        self._lock = threading.Condition()
        self._listeners: list[object] = []
        self._events: deque[_Event] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._tasks: Mapping[str, tuple[int, ...]] = {}
        self.left_out = 0

    def add(self, listener: object) -> None:
        """Raises TypeError."""
        check_listener(listener)
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None and not self._ending:
                self._thread = threading.Thread(target=self._loop, name="headrace-listeners", daemon=True)
                self._thread.start()

    def remove(self, listener: object) -> None:
        """A listener that is not there is not missed."""
        with self._lock:
            self._listeners = [found for found in self._listeners if found is not listener]

    # -- what happens -------------------------------------------------------------------------------------------------

    def started(self) -> None:
        now = timestamp()
        tags: tuple[set[str], ...] = (set(),) if _HAS_JOB_TAGS else ()
        self._post("onQueryStarted", lambda: QueryStartedEvent(self._id, self._run_id, self.name, now, *tags))

    def progressed(self, row: Mapping[str, Any]) -> None:
        """A micro-batch is committed. `row` is what `recentProgress` holds."""
        told = {**row, "id": str(self._id), "runId": str(self._run_id), "name": self.name}
        self._post("onQueryProgress", lambda: QueryProgressEvent(_progress(told)))

    def tasks_changed(self, tasks: Mapping[str, tuple[int, ...]], member_epoch: int) -> None:
        """Posted only when something came or went."""
        before, self._tasks = self._tasks, {name: tuple(sorted(found)) for name, found in tasks.items() if found}
        assigned, revoked = _beyond(self._tasks, before), _beyond(before, self._tasks)
        if assigned or revoked:
            event = TasksChanged(
                name=self.name,
                timestamp=timestamp(),
                member_epoch=member_epoch,
                tasks=self._tasks,
                assigned=assigned,
                revoked=revoked,
            )
            self._post("onTasksChanged", lambda: event)

    def terminated(self, error: HeadraceError | None, patience: float = 5.0) -> None:
        """The last event. Waits a little until all are delivered."""
        text, code = (None, None) if error is None else (str(error), error.code)
        self._post("onQueryTerminated", lambda: QueryTerminatedEvent(self._id, self._run_id, text, code))
        with self._lock:
            self._ending = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)
            if thread.is_alive():
                log.warning("%s: a listener did not come to an end in %d s; going on without it", self.name, patience)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _post(self, method: str, make: Callable[[], object]) -> None:
        with self._lock:
            if not self._listeners or self._ending:
                return
            if method == "onQueryProgress" and len(self._events) >= MOST_WAITING:
                self.left_out += 1
                if self.left_out == 1:
                    log.warning("%s: listeners are slower than micro-batches; progress is left out for them", self.name)
                return
            self._events.append(_Event(method, make))
            self._lock.notify_all()

    def _loop(self) -> None:
        while True:
            with self._lock:
                if not self._events and not self._ending:
                    self._lock.wait(self._idle_interval)
                if self._events:
                    event = self._events.popleft()
                elif self._ending:
                    return
                else:
                    event = _Event("onQueryIdle", lambda: QueryIdleEvent(self._id, self._run_id, timestamp()))
                listeners = tuple(self._listeners)
            self._deliver(event, listeners)

    def _deliver(self, event: _Event, listeners: tuple[object, ...]) -> None:
        made = event.make()
        for listener in listeners:
            method = getattr(listener, event.method, None)
            if not callable(method):
                continue
            try:
                method(made)
            except Exception:
                log.exception("%s: %s.%s raised", self.name, type(listener).__name__, event.method)


def _progress(told: Mapping[str, Any]) -> StreamingQueryProgress:
    """Spark's object, a dictionary, with our own keys besides."""
    progress = StreamingQueryProgress.fromJson(dict(told))
    progress.update({key: value for key, value in told.items() if key not in progress})
    return progress


def check_listener(listener: object) -> None:
    """Raises ArgumentError (a TypeError) for something that has none of the methods."""
    if not any(callable(getattr(listener, method, None)) for method in _METHODS):
        raise ArgumentError(
            "wrong-type",
            f"{type(listener).__name__} is no listener: it has none of {', '.join(_METHODS)}",
            "pass an object, not a class, with one of these methods, as a StreamingQueryListener has them",
        )


def _beyond(these: Mapping[str, tuple[int, ...]], those: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """What `these` hold and `those` do not."""
    more = {name: tuple(sorted(set(found) - set(those.get(name, ())))) for name, found in these.items()}
    return {name: found for name, found in sorted(more.items()) if found}


def timestamp() -> str:
    """Now, as Spark writes it in progress."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
