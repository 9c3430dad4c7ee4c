"""`stop()` returns soon, whatever is under way: a restore, a broker that is away."""

import threading
import time

import lmdb
import pytest

from headrace.spark.runtime.stores.state_coordinator import StateCoordinator
from headrace.spark.runtime.task_opener import TaskOpener

pytestmark = pytest.mark.spark


def stops(app):
    """Whether `stop()` returns long before a request's time limit (60 s) or a restore that never ends."""
    stopping = threading.Thread(target=app.stop, daemon=True)
    stopping.start()
    stopping.join(45)
    return not stopping.is_alive()


def wait_for_the_opener(monkeypatch):
    """Another subtopology's micro-batch takes its time, and the restore breaks off before the opener is closed."""
    broke_off, armed = threading.Event(), threading.Event()
    open_tasks, close = TaskOpener._open, TaskOpener.close

    def opens(opener, request):
        try:
            return open_tasks(opener, request)
        except Exception:
            broke_off.set()
            raise

    def closes(opener):
        if opener._restorer is not None and armed.is_set():
            assert broke_off.wait(30)
            time.sleep(0.2)  # until its thread has told of it
        close(opener)

    monkeypatch.setattr(TaskOpener, "_open", opens)
    monkeypatch.setattr(TaskOpener, "close", closes)
    return broke_off, armed


@pytest.mark.parametrize("by", ["the replica process", "a stage"])
def test_while_a_store_is_restored(by, monkeypatch, broker, make_app, running, spark, flights, tmp_path):
    if by == "a stage":
        monkeypatch.setattr(StateCoordinator, "start", lambda _state: None)
    broke_off, armed = wait_for_the_opener(monkeypatch)
    flights.send(broker, range(300))
    with flights.count_by_origin(make_app(instance="a")).start() as first:
        first.wait_until("caught-up", timeout=60)
    [store] = (tmp_path / "a").glob("*_0/*/data.mdb")
    held = tmp_path / "b" / store.parent.relative_to(tmp_path / "a")
    held.mkdir(parents=True)
    with lmdb.open(str(held), max_dbs=2) as environment, environment.begin(write=True):
        # the restore waits for the store's lock
        app = flights.count_by_origin(make_app(instance="b")).start()
        [runner] = [runner for runner in app._runtime.runners.values() if runner.subtopology.aggregates]
        tracker, group = spark.sparkContext.statusTracker(), runner._jobs.restore_group
        if by == "a stage":
            app._wait(lambda: {*tracker.getActiveJobsIds()} & {*tracker.getJobIdsForGroup(group)}, None, "restoring")
        else:
            app._wait(lambda: app._runtime.state.replicas.is_asked, None, "restoring")
        armed.set()
        assert stops(app)
        armed.clear()
    assert broke_off.is_set()
    assert app.exception() is None
    flights.send(broker, range(300, 420))
    running(flights.count_by_origin(make_app(instance="b"))).wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(420))


def test_while_the_broker_is_away(broker, make_app, flights):
    flights.send(broker, range(100))
    app = flights.count_by_origin(make_app()).start()
    app.wait_until("caught-up", timeout=60)
    broker.kill()
    assert stops(app)
    assert app.exception() is None
