"""A running application seen from outside: Spark's own listeners, metrics for Prometheus, health."""

import json
import threading

import pytest
from pyspark.sql.streaming import StreamingQueryListener
from tests.harness.ports import find_free_port
from tests.spark.observed_programs import get

pytestmark = pytest.mark.spark


class Watcher(StreamingQueryListener):
    """Somebody's listener, made for Structured Streaming."""

    def __init__(self):
        self.started, self.progress, self.idle, self.ends, self.tasks = [], [], [], [], []
        self.seen = threading.Condition()

    def _note(self, kept, event):
        with self.seen:
            kept.append(event)
            self.seen.notify_all()

    def onQueryStarted(self, event):
        self._note(self.started, event)

    def onQueryProgress(self, event):
        self._note(self.progress, event)

    def onQueryIdle(self, event):
        self._note(self.idle, event)

    def onQueryTerminated(self, event):
        self._note(self.ends, event)

    def onTasksChanged(self, event):
        self._note(self.tasks, event)

    def await_progress(self, condition):
        with self.seen:
            assert self.seen.wait_for(lambda: condition([event.progress for event in self.progress]), 60)


class Rude:
    """A listener that raises."""

    def onQueryProgress(self, event):
        raise RuntimeError("no time for this")


def test_a_structured_streaming_listener_receives_every_event(broker, make_app, flights, caplog):
    flights.send(broker, range(300))
    watcher, declared = Watcher(), make_app()
    declared.addListener(Rude())
    declared.addListener(watcher)
    with flights.count_by_origin(declared).start() as app:
        app.wait_until("caught-up", timeout=60)
        watcher.await_progress(lambda progress: flights.are_told(progress, 300))
        (started,) = watcher.started
        assert started.name == "flight-counts"
        told = [event.progress for event in watcher.progress]
        assert {progress.id for progress in told} == {started.id}
        assert {progress.runId for progress in told} == {started.runId}
        assert sum(progress["numInputRows"] for progress in told if progress["subtopology"] == "flights") == 300
        with_state = [progress for progress in told if progress.stateOperators]
        assert with_state[-1].stateOperators[0].numRowsTotal == 3
        assert told[0].sink.numOutputRows >= 0
        assert told[0].sources[0].description == "headrace[flights]"
        assert told[0].batchDuration == told[0].durationMs["triggerExecution"]
        (came,) = watcher.tasks[:1]
        assert came.assigned == came.tasks
        assert came.member_epoch == app.member.member_epoch
        assert set(came.tasks) == {"flights", "origin"} or sum(map(len, came.tasks.values())) == 8
        app.removeListener(watcher)
        app.addListener(watcher)
    (end,) = watcher.ends
    assert end.exception is None
    assert end.id == started.id
    assert not watcher.idle
    assert "Rude.onQueryProgress raised" in caplog.text


def test_health_reports_the_state_and_its_reason(broker, make_app, running, flights):
    port = find_free_port()
    first = running(flights.count_by_origin(make_app(config={"headrace.metrics.port": port})))
    first.wait_until("running", timeout=60)
    assert get(f"{first.metrics_url}/health/live") == (200, '{"status": "live", "reasons": []}\n')
    assert get(f"{first.metrics_url}/health/ready") == (200, '{"status": "ready", "reasons": []}\n')
    url = first.metrics_url
    second = running(
        flights.count_by_origin(make_app(name="others", instance="b", config={"headrace.metrics.port": port}))
    )
    assert second.metrics_url != url  # the next free one
    first._runtime.not_ready = ((1, "topic flights is gone"),)
    first._runtime.snapshot = None
    status, body = get(f"{url}/health/ready")
    assert status == 503
    assert {found["detail"] for found in json.loads(body)["reasons"]} >= {"topic flights is gone"}


def test_objects_that_are_no_listener_are_refused(make_app):
    with pytest.raises(TypeError, match="int is no listener: it has none of onQueryStarted"):
        make_app().addListener(7)
