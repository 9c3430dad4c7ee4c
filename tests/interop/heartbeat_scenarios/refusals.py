"""Requests that are refused."""

from __future__ import annotations

from typing import Any

from tests.interop.heartbeat_scenarios.scenario import NOTHING, scenario
from tests.interop.heartbeat_script import Script, h, subtopology, topology


@scenario({"in": 2})
def validation(s: Script) -> None:
    """Without what Kafka refuses up to 4.3 and takes from 4.4 on: see `static_members`."""
    given = s.source("in")
    task = h.TaskIds(subtopology_id="0", partitions=(0,))
    s.join("blank member", " ", given)
    s.join("no member", "", given)
    s.join("blank group", "a", given, group_id=" ")
    s.join("no group", "a", given, group_id="")
    s.join("blank rack", "a", given, rack_id=" ")
    s.join("no rebalance timeout", "a", given, rebalance_timeout_ms=-1)
    s.join("no topology", "a", None)
    for role in ("active", "standby", "warmup"):
        s.join(f"no {role} tasks", "a", given, **{f"{role}_tasks": None})
    for role in ("active", "standby"):
        s.join(f"with {role} tasks", "a", given, **{f"{role}_tasks": (task,)})
    s.join("regex", "a", topology(subtopology("0", regex=["i.*"])))
    s.join("changelog with a count", "a", topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", 3)])))
    s.join(
        "changelog with a negative count",
        "a",
        topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", -1)])),
    )
    s.join(
        "regex and a changelog with a count",
        "a",
        topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", 3)], regex=["i.*"])),
    )
    s.join("shutdown and blank member", " ", given, shutdown_application=True)
    s.beat("epoch -2", "a", epoch=-2)
    s.beat("epoch -3", "a", epoch=-3)
    s.beat("blank member, not joining", " ", epoch=1)
    s.leave("blank member leaves", " ")
    s.beat("topology, not joining", "a", epoch=1, topology=given)
    s.leave("topology, leaving", "a", topology=given)
    for role in ("active", "standby", "warmup"):
        s.beat(f"{role} tasks alone", "a", epoch=1, **{f"{role}_tasks": ()})
        s.beat(f"all but {role} tasks", "a", epoch=1, owned=NOTHING, **{f"{role}_tasks": None})
        s.leave(f"{role} tasks alone, leaving", "a", **{f"{role}_tasks": ()})
    s.describe("no group came of it")


@scenario({"in": 2})
def topic_names(s: Script) -> None:
    def refused(step: str, *names: str) -> None:
        s.join(step, "a", topology(subtopology("0", names)))

    refused("internal topic", "__consumer_offsets")
    refused("two internal topics", s.name("in"), "__transaction_state", "__consumer_offsets")
    refused("an internal topic twice", "__transaction_state", s.name("in"), "__transaction_state")
    refused("illegal and internal", "a b", "__transaction_state")
    refused("two illegal names", "b b", s.name("in"), "a a", "b b")
    refused("illegal name", "in/valid")
    refused("empty name", "")
    refused("a dot", ".")
    refused("too long", "n" * 250)
    s.join("illegal sink", "a", topology(subtopology("0", [s.name("in")], sinks=["a b"])))
    s.join(
        "illegal changelog",
        "a",
        topology(
            subtopology(
                "0",
                [s.name("in")],
                changelogs=[h.TopicInfo(name="a?b", partitions=0, replication_factor=0, topic_configs=())],
            )
        ),
    )
    s.join(
        "internal changelog",
        "a",
        topology(
            subtopology(
                "0",
                [s.name("in")],
                changelogs=[
                    h.TopicInfo(name="__share_group_state", partitions=0, replication_factor=0, topic_configs=())
                ],
            )
        ),
    )
    s.describe("no group came of it")


@scenario({"in": 2, "other": 3})
def other_topology(s: Script) -> None:
    first = subtopology("0", [s.name("in"), s.name("other")])
    second = subtopology("1", [s.name("in")])
    s.join("a joins", "a", topology(first, second, epoch=3))
    s.join("the same, subtopologies in another order", "b", topology(second, first, epoch=3))
    s.join(
        "the same, topics in another order",
        "c",
        topology(subtopology("0", [s.name("other"), s.name("in")]), second, epoch=3),
    )
    s.join("another at the same epoch", "c", topology(first, epoch=3))
    s.join("the same at a higher epoch", "c", topology(first, second, epoch=4))
    s.join("another at a higher epoch", "c", topology(first, epoch=4))
    s.join("the same at a lower epoch", "c", topology(first, second, epoch=2))
    s.beat("stale member beats", "c")
    s.join("another at a lower epoch", "c", topology(first, epoch=1))
    s.join("catches up", "c", topology(first, second, epoch=3))
    s.describe("three members")
    for member in "abc":
        s.leave(f"{member} leaves", member)
    s.join("another topology for the empty group", "a", topology(first, epoch=4))
    s.describe("empty group keeps its topology")


@scenario({"in": 2})
def impossible_topology(s: Script) -> None:
    source = [s.name("in")]

    def refused(step: str, *subtopologies: Any) -> None:
        s.join(step, "a", topology(*subtopologies))

    refused(
        "nobody writes the repartition topic", subtopology("0", source), subtopology("1", repartitions=[s.topic("r")])
    )
    refused(
        "repartition topics in a circle",
        subtopology("0", repartitions=[s.topic("r1")], sinks=[s.name("r2")]),
        subtopology("1", repartitions=[s.topic("r2")], sinks=[s.name("r1")]),
    )
    refused("a subtopology without sources", subtopology("0", source), subtopology("1"))
    refused("copartition of a topic that is not there", subtopology("0", source, copartitions=[((3,), ())]))
    refused("copartition of a repartition topic that is not there", subtopology("0", source, copartitions=[((), (1,))]))
    refused("copartition of a topic with a negative index", subtopology("0", source, copartitions=[((-1,), ())]))
    s.describe("no group came of it")
    s.join("no subtopologies", "a", topology())
    s.beat("no subtopologies, beats", "a")
    s.describe("no subtopologies, described")
