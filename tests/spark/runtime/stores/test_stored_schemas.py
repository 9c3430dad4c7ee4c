"""Versions of one application that meet in a group: both start at once, or one keeps a standby of the other's task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.harness.values import not_none
from tests.longer import longer
from tests.spark.runtime.test_upgraded_state import NEW, OLD, Group, old_values

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.application import load_application
from headrace.errors import HeadraceError
from headrace.spark.running_app import RunningApp
from headrace.spark.runtime.stores import stored_schemas
from headrace.spark.runtime.stores.stored_schemas import StoredSchemas

pytestmark = [pytest.mark.spark, pytest.mark.slow, longer]

WITHIN_S = 120
SETTINGS = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.num.standby.replicas": 1}


broker = broker_fixture(config={"group.streams.initial.rebalance.delay.ms": 0})


@pytest.fixture
def group(spark, broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Group(broker, tmp_path, f"app-{tmp_path.name.replace('_', '-')}"[:60])


def new_values(numbers):
    return sum(numbers), len(numbers), sum(numbers) / len(numbers)


VERSIONS = {OLD: (("count", "largest"), old_values), NEW: (("total", "count", "mean"), new_values)}


def test_one_of_two_versions_that_start_together_continues(group, monkeypatch):
    """Both find the changelog empty and publish their schemas, so that only the order of the log decides."""
    both_found_it_empty = threading.Barrier(2)
    publish = stored_schemas.publish_schema

    def publish_together(*arguments):
        both_found_it_empty.wait(WITHIN_S)
        publish(*arguments)

    monkeypatch.setattr(stored_schemas, "publish_schema", publish_together)
    group.send(range(40))
    running: dict[str, RunningApp] = {}
    for number, version in enumerate(VERSIONS):
        app = load_application(group.program(version))
        app.state_dir = app.state_dir.with_name(f"instance-{number}")
        running[version] = app.start()
    try:
        wait_until(lambda: any(app.exception() for app in running.values()), "one version refused", timeout_s=WITHIN_S)
        [refused] = [version for version, app in running.items() if app.exception()]
        [kept] = [version for version in running if version != refused]
        assert not_none(running[refused].exception()).code == "state-schema-changed"
        running[kept].wait_until("caught-up", timeout=WITHIN_S)
        group.send(range(40, 80))
        running[kept].wait_until("caught-up", timeout=WITHIN_S)
        assert running[kept].exception() is None
    finally:
        for each in running.values():
            each.stop()
    names, values = VERSIONS[kept]
    assert group.newest(*names) == group.counted(values)
    assert not group.newest(*VERSIONS[refused][0]), "the refused version wrote no row"
    assert group.verify(kept).status == "equal"
    with pytest.raises(HeadraceError) as again:
        group.run(refused)
    assert again.value.code == "state-schema-changed"


KEYED = """
import json
from headrace.spark.streams_app import StreamsApp
from pyspark.sql import functions as F
def build(servers, state_dir, spark=None):
    app = StreamsApp("keyed", bootstrap_servers=servers, state_dir=state_dir, spark=spark)
    rows = app.stream("in", schema="origin string, n int", key="origin")
    rows.groupBy("origin").agg({aggregates}, name="state").to_topic("out", partitions=1)
    return app
"""


def keyed(aggregates, *arguments):
    names: dict[str, Any] = {}
    exec(KEYED.replace("{aggregates}", aggregates), names)
    return names["build"](*arguments)


class Active:
    """The old version in a process of its own, which can be killed."""

    def __init__(self, broker, directory):
        directory.mkdir(exist_ok=True)
        program = directory / "program.py"
        program.write_text(
            KEYED.replace("{aggregates}", OLD)
            + f"build({broker.bootstrap_servers!r}, {str(directory / 'state')!r}).run()\n"
        )
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program)], stdout=log, stderr=log, env={**os.environ, "MASTER": "local[1]"}
            )

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def test_a_standby_of_another_version_never_takes_over(spark, tmp_path, monkeypatch):
    """It compared before the schema was published. It replays nothing of the other version, and opens no task."""
    with EmbeddedBroker({"in": 1, "out": 1}, config=SETTINGS) as broker:
        sent = []

        def send(numbers):
            rows = [{"origin": ("EWR", "JFK", "LGA")[n % 3], "n": n} for n in numbers]
            broker.produce("in", [json.dumps(row) for row in rows], key=lambda value: json.loads(value)["origin"])
            sent.extend(rows)

        def newest():
            rows = [json.loads(not_none(record.value)) for record in broker.records("out")]
            assert all(set(row) == {"origin", "count", "largest"} for row in rows), "rows of the old version only"
            return {row["origin"]: (row["count"], row["largest"]) for row in rows}

        def counted():
            groups: dict[str, list[int]] = {}
            for row in sent:
                groups.setdefault(row["origin"], []).append(row["n"])
            return {origin: old_values(numbers) for origin, numbers in groups.items()}

        send(range(60))
        active = Active(broker, tmp_path / "active")
        try:
            wait_until(lambda: newest() == counted(), "the active instance counts", active, timeout_s=WITHIN_S)
            with monkeypatch.context() as compared_earlier:
                compared_earlier.setattr(StoredSchemas, "check", lambda *_: [])
                standby = keyed(NEW, broker.bootstrap_servers, tmp_path / "standby", spark).start()
            try:
                wait_until(
                    lambda: snapshot_of(standby) and any(snapshot_of(standby).standby.values()),
                    "a standby",
                    active,
                    timeout_s=WITHIN_S,
                )
                send(range(60, 120))
                wait_until(lambda: newest() == counted(), "the active instance goes on", active, timeout_s=WITHIN_S)
                assert standby.exception() is None
                assert not standby.tasks
                active.kill()
                wait_until(
                    standby.exception, "the standby is refused when it would open the task", active, timeout_s=WITHIN_S
                )
                assert standby.exception().code == "state-schema-changed"
            finally:
                standby.stop()
        finally:
            active.kill()
        send(range(120, 150))
        keyed(OLD, broker.bootstrap_servers, tmp_path / "successor", spark).run(until="caught-up")
        assert newest() == counted()


def snapshot_of(app):
    return app._runtime.snapshot
