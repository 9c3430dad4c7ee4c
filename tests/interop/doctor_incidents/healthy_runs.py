"""Runs without an incident: the doctor must find nothing in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.interop.doctor_incidents.incidents import CLASSIC, MODERN
from tests.interop.doctor_incidents.stage import Incident, Stage
from tests.interop.group_members import members

__all__ = ["HEALTHY_RUNS"]

# A restart of a process takes seconds on a crowded machine; the session outlasts it.
STATIC: dict[str, Any] = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 500}


def calm(client: str, **settings: Any) -> Callable[[Stage], None]:
    """Three members start and read."""

    def provoke(stage: Stage) -> None:
        running = [stage.join(client, f"app-{number}", **settings) for number in range(3)]
        stage.settle(*running)
        for _ in range(4):
            stage.write(50)
            time.sleep(1)

    return provoke


def rolling_restart(client: str, **settings: Any) -> Callable[[Stage], None]:
    """Three static members are restarted one after the other within their session."""

    def provoke(stage: Stage) -> None:
        names = [f"pod-{number}" for number in range(3)]
        running = {name: stage.join(client, name, group_instance_id=name, **settings) for name in names}
        stage.settle(*running.values())
        for name in names:
            running.pop(name).close()
            running[name] = stage.join(client, name, group_instance_id=name, **settings)
            stage.settle(*running.values())

    return provoke


def scaling(client: str, **settings: Any) -> Callable[[Stage], None]:
    """Two members become four and two again."""

    def provoke(stage: Stage) -> None:
        running = [stage.join(client, f"app-{number}", **settings) for number in range(2)]
        stage.settle(*running)
        more = [stage.join(client, f"app-{number}", **settings) for number in (2, 3)]
        stage.settle(*running, *more)
        stage.write(100)
        for member in more:
            member.close()
        stage.settle(*running)

    return provoke


def one_restart(stage: Stage) -> None:
    """One of two members without an instance id is restarted once."""
    first, second = stage.join("java", "app-0", **CLASSIC), stage.join("java", "app-1", **CLASSIC)
    stage.settle(first, second)
    second.close()
    stage.settle(first, stage.join("java", "app-1", **CLASSIC))


def streams_application(stage: Stage) -> None:
    """A streams application of two instances starts and stops."""
    with members(stage.admin, stage.group, stage.topic, 2):
        time.sleep(2)


def backlog(stage: Stage) -> None:
    """All partitions have the same backlog, which is being worked off."""
    pair = [stage.join("librdkafka", f"reader-{number}", **CLASSIC) for number in range(2)]
    stage.settle(*pair)
    for member in pair:
        member.tell("pace 5")
    stage.write(1_500)
    time.sleep(4)


def _run(name: str, clients: str, broker: str, title: str, provoke: Callable[[Stage], None]) -> Incident:
    return Incident(name=name, cause="", clients=clients, broker=broker, title=title, provoke=provoke)


ROLLING = "Three static members are restarted one after another."
SCALING = "Two members become four, then two again."

HEALTHY_RUNS: Sequence[Incident] = (
    _run("calm-java", "Java", "headrace", "Three members start and read.", calm("java", **CLASSIC)),
    _run("calm-aiokafka", "aiokafka", "kafka", "Three members start and read.", calm("aiokafka", **CLASSIC)),
    _run("static-java", "Java", "kafka", ROLLING, rolling_restart("java", **STATIC)),
    _run("static-librdkafka", "librdkafka", "kafka", ROLLING, rolling_restart("librdkafka", **STATIC)),
    _run("static-aiokafka", "aiokafka", "headrace", ROLLING, rolling_restart("aiokafka", **STATIC)),
    _run("static-headrace", "Headrace", "kafka", ROLLING, rolling_restart("headrace", **MODERN)),
    _run("scaling-headrace", "Headrace", "kafka", SCALING, scaling("headrace", **MODERN)),
    _run("scaling-librdkafka", "librdkafka", "headrace", SCALING, scaling("librdkafka", **CLASSIC)),
    _run("one-restart", "Java", "headrace", "One of two members is restarted once.", one_restart),
    _run("streams-application", "Headrace", "kafka", "Two instances start and stop.", streams_application),
    _run("backlog", "librdkafka", "kafka", "All partitions have the same backlog.", backlog),
)
