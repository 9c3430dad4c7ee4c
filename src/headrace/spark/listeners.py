"""Listeners of a running application: unchanged `StreamingQueryListener`s, and objects with the same methods.

A listener has some of `onQueryStarted`, `onQueryProgress`, `onQueryIdle` and `onQueryTerminated`, which receive Spark's
own event objects, and `onTasksChanged`, which receives a `TasksChanged`. All are called in order on one separate
thread, so a slow listener delays only other listeners. Exceptions in a listener are logged and otherwise ignored. If
thousands of events are queued, progress events are dropped and counted; other events are always delivered.
"""

from __future__ import annotations

import inspect
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_METHODS: Final = ("onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated", "onTasksChanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksChanged:
    """Tasks of this instance by subtopology: the current ones, and those added and removed by the change."""

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
    """The listeners of one running application and the queue of their events. Mutable."""

    def __init__(self, name: str, run_id: uuid.UUID, *, idle_interval: float = IDLE_INTERVAL_SECONDS) -> None:
        self.name, self._run_id, self._idle_interval = name, run_id, idle_interval
        # As Spark's ids: the same in every run of the application, while `run_id` is new in each.
        self._id = uuid.uuid5(uuid.NAMESPACE_URL, f"headrace:{name}")
        self._lock = threading.Condition()
        self._listeners: list[object] = []
        self._events: deque[_Event] = deque()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._tasks: Mapping[str, tuple[int, ...]] = {}
        self.left_out = 0

    def add(self, listener: object) -> None:
        """Register a listener. Raises TypeError if it has none of the listener methods."""
        check_listener(listener)
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None and not self._ending:
                self._thread = threading.Thread(target=self._loop, name="headrace-listeners", daemon=True)
                self._thread.start()

    def remove(self, listener: object) -> None:
        """Unregister a listener. Unknown listeners are ignored."""
        with self._lock:
            self._listeners = [found for found in self._listeners if found is not listener]

    # -- events -------------------------------------------------------------------------------------------------------

    def started(self) -> None:
        now = timestamp()
        tags: tuple[set[str], ...] = (set(),) if _HAS_JOB_TAGS else ()
        self._post("onQueryStarted", lambda: QueryStartedEvent(self._id, self._run_id, self.name, now, *tags))

    def progressed(self, row: Mapping[str, Any]) -> None:
        """Queue the progress event of a committed micro-batch. `row` is its entry in `recentProgress`."""
        row = {**row, "id": str(self._id), "runId": str(self._run_id), "name": self.name}
        self._post("onQueryProgress", lambda: QueryProgressEvent(_progress(row)))

    def tasks_changed(self, tasks: Mapping[str, tuple[int, ...]], member_epoch: int) -> None:
        """Queue a `TasksChanged` event if tasks were added or removed."""
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
        """Queue the last event, and wait up to `patience` seconds until all events are delivered."""
        text, code = (None, None) if error is None else (str(error), error.code)
        self._post("onQueryTerminated", lambda: QueryTerminatedEvent(self._id, self._run_id, text, code))
        with self._lock:
            self._ending = True
            self._lock.notify_all()
            thread = self._thread
        # A listener may stop the application itself, in its own thread, which cannot wait for its own end.
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)
            if thread.is_alive():
                log.warning("%s: a listener did not come to an end in %d s; going on without it", self.name, patience)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _post(self, method: str, make: Callable[[], object]) -> None:
        with self._lock:
            # Without a listener nothing is queued, so an application that has none pays nothing for events.
            if not self._listeners or self._ending:
                return
            # Progress may be dropped: the next event has newer figures. Start, end and task changes happen once.
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
                # Called without the lock: a listener may add or remove listeners, or stop the application.
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


def _progress(row: Mapping[str, Any]) -> StreamingQueryProgress:
    """Return Spark's progress object: a dictionary that also holds Headrace's own keys."""
    progress = StreamingQueryProgress.fromJson(dict(row))
    progress.update({key: value for key, value in row.items() if key not in progress})
    return progress


def check_listener(listener: object) -> None:
    """Check that `listener` has at least one listener method.

    Raises:
        ArgumentError: (a TypeError) if it has none.
    """
    if not any(callable(getattr(listener, method, None)) for method in _METHODS):
        raise ArgumentError(
            "wrong-type",
            f"{type(listener).__name__} is no listener: it has none of {', '.join(_METHODS)}",
            "pass an object, not a class, with one of these methods, as a StreamingQueryListener has them",
        )


def _beyond(these: Mapping[str, tuple[int, ...]], those: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the tasks in `these` that are not in `those`."""
    more = {name: tuple(sorted(set(found) - set(those.get(name, ())))) for name, found in these.items()}
    return {name: found for name, found in sorted(more.items()) if found}


def timestamp(milliseconds: int | None = None) -> str:
    """Return a time, by default the current one, in the format of Spark's progress events."""
    # By a difference: `fromtimestamp` refuses years that the platform's clock does not have.
    time = datetime.now(UTC) if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
