"""Topics that are missing, made, grown, deleted, and do not fit together."""

from __future__ import annotations

from typing import Any

from tests.interop.heartbeat_scenarios.scenario import NOTHING, has_status, scenario
from tests.interop.heartbeat_script import Script, h, subtopology, topology


@scenario({"other": 2})
def missing_source(s: Script) -> None:
    given = topology(subtopology("0", [s.name("in")]), subtopology("1", [s.name("other"), s.name("also")]))
    s.join("joins", "a", given)
    s.describe("not ready")
    s.list_groups("listed")
    s.list_groups("listed as not ready", "NotReady")
    s.list_groups("listed as not_ready", "not_ready")
    s.join("b joins", "b", given)
    s.beat("a beats", "a")
    s.create_topics({"in": 3})
    s.beat_until("one is still missing", "a", lambda answer: s.name("in") not in answer.status[0].status_detail)
    s.create_topics({"also": 4})
    s.beat_until("a has tasks", "a", lambda _: s.owns("a") > 0)
    s.beat_until("b has tasks", "b", lambda _: s.owns("b") > 0)
    s.describe("stable")


@scenario({})
def endpoint_and_missing_source(s: Script) -> None:
    s.join("joins with an endpoint", "a", s.source("in"), user_endpoint=h.Endpoint(host="here", port=1))
    s.describe("joined")


@scenario({"in": 2, "wide": 3})
def copartitioning(s: Script) -> None:
    sources = [s.name("in"), s.name("wide")]
    s.join("joined topics differ", "a", topology(subtopology("0", sources, copartitions=[((0, 1), ())])))
    s.describe("not ready")
    s.beat("beats", "a")
    s.grow_topic("in", 3)
    s.beat_until("after growing", "a", lambda _: s.owns("a") == 3)
    s.describe("ready")


@scenario({"in": 2, "wide": 3})
def copartitioned_repartitions(s: Script) -> None:
    def writer(*names: str) -> Any:
        return subtopology("0", [s.name("wide")], sinks=[s.name(name) for name in names])

    def reader(sources: list[str], repartitions: list[Any], groups: list[Any]) -> Any:
        return subtopology("1", [s.name(name) for name in sources], repartitions=repartitions, copartitions=groups)

    s.join(
        "explicit count differs from the source",
        "a",
        topology(writer("r"), reader(["in"], [s.topic("r", 5)], [((0,), (0,))])),
    )
    s.leave("a leaves", "a")
    s.delete_group("delete")
    s.join(
        "explicit counts differ",
        "a",
        topology(writer("r", "q"), reader([], [s.topic("r", 5), s.topic("q", 4)], [((), (0, 1))])),
    )
    s.leave("a leaves again", "a")
    s.delete_group("delete again")
    s.join(
        "undecided takes the source's count",
        "a",
        topology(writer("r", "q"), reader(["in"], [s.topic("r"), s.topic("q", 7)], [((0,), (0,))])),
    )
    s.beat_until("topics were made", "a", lambda _: s.owns("a") > 0)
    s.describe("ready")
    s.describe_topics("counts", ["r", "q"])


@scenario({"in": 3, "side": 2})
def internal_topics(s: Script) -> None:
    given = topology(
        subtopology("0", [s.name("in")], sinks=[s.name("r1")], changelogs=[s.topic("log0", cleanup_policy="compact")]),
        subtopology(
            "1",
            [s.name("side")],
            repartitions=[s.topic("r1", retention_ms="-1", cleanup_policy="delete")],
            sinks=[s.name("r2"), s.name("r3")],
            changelogs=[s.topic("log1", cleanup_policy="compact,delete")],
        ),
        subtopology(
            "2", repartitions=[s.topic("r2"), s.topic("r3", 5)], changelogs=[s.topic("log2"), s.topic("log2b")]
        ),
    )
    s.join("joins", "a", given)
    s.beat_until("has tasks", "a", lambda _: s.owns("a") > 0)
    s.describe("stable")
    topics = ["r1", "r2", "r3", "log0", "log1", "log2", "log2b"]
    s.describe_topics("topics", topics, "cleanup.policy", "retention.ms", "segment.bytes")
    s.leave("leaves", "a")
    s.delete_group("delete")
    s.join("a second group life on the same topics", "a", given)


@scenario({"in": 3, "r": 2, "log": 4})
def existing_internal_topic(s: Script) -> None:
    s.join("changelog of another size", "a", s.source("in", changelogs=["log"]))
    s.describe("not ready")
    s.join("b joins", "b", s.source("in", changelogs=["log"]))
    s.leave("a leaves", "a")
    s.leave("b leaves", "b")
    s.delete_group("delete")
    s.join(
        "repartition of another size",
        "a",
        topology(subtopology("0", [s.name("in")], sinks=[s.name("r")]), subtopology("1", repartitions=[s.topic("r")])),
    )


@scenario({"in": 2, "narrow": 1})
def repartition_counts(s: Script) -> None:
    def joined(step: str, *subtopologies: Any) -> None:
        s.join(step, "a", topology(*subtopologies))
        s.beat_until(step + ", topics were made", "a", lambda _: s.owns("a") > 0)
        s.describe(step + ", counted")
        s.leave(step + ", a leaves", "a")
        s.delete_group(step + ", deleted")

    wide, narrow = [s.name("in")], [s.name("narrow")]
    joined(
        "the reader comes first",
        subtopology("0", repartitions=[s.topic("a1")]),
        subtopology("1", wide, sinks=[s.name("a1")]),
    )
    joined(
        "a chain from behind",
        subtopology("0", repartitions=[s.topic("b2")]),
        subtopology("1", narrow, repartitions=[s.topic("b1")], sinks=[s.name("b2")]),
        subtopology("2", wide, sinks=[s.name("b1")]),
    )
    joined(
        "two writers, the wider first",
        subtopology("0", wide, sinks=[s.name("c1")]),
        subtopology("1", narrow, sinks=[s.name("c1")]),
        subtopology("2", repartitions=[s.topic("c1")]),
    )
    joined(
        "two writers, the wider last",
        subtopology("0", narrow, sinks=[s.name("d1")]),
        subtopology("1", wide, sinks=[s.name("d1")]),
        subtopology("2", repartitions=[s.topic("d1")]),
    )
    joined(
        "a circle with a way in",
        subtopology("0", wide, repartitions=[s.topic("e2")], sinks=[s.name("e1")]),
        subtopology("1", repartitions=[s.topic("e1")], sinks=[s.name("e2")]),
    )


@scenario({"in": 2})
def topics_that_cannot_be_made(s: Script) -> None:
    s.join(
        "joins", "a", topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", cleanup_policy="nonsense")]))
    )
    s.beat_until("is told why", "a", lambda answer: ";" in answer.status[0].status_detail)
    s.describe("not ready")


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
    s.beat_until("is told", "a", has_status(2))
    s.beat("beats", "a")
    s.describe("not ready")
    s.beat("acknowledges", "a", owned=NOTHING)
    s.grow_topic("log", 4)
    s.beat_until("runs again", "a", lambda _: s.owns("a") == 4)
    s.describe("ready")


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
