"""`app.run()` and when micro-batches come: backfills, trigger intervals, limits of bytes."""

import json
import os
import signal
import threading
import time
from datetime import datetime
from itertools import pairwise

import pytest

from headrace.errors import BrokerError, ConfigError

pytestmark = pytest.mark.spark


def copied(app):
    app.stream("flights", schema="origin string, n bigint").where("n >= 0").to_topic("copied", partitions=1)
    return app


def numbers(broker, topic="copied"):
    return sorted(json.loads(record.value)["n"] for record in broker.records(topic))


def test_a_backfill_ends_where_the_topics_ended_at_its_start(broker, make_app, flights):
    """Somebody goes on producing: an end that moves is not waited for."""
    flights.send(broker, range(500))
    over = threading.Event()

    def produce():
        sent = 500
        while not over.wait(0.05):
            flights.send(broker, range(sent, sent + 5))
            sent += 5

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        copied(make_app()).run(until="caught-up")
    finally:
        over.set()
        producer.join()
    assert numbers(broker)[:500] == list(range(500))
    assert broker.group("flight-counts").members == {}
    committed = sum(broker.group("flight-counts").offsets.values())
    assert len(numbers(broker)) == committed, "what was written is what was committed"


def test_a_signal_ends_a_run_with_its_batch_committed(broker, make_app, flights):
    flights.send(broker, range(200))
    app = copied(make_app())
    first = threading.Event()

    class Watcher:
        def onQueryProgress(self, _event):
            if not first.is_set():
                first.set()
                os.kill(os.getpid(), signal.SIGTERM)

    app.addListener(Watcher())
    before = signal.getsignal(signal.SIGTERM)
    app.run()
    assert first.is_set()
    assert signal.getsignal(signal.SIGTERM) == before
    assert broker.group("flight-counts").members == {}
    assert 0 < len(numbers(broker)) == sum(broker.group("flight-counts").offsets.values())


def test_a_signal_in_the_middle_of_the_start_is_no_error(broker, make_app, monkeypatch, caplog):
    """PySpark's own `finally` fails when a signal interrupts a call of Py4J, as a start under load showed."""
    caplog.set_level("INFO", "headrace.spark")

    def interrupted():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            raise TypeError("'JavaObject' object is not callable")

    app = copied(make_app())
    monkeypatch.setattr(app, "start", interrupted)
    app.run()
    assert "stopped by SIGTERM before it had any task" in caplog.text
    monkeypatch.setattr(app, "start", lambda: [][0])
    with pytest.raises(IndexError):
        app.run()


def test_a_missing_source_topic_is_waited_for(broker, make_app, flights, caplog):
    """And its records are processed once it is there; a signal ends the wait, without an error."""
    caplog.set_level("INFO", "headrace.spark")
    app = make_app()
    app.stream("arrivals", schema="origin string, n bigint").to_topic("copied", partitions=1)

    def awaited():
        while "Waiting for topic arrivals" not in caplog.text:
            time.sleep(0.05)

    def interrupt():
        awaited()
        os.kill(os.getpid(), signal.SIGINT)

    def create():
        awaited()
        broker.create_topics({"arrivals": 2})
        flights.send(broker, range(20), topic="arrivals")

    for act in (interrupt, create):
        caplog.clear()
        acting = threading.Thread(target=act)
        acting.start()
        app.run(until="caught-up")
        acting.join()
        if act is interrupt:
            assert "stopped by SIGINT" in caplog.text
            assert broker.group("flight-counts").members == {}
    create_it = f"headrace topics --bootstrap-server {broker.bootstrap_servers} --create --topic arrivals"
    assert create_it in caplog.records[2].getMessage()
    assert numbers(broker) == list(range(20))
    told = [record.getMessage() for record in caplog.records]
    assert any("assigned" in line for line in told)
    assert "20 records in" in told[-1]


def test_a_sink_without_consent_is_refused_before_any_wait(make_app):
    app = make_app()
    app.stream("arrivals", schema="origin string, n bigint").to_topic("copied")
    with pytest.raises(BrokerError, match="copied"):
        app.run(until="caught-up")


def test_micro_batches_begin_an_interval_apart(broker, make_app, running, flights):
    app = running(copied(make_app(trigger_interval_ms=700)))
    app.wait_until("running", timeout=180)
    for start in range(0, 60, 10):
        flights.send(broker, range(start, start + 10))
        app._wait(lambda end=start + 10: sum(broker.group("flight-counts").offsets.values()) == end, None, "through")
    app._wait(lambda: sum(row["numInputRows"] for row in app.recentProgress) == 60, None, "told")
    rows = app.recentProgress
    ends = [datetime.fromisoformat(row["timestamp"]).timestamp() * 1000 for row in rows]
    for at in range(1, len(rows)):
        began = ends[at - 1] - rows[at - 1]["batchDuration"]
        assert ends[at] - began >= 650, rows[at - 1 : at + 1]


def test_no_trigger_is_active_between_two_micro_batches(broker, make_app, running, flights):
    app = running(copied(make_app(trigger_interval_ms=60_000)))
    app.wait_until("running", timeout=180)
    flights.send(broker, range(10))
    app._wait(lambda: sum(row["numInputRows"] for row in app.recentProgress) > 0, None, "processed")
    app._wait(lambda: not app.status["isTriggerActive"], time.monotonic() + 10, "between two micro-batches")


def test_large_records_starve_no_partition(broker, make_app, running, flights):
    """A limit of bytes below a single record: each micro-batch takes one of it, and the other partitions go on."""
    large = json.dumps({"origin": "x" * 300_000, "n": 7})
    for _ in range(5):
        broker.produce("flights", [large], partition=0)
    for partition in (1, 2, 3):
        broker.produce("flights", [json.dumps({"origin": "EWR", "n": n}) for n in range(50)], partition=partition)
    settings = {"headrace.batch.max.bytes": 1000, "max.partition.fetch.bytes": 1000}
    app = running(copied(make_app(config=settings)))
    app.wait_until("caught-up", timeout=180)
    assert numbers(broker) == sorted([7] * 5 + [*range(50)] * 3)


def test_progress_is_printed_where_there_is_no_notebook(broker, make_app, running, flights, capsys):
    flights.send(broker, range(40))
    app = running(flights.count_by_origin(make_app()))
    shown = app.show_progress(interval_seconds=0.05)
    app.wait_until("caught-up", timeout=60)
    app.stop()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert all(line != following for line, following in pairwise(lines))  # a line only when something changed
    assert lines[-1] == "flight-counts: stopped · 8 tasks · 40 records"
    assert ">stopped</span>" in app._repr_html_()
    shown.close()
    with pytest.raises(ConfigError, match="interval_seconds"):
        app.show_progress(interval_seconds=0)
