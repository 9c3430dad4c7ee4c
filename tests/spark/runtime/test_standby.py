"""Standby tasks and early restore, with real Spark: promoted without a replay, moved when the state is there."""

import json
import os
import signal

import pytest
from tests.harness.polling import wait_until
from tests.spark.runtime.test_moves import WITHIN_S, Instance, at_least_counted, is_read

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.membership.target_assignment_poller import describe_request
from headrace.client.network_client import NetworkClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NEAR = {"acceptable.recovery.lag": 10}
STANDBY = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.num.standby.replicas": 1}


@pytest.fixture
def start(tmp_path):
    instances = []

    def start(broker, name):
        instances.append(Instance(broker, tmp_path / name))
        return instances[-1]

    yield start
    for instance in instances:
        instance.end()


def copies(instance):
    """Standby tasks of the instance that lack nothing."""
    found = instance.status().get("standby", {})
    return {(name, task) for name, tasks in found.items() for task, at in tasks.items() if at["remaining"] == 0}


def test_a_standby_is_promoted_after_kill_9_without_a_replay(flights, start):
    with EmbeddedBroker({"flights": 4}, config=STANDBY) as broker:
        flights.send(broker, range(300))
        first = start(broker, "a")
        second = start(broker, "b")
        wait_until(
            lambda: (first.tasks, second.tasks) == (4, 4), "tasks are assigned", first, second, timeout_s=WITHIN_S
        )
        flights.send(broker, range(300, 600))
        wait_until(lambda: is_read(broker, 600), "all records are read", first, second, timeout_s=WITHIN_S)
        at_least_counted(broker, flights, range(600))
        stateful = 4
        active = len(second.status()["tasks"].get("by-origin", []))
        known = second.status()["time"] + 3  # what lacks nothing is as of its last look: they are to look again
        wait_until(
            lambda: len(copies(second)) == stateful - active and second.status()["time"] > known,
            "standby copies follow",
            first,
            second,
            timeout_s=WITHIN_S,
        )

        before = sum(second.status()["restored"].values())
        os.kill(first.process.pid, signal.SIGKILL)
        wait_until(lambda: second.tasks == 8, "tasks are assigned", second, timeout_s=WITHIN_S)
        flights.send(broker, range(600, 900))
        wait_until(lambda: is_read(broker, 900), "all records are read", second, timeout_s=WITHIN_S)
        at_least_counted(broker, flights, range(900))
        wait_until(
            lambda: second.status()["records"].get("by-origin"), "records are processed", second, timeout_s=WITHIN_S
        )
        assert sum(second.status()["restored"].values()) == before, "everything was here already"


def test_a_task_moves_when_its_state_is_there(make_app, running, flights, broker):
    """Nothing is replayed at the opening; the old owner works until then; who returns, restores none."""
    app = keyed(make_app(instance="a", config=NEAR))
    send(broker, range(3000))
    first = running(app)
    first.wait_until("caught-up", timeout=120)
    second = running(keyed(make_app(instance="b", config=NEAR)))
    first._wait(lambda: len(first.tasks) == len(second.tasks) == 2, None, "sharing")
    [runner] = second._runtime.runners.values()
    assert runner.progress.restored == 0, "the copy was made before the tasks came"
    send(broker, range(3000, 3500))
    second.wait_until("caught-up", timeout=120)
    counts = flights.newest(broker, "by-key")
    assert {row["n"] for row in counts.values()} == {1}
    assert len(counts) == 3500

    mine = {task.partition for task in second.tasks}
    second.stop()
    first._wait(lambda: len(first.tasks) == 4, None, "alone")
    again = running(keyed(make_app(instance="b", config=NEAR)))
    first._wait(lambda: len(first.tasks) == len(again.tasks) == 2, None, "sharing again")
    assert {task.partition for task in again.tasks} == mine
    assert sum(runner.progress.restored for runner in again._runtime.runners.values()) == 0
    assert set(reported(broker, again)) >= {("flights", partition) for partition in mine}, "found on disk, told at once"


def reported(broker, app):
    """Changelog offsets of the instance's tasks, as the group knows them."""
    with NetworkClient(broker.bootstrap_servers) as client:
        answer = client.call_coordinator(
            app.name, describe_request(app.name), lambda found: [group.error_code for group in found.groups]
        )
    [member] = [m for m in answer.groups[0].members if str(m.member_id) == app.member.member_id]
    return {(found.subtopology_id, int(found.partition)): int(found.offset) for found in member.task_offsets or ()}


def keyed(app):
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema="k string", key="k")
    rows.groupBy("k").agg(F.count("*").alias("n")).to_topic("by-key", partitions=2)
    return app


def send(broker, numbers):
    values = [json.dumps({"k": f"key-{number}"}) for number in numbers]
    broker.produce("flights", values, key=lambda value: json.loads(value)["k"])
