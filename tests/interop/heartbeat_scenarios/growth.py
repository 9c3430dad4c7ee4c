"""Topics that grow, vanish and come back under a running group."""

from __future__ import annotations

from typing import Any

from tests.interop.heartbeat_scenarios.scenario import NOTHING, has_status, scenario
from tests.interop.heartbeat_script import ALL, Script, h, subtopology, topology

from headrace.protocol.error_codes import ErrorCode


def is_told_anything(answer: Any) -> bool:
    return bool(answer.status)


@scenario({"in": 2})
def growing_source(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.grow_topic("in", 4)
    s.beat_until("more tasks", "a", lambda _: s.owns("a") == 4)
    s.describe("grown")


@scenario({"in": 2})
def growing_source_of_stateful(s: Script) -> None:
    s.join("joins", "a", s.source("in", changelogs=["log"]))
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 2)
    s.grow_topic("in", 4)
    s.beat_until("is told", "a", is_told_anything)
    s.beat("beats", "a")
    s.describe("grown")
    s.beat("acknowledges", "a", owned=ALL)
    s.grow_topic("log", 4)
    s.beat_until("all is read", "a", lambda _: s.owns("a") == 4)
    s.describe("ready")


@scenario({"in": 2})
def growing_source_before_a_repartition(s: Script) -> None:
    given = topology(
        subtopology("0", [s.name("in")], sinks=[s.name("r")]),
        subtopology("1", repartitions=[s.topic("r")], changelogs=[s.topic("log")]),
    )
    s.join("joins", "a", given)
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 4)
    s.grow_topic("in", 3)
    s.beat_until("is told or has more", "a", lambda answer: answer.status or s.owns("a") == 5)
    s.describe("grown")
    s.describe_topics("the repartition topic is as it was", ["r", "log"])


@scenario({"wide": 3, "narrow": 1})
def growing_source_below_the_others(s: Script) -> None:
    here = h.Endpoint(host="here", port=1)
    s.join("joins", "a", s.source("wide", "narrow", changelogs=["log"]), user_endpoint=here)
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 3)
    before = s.epochs["a"]
    s.grow_topic("narrow", 2)
    s.beat_until("a new epoch", "a", lambda answer: answer.member_epoch > before)
    s.join("b asks where everything is", "b", s.source("wide", "narrow", changelogs=["log"]))
    s.describe("as before")


@scenario({"in": 2})
def growing_changelog(s: Script) -> None:
    s.join("joins", "a", s.source("in", changelogs=["log"]))
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 2)
    s.grow_topic("log", 3)
    s.beat_until("is told", "a", has_status(2))
    s.beat("acknowledges", "a", owned=NOTHING)
    s.describe("not ready")
    s.grow_topic("in", 3)
    s.beat_until("runs again", "a", lambda _: s.owns("a") == 3)


@scenario({"in": 2})
def growing_repartition_topic(s: Script) -> None:
    s.join(
        "joins",
        "a",
        topology(subtopology("0", [s.name("in")], sinks=[s.name("r")]), subtopology("1", repartitions=[s.topic("r")])),
    )
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 4)
    s.grow_topic("r", 3)
    s.beat_until("is told", "a", has_status(2))
    s.beat("acknowledges", "a", owned=NOTHING)
    s.describe("not ready")


@scenario({"in": 2, "other": 2})
def deleted_source(s: Script) -> None:
    s.join("joins", "a", s.source("in", "other"))
    s.commit("commits", "a", {("in", 0): 5, ("other", 1): 6})
    s.delete_topic("in")
    s.beat_until("is told", "a", has_status(1))
    s.beat("acknowledges", "a", owned=NOTHING)
    s.describe("not ready")
    s.create_topics({"in": 3})
    s.beat_until("runs again", "a", lambda _: s.owns("a") == 3)
    s.describe("ready")
    s.fetch("offsets of the deleted topic are gone", None)


@scenario({"in": 2})
def deleted_internal_topics(s: Script) -> None:
    given = topology(
        subtopology("0", [s.name("in")], sinks=[s.name("r")]),
        subtopology("1", repartitions=[s.topic("r", retention_ms="-1")], changelogs=[s.topic("log")]),
    )
    s.join("joins", "a", given)
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 4)
    s.delete_topic("log")
    s.beat_until("is told", "a", lambda answer: has_status(3)(answer) and ";" not in answer.status[0].status_detail)
    s.beat_until("runs again", "a", lambda answer: not answer.status and s.owns("a") == 4, owned=ALL)
    s.describe("ready")
    s.describe_topics("topics", ["r", "log"])


@scenario({"in": 2})
def source_vanishes_from_an_endpoint(s: Script) -> None:
    here = h.Endpoint(host="here", port=1)
    s.join("joins with an endpoint", "a", s.source("in", changelogs=["log"]), user_endpoint=here)
    s.beat_until("has tasks", "a", lambda _: s.owns("a") == 2)
    s.delete_topic("in")
    s.beat_until("is told", "a", lambda answer: answer.error_code is not ErrorCode.none or answer.status)
    s.beat("acknowledges", "a", owned=NOTHING)
    s.create_topics({"in": 2})
    s.beat_until("runs again", "a", lambda answer: answer.error_code is not ErrorCode.none or s.owns("a") == 2)
