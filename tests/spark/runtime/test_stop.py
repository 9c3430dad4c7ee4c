"""`stop()` returns soon, whatever is under way: a restore, a broker that is away."""

import threading
import time

import lmdb
import pytest

from penstock.spark.runtime.batch_runner import SubtopologyRunner
from penstock.spark.runtime.local_state import LocalState

pytestmark = pytest.mark.spark


def stops(app):
    """Whether `stop()` returns long before a request's time limit (60 s) or a restore that never ends."""
    stopping = threading.Thread(target=app.stop, daemon=True)
    stopping.start()
    stopping.join(45)
    return not stopping.is_alive()


@pytest.mark.parametrize("by", ["the replica process", "a stage"])
def test_while_a_store_is_restored(by, monkeypatch, broker, make_app, running, spark, flights, tmp_path):
    if by == "a stage":
        monkeypatch.setattr(LocalState, "start", lambda _state: None)
    join = SubtopologyRunner.join  # another subtopology's micro-batch takes its time: the restore breaks off meanwhile
    monkeypatch.setattr(SubtopologyRunner, "join", lambda runner, timeout: time.sleep(1) or join(runner, timeout))
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
        assert stops(app)
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
