"""The thread that tells listeners: order, idleness, slowness. No Spark session is needed."""

import threading
import uuid

from headrace.errors import HeadraceError
from headrace.spark import listeners as rules
from headrace.spark.listeners import Listeners

ROW = {
    "batchId": 1,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchDuration": 5,
    "durationMs": {},
    "stateOperators": [],
    "sources": [],
    "sink": {"description": "x", "numOutputRows": 0},
}


class Kept:
    def __init__(self):
        self.events = []
        self.arrived = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def _note(self, event):
        self.may_go_on.wait(20)
        self.events.append(event)
        self.arrived.release()

    def __getattr__(self, name):
        if name.startswith("on"):
            return self._note
        raise AttributeError(name)


def made(**more):
    told = Listeners("app", uuid.UUID(int=7), **more)
    kept = Kept()
    told.add(kept)
    return told, kept


def test_order_and_identity():
    told, kept = made()
    told.started()
    told.tasks_changed({"s": (1, 0), "t": ()}, 3)
    told.tasks_changed({"s": (0, 1)}, 4)  # nothing came or went
    told.progressed(ROW)
    told.tasks_changed({"s": (1,), "u": (5,)}, 5)
    told.terminated(HeadraceError("broken", "it broke"))
    kinds = [type(event).__name__ for event in kept.events]
    assert kinds == ["QueryStartedEvent", "TasksChanged", "QueryProgressEvent", "TasksChanged", "QueryTerminatedEvent"]
    started, first, progress, second, end = kept.events
    assert started.runId == progress.progress.runId == end.runId == uuid.UUID(int=7)
    assert (first.tasks, first.assigned, first.revoked) == ({"s": (0, 1)}, {"s": (0, 1)}, {})
    assert (second.tasks, second.assigned, second.revoked) == ({"s": (1,), "u": (5,)}, {"u": (5,)}, {"s": (0,)})
    assert "it broke" in end.exception
    assert end.errorClassOnException == "broken"
    assert Listeners("app", uuid.UUID(int=8))._id == started.id  # of the name, not of the run


def test_an_idle_event_is_sent_when_no_records_come():
    told, kept = made(idle_interval=0.01)
    assert kept.arrived.acquire(timeout=20)
    told.terminated(None)
    assert type(kept.events[0]).__name__ == "QueryIdleEvent"
    assert type(kept.events[-1]).__name__ == "QueryTerminatedEvent"


def test_a_slow_listener_misses_progress_and_nothing_else(monkeypatch, caplog):
    monkeypatch.setattr(rules, "MOST_WAITING", 3)
    told, kept = made()
    kept.may_go_on.clear()
    for _ in range(20):
        told.progressed(ROW)
    told.tasks_changed({"s": (0,)}, 1)
    kept.may_go_on.set()
    told.terminated(None)
    kinds = [type(event).__name__ for event in kept.events]
    assert kinds[-2:] == ["TasksChanged", "QueryTerminatedEvent"]
    assert kinds.count("QueryProgressEvent") + told.left_out == 20
    assert told.left_out > 0
    assert caplog.text.count("slower than micro-batches") == 1


def test_one_that_never_returns_does_not_hold_up_the_end(caplog):
    told, kept = made()
    kept.may_go_on.clear()
    told.progressed(ROW)
    told.terminated(None, patience=0.05)
    assert "did not come to an end" in caplog.text
    kept.may_go_on.set()
