"""A group's settings change while it lives."""

from __future__ import annotations

from tests.interop.heartbeat_scenarios.scenario import NOTHING, has_status, scenario
from tests.interop.heartbeat_script import ALL, Script

STANDBY = {"streams.num.standby.replicas": 1}


@scenario({"in": 2})
def standbys_are_wanted(s: Script) -> None:
    given = s.source("in", changelogs=["log"])
    s.join("a joins", "a", given)
    s.beat_until("a has tasks", "a", lambda _: s.owns("a") == 2)
    s.join("b joins", "b", given)
    s.beat("a is told", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.describe("before")
    s.set_group_configs(STANDBY)
    s.describe("without a heartbeat of anybody")
    s.beat_until("a has a standby", "a", lambda _: s.owns("a", "standby") == 1)
    s.beat_until("b has a standby", "b", lambda _: s.owns("b", "standby") == 1)
    s.describe("after")
    s.set_group_configs({"streams.num.standby.replicas": 0})
    s.beat_until("a is to give it up", "a", lambda _: s.owns("a", "standby") == 0)
    s.beat("a gives it up", "a", owned=ALL)
    s.beat_until("b is to give it up", "b", lambda _: s.owns("b", "standby") == 0)
    s.beat("b gives it up", "b", owned=ALL)
    s.describe("as before")


@scenario({"in": 2}, assignment_interval_ms=15_000)
def standbys_are_wanted_inside_the_interval(s: Script) -> None:
    given = s.source("in", changelogs=["log"])
    s.join("a joins", "a", given)
    s.set_group_configs({"streams.assignment.interval.ms": 0})
    s.beat_until("a has tasks", "a", lambda _: s.owns("a") == 2)
    s.set_group_configs({"streams.assignment.interval.ms": 15_000})
    s.set_group_configs(STANDBY)
    s.beat_until("a waits", "a", has_status(5))
    s.describe("a waits for its target")
    s.set_group_configs({"streams.assignment.interval.ms": 0})
    s.beat_until("no longer", "a", lambda answer: not answer.status)
    s.describe("has it")


@scenario({"in": 2})
def timings_change(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.set_group_configs({"streams.heartbeat.interval.ms": 900, "streams.session.timeout.ms": 1_000})
    s.beat_until("hears the interval", "a", lambda answer: answer.heartbeat_interval.total_seconds() == 0.9)
    s.describe_until("its session is the new one", lambda seen: seen["state"] == "Empty")
    s.beat("is unknown", "a", owned=NOTHING)


@scenario({"in": 2}, initial_rebalance_delay_ms=60_000)
def standbys_are_wanted_inside_the_initial_delay(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.set_group_configs({**STANDBY, "streams.initial.rebalance.delay.ms": 0})
    s.beat_until("a new epoch, no target", "a", lambda answer: has_status(5)(answer) and s.group_epoch() == 3)
    s.describe("waits")
    s.leave("leaves", "a")
    s.join("the next life has no delay", "a", s.source("in"))
