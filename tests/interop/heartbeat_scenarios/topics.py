"""Topics that are missing, made, and do not fit together."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.interop.heartbeat_scenarios.scenario import scenario
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


@scenario({"in": 2})
def missing_sink(s: Script) -> None:
    """A repartition sink that no subtopology reads: neither required nor created."""
    s.join("joins", "a", topology(subtopology("0", [s.name("in")], sinks=[s.name("out")])))
    s.beat_until("a has tasks", "a", lambda _: s.owns("a") > 0)
    s.describe("stable")
    s.beat("beats", "a")


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


@scenario({"in": 2, "wide": 3})
def copartition_counts_of_others(s: Script) -> None:
    """A group of repartition topics alone, in a topology with an explicit count elsewhere."""
    s.join(
        "the explicit count is in another subtopology",
        "a",
        topology(
            subtopology("0", [s.name("in")], sinks=[s.name("p"), s.name("q")]),
            subtopology("1", [s.name("wide")], sinks=[s.name("r")]),
            subtopology("2", repartitions=[s.topic("p"), s.topic("r")], copartitions=[((), (0, 1))]),
            subtopology("3", repartitions=[s.topic("q", 4)]),
        ),
    )
    s.beat_until("topics were made", "a", lambda _: s.owns("a") > 0)
    s.describe_topics("counts", ["p", "q", "r"])
    s.leave("a leaves", "a")
    s.delete_group("delete")
    s.join(
        "and both have one, not the same",
        "a",
        topology(
            subtopology("0", [s.name("in")], sinks=[s.name("p2"), s.name("q2")]),
            subtopology("1", [s.name("wide")], sinks=[s.name("r2")]),
            subtopology("2", repartitions=[s.topic("p2", 5), s.topic("r2")], copartitions=[((), (0, 1))]),
            subtopology("3", repartitions=[s.topic("q2", 4)]),
        ),
    )


@scenario({"in": 3, "r": 3, "p": 5, "q": 4})
def copartition_with_existing_topics(s: Script) -> None:
    """The repartition topics that exist already have other counts than the topology would give them."""
    writer = subtopology("0", [s.name("in")], sinks=[s.name("r"), s.name("p"), s.name("q"), s.name("t")])
    copartitions: list[Any] = [((), (0, 1))]

    def joined(step: str, *readers: Any, runs: bool = False) -> None:
        s.join(step, "a", topology(writer, *readers))
        if runs:
            s.beat_until(step + ", topics were made", "a", lambda _: s.owns("a") > 0)
        s.describe(step + ", described")
        s.leave(step + ", a leaves", "a")
        s.delete_group(step + ", deleted")

    joined(
        "explicit, but there with the source's count",
        subtopology("1", [s.name("in")], repartitions=[s.topic("r", 5)], copartitions=[((0,), (0,))]),
    )
    joined(
        "the widest is there",
        subtopology("1", repartitions=[s.topic("p"), s.topic("t")], copartitions=copartitions),
        runs=True,
    )
    joined(
        "both are there and differ",
        subtopology("1", repartitions=[s.topic("p"), s.topic("q")], copartitions=copartitions),
    )


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


@scenario({"in": 2, "narrow": 1})
def repartition_chains(s: Script) -> None:
    """Longer chains: an explicit count in the middle, and circles with more than one way in."""
    names = [s.name(f"c{number}") for number in range(5)]
    s.join(
        "explicit in the middle",
        "a",
        topology(
            subtopology("0", [s.name("in")], sinks=[names[0]]),
            *(
                subtopology(
                    str(number + 1),
                    repartitions=[s.topic(f"c{number}", 3 if number == 2 else 0)],
                    sinks=names[number + 1 :][:1],
                )
                for number in range(5)
            ),
        ),
    )
    s.beat_until("explicit in the middle, topics were made", "a", lambda _: s.owns("a") > 0)
    s.describe_topics("explicit in the middle, counts", [f"c{number}" for number in range(5)])
    s.leave("a leaves", "a")
    s.delete_group("deleted")
    s.join(
        "a circle with two ways in",
        "a",
        topology(
            subtopology("0", [s.name("narrow")], repartitions=[s.topic("d2")], sinks=[s.name("d1")]),
            subtopology("1", [s.name("in")], repartitions=[s.topic("d1")], sinks=[s.name("d2")]),
        ),
    )
    s.beat_until("a circle with two ways in, topics were made", "a", lambda _: s.owns("a") > 0)
    s.describe_topics("a circle with two ways in, counts", ["d1", "d2"])


@scenario({})
def many_missing_sources(s: Script) -> None:
    s.join("joins", "a", s.source("e", "c", "a", "d", "b"))
    s.create_topics({"b": 1, "d": 1})
    s.beat_until("three are missing", "a", lambda answer: "additional" not in answer.status[0].status_detail)


@scenario({"in": 2})
def many_topics_that_cannot_be_made(s: Script) -> None:
    topics = [dataclasses.replace(s.topic(f"log{number}"), replication_factor=3) for number in range(5)]
    s.join("joins", "a", topology(subtopology("0", [s.name("in")], changelogs=topics)))
    s.beat_until("is told why", "a", lambda answer: ";" in answer.status[0].status_detail)
    s.beat("is told again", "a")


@scenario({"in": 2}, heartbeat_interval_ms=200)
def topics_that_can_be_made_later(s: Script) -> None:
    """A failure is forgotten after two heartbeat intervals, and the topic is tried again."""
    topics = [dataclasses.replace(s.topic("log"), replication_factor=3)]
    s.join("joins", "a", topology(subtopology("0", [s.name("in")], changelogs=topics)))
    s.beat_until("is told why", "a", lambda answer: ";" in answer.status[0].status_detail)
    s.beat_until("no longer", "a", lambda answer: ";" not in answer.status[0].status_detail)
    s.beat_until("tried again", "a", lambda answer: ";" in answer.status[0].status_detail)
    s.create_topics({"log": 2})
    s.beat_until("somebody made it", "a", lambda _: s.owns("a") == 2)


@scenario({"in": 2})
def topics_that_cannot_be_made(s: Script) -> None:
    s.join(
        "joins", "a", topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", cleanup_policy="nonsense")]))
    )
    s.beat_until("is told why", "a", lambda answer: ";" in answer.status[0].status_detail)
    s.describe("not ready")
