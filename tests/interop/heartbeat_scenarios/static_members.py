"""What Kafka does since 4.4: static members, task offsets, roles that change in place."""

from __future__ import annotations

from typing import Any

from tests.interop.heartbeat_scenarios.scenario import NOTHING, scenario
from tests.interop.heartbeat_script import ALL, Script, h, subtopology, topology

ENDPOINT = h.Endpoint(host="here", port=1)


@scenario({"in": 2}, since_44=True)
def validation_44(s: Script) -> None:
    given = s.source("in")
    task = h.TaskIds(subtopology_id="0", partitions=(0,))
    offset = h.TaskOffset(subtopology_id="0", partition=0, offset=1)
    counted = topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log", 3)]))
    regex = topology(subtopology("0", regex=["i.*"]))
    s.join("blank instance", "a", given, instance_id=" ")
    s.join("blank member and instance", " ", given, instance_id=" ")
    s.join("with warmup tasks", "a", given, warmup_tasks=(task,))
    s.join("instance and a changelog with a count", "a", counted, instance_id="i")
    s.join("task offsets and no topology", "a", None, task_offsets=())
    s.join("regex and instance", "a", regex, instance_id="i")
    s.join("offsets twice and a regex", "a", regex, task_offsets=(offset, offset))
    s.join("offsets twice", "a", given, task_offsets=(offset, offset))
    s.join("end offsets twice", "a", given, task_offsets=(offset,), task_end_offsets=(offset, offset))
    s.describe("no group came of it")
    s.beat("epoch -3 and instance", "a", epoch=-3, instance_id="i")
    s.beat("epoch -2", "a", epoch=-2)
    s.beat("epoch -2 with instance", "a", epoch=-2, instance_id="i")
    s.beat("instance, not joining", "a", epoch=1, instance_id="i")
    s.leave("instance, leaving", "a", instance_id="i")
    s.beat("task offsets, not joining", "a", epoch=1, task_offsets=(offset,))
    s.beat("warmup tasks, not joining", "a", epoch=1, owned=NOTHING, warmup_tasks=(task,))
    s.join("joins with instance", "a", given, instance_id="i")
    s.beat("unknown instance", "a", instance_id="j")
    s.beat("unknown member, known instance", "b", epoch=2, instance_id="i")
    s.beat("epoch too high", "a", epoch=9, instance_id="i")
    s.beat("offsets twice, in the group", "a", task_offsets=(offset, offset))
    s.beat("offsets of no task", "a", task_offsets=(h.TaskOffset(subtopology_id="9", partition=-1, offset=-5),))
    s.beat("owns a warmup task that it has not", "a", owned=NOTHING, warmup_tasks=(task,))
    s.beat("for a while, unknown instance", "a", epoch=-2, instance_id="j")
    s.beat("for a while, another member", "b", epoch=-2, instance_id="i")
    s.leave("for good, another member", "b", instance_id="i")
    s.describe("as it was")


@scenario({"in": 4}, since_44=True)
def static_member_restarts(s: Script) -> None:
    given = s.source("in")
    s.join("a joins", "a", given, instance_id="i", process="p")
    s.join("b joins", "b", given, instance_id="j")
    s.beat("a is told", "a", instance_id="i")
    s.join("c wants a's place", "c", given, instance_id="i")
    s.beat("a acknowledges", "a", owned=ALL, instance_id="i")
    s.beat("b gets its tasks", "b", instance_id="j")
    s.describe("settled")
    s.beat("a leaves for a while", "a", epoch=-2, instance_id="i")
    s.describe("a is away")
    s.beat("b does not notice", "b", instance_id="j")
    s.beat("a beats all the same", "a", epoch=3, instance_id="i")
    s.join("d comes back as a", "d", given, instance_id="i", process="p")
    s.describe("d has a's place")
    s.beat("a is nobody", "a", epoch=3)
    s.beat("a is not i", "a", epoch=3, instance_id="i")
    s.beat("b still does not notice", "b", instance_id="j")
    s.beat("d leaves for a while", "d", epoch=-2, instance_id="i")
    s.beat("and again", "d", epoch=-2, instance_id="i")
    s.join("d comes back under its own id", "d", given, instance_id="i", process="p")
    s.describe("d is back")
    s.beat("d leaves once more", "d", epoch=-2, instance_id="i")
    s.join("e comes back in another process", "e", given, instance_id="i", process="q")
    s.describe("another process")
    s.leave("b leaves for good", "b", instance_id="j")
    s.join("b joins anew", "b", given, instance_id="j")
    s.leave("e leaves, without its instance", "e")
    s.describe("e is gone")


@scenario({"in": 4}, since_44=True)
def static_member_changes(s: Script) -> None:
    s.join("a joins", "a", s.source("in"), instance_id="i")
    changes: dict[str, dict[str, Any]] = {
        "another client tag": {"client_tags": (h.KeyValue(key="zone", value="x"),)},
        "another rack": {"rack_id": "r"},
        "another timeout": {"rebalance_timeout_ms": 12_345},
        "an endpoint": {"user_endpoint": ENDPOINT},
        "another process": {"process": "z"},
    }
    for step, fields in changes.items():
        s.beat(step, "a", instance_id="i", **fields)
        s.describe(f"{step}, seen")
    s.join("joins anew without endpoint", "b", s.source("in"), instance_id="j")
    s.beat("no instance said", "a", rebalance_timeout_ms=999)
    s.describe("no instance said, seen")


@scenario({"in": 4}, since_44=True)
def static_member_leaves_while_revoking(s: Script) -> None:
    given = s.source("in")
    s.join("a joins", "a", given, instance_id="i")
    s.join("b joins", "b", given)
    s.beat("a is told", "a", instance_id="i")
    s.beat("a leaves for a while", "a", epoch=-2, instance_id="i")
    s.beat("b gets its tasks", "b")
    s.describe("a is away")
    s.join("a is back", "c", given, instance_id="i", process="a")
    s.describe("settled")


@scenario({"in": 4}, since_44=True, session_timeout_ms=1_000)
def static_member_never_returns(s: Script) -> None:
    given = s.source("in")
    s.join("a joins", "a", given, instance_id="i")
    s.beat("a leaves for a while", "a", epoch=-2, instance_id="i")
    s.describe("a is away")
    s.describe_until("a is gone", lambda seen: not seen["members"])
    s.join("somebody else", "b", given, instance_id="i")


@scenario({"in": 4}, since_44=True)
def task_offsets(s: Script) -> None:
    offset = h.TaskOffset
    s.join("a joins", "a", s.source("in"))
    s.beat("reports", "a", task_offsets=(offset(subtopology_id="0", partition=1, offset=7),))
    s.describe("one")
    two = tuple(offset(subtopology_id="0", partition=partition, offset=8) for partition in (2, 3))
    s.beat("reports others, and ends", "a", task_offsets=two, task_end_offsets=two)
    s.describe("two and two")
    s.beat("reports ends only", "a", task_end_offsets=())
    s.describe("two and none")
    s.join("joins again", "a", s.source("in"))
    s.describe("kept")


@scenario({"in": 2}, since_44=True, rack_aware_assignment_tags="zone,rack")
def missing_client_tags(s: Script) -> None:
    s.join("joins without tags", "a", s.source("in"))
    s.beat("has one", "a", client_tags=(h.KeyValue(key="rack", value="r"),))
    both = (h.KeyValue(key="rack", value="r"), h.KeyValue(key="zone", value="z"))
    s.beat("has both", "a", client_tags=both)
    s.beat("still has them", "a")
    s.join("joins and shuts down", "b", s.source("in"), shutdown_application=True)


@scenario({"in": 4}, since_44=True, num_standby_replicas=1)
def roles_change_in_place(s: Script) -> None:
    given = topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log")]))
    s.join("a joins", "a", given)
    s.beat_until("a has its tasks", "a", lambda _: s.owns("a") == 4)
    s.join("b joins", "b", given)
    s.beat("a is told", "a")
    s.beat("b waits", "b")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.describe("each stands by for the other")
    s.leave("a leaves", "a")
    s.beat("b takes over", "b")
    s.describe("b alone")
