"""What is no good: malformed heartbeats, wrong epochs, unknown members, groups of another type."""

from __future__ import annotations

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"in": 2})
def malformed(s: ConsumerScript) -> None:
    s.join("no member id", "", "in")
    s.join("a blank member id", " ", "in")
    s.beat("no member id, living", "", epoch=1)
    s.leave("no member id, leaving", "")
    s.join("no group id", "a", "in", group_id="")
    s.join("a blank group id", "a", "in", group_id="  ")
    s.join("a blank instance id", "a", "in", instance_id=" ")
    s.join("a blank rack", "a", "in", rack_id="")
    s.join("no rebalance timeout", "a", "in", rebalance_timeout_ms=-1)
    s.join("no partitions", "a", "in", owned=None)
    s.join("partitions", "a", "in", owned={"in": (0,)})
    s.join("no subscription", "a", names=None)
    s.join("an unknown assignor", "a", "in", server_assignor="best")
    s.join("an assignor without a name", "a", "in", server_assignor="")
    s.beat("epoch -3", "a", epoch=-3)
    s.leave("a static leave without an instance", "a", epoch=-2)
    s.describe("nothing came of it")
    s.join("an empty subscription", "a")
    s.describe("a member that reads nothing")
    s.beat("reads something now", "a", names=(s.name("in"),))
    s.beat("an unknown assignor, later", "a", server_assignor="best")
    s.beat("no instance after all", "a", instance_id="")


@scenario({"in": 2})
def malformed_in_version_0(s: ConsumerScript) -> None:
    s.join("a blank member id", " ", "in", version=0, group_id="")
    s.beat("no member id, living", "", epoch=1, version=0)
    s.leave("no member id, leaving", "", version=0)
    s.leave("no member id, leaving for a while", "", epoch=-2, instance_id="i", version=0)
    s.join("no subscription", "a", names=None, version=0)
    s.join("an id of its own", "a", "in", version=0)
    s.beat("beats", "a", version=0)
    s.leave("leaves", "a", version=0)
    s.join("an id by the broker", "", "in", version=0)


@scenario({"in": 4})
def unknown(s: ConsumerScript) -> None:
    s.beat("unknown group", "a", epoch=1)
    s.leave("leaves an unknown group", "a")
    s.leave("leaves an unknown group for a while", "a", epoch=-2, instance_id="i")
    s.join("joins", "a", "in")
    s.beat("unknown member", "b", epoch=1)
    s.leave("unknown member leaves", "b")
    s.beat("unknown instance", "a", epoch=2, instance_id="i")
    s.leave("unknown instance leaves", "a", instance_id="i")


@scenario({"in": 4})
def epochs(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.beat("ahead", "a", epoch=9)
    s.beat("behind, two steps", "a", epoch=1)
    s.beat("as it is", "a", epoch=2)
    s.join("b joins", "b", "in")
    s.beat("a revokes", "a")
    s.beat("a acknowledges", "a", owned=MINE)
    s.beat("previous epoch, says nothing", "a", epoch=2)
    s.beat("previous epoch, owns what it has", "a", epoch=2, owned=MINE)
    s.beat("previous epoch, owns a part", "a", epoch=2, owned={"in": (0,)})
    s.beat("previous epoch, owns nothing", "a", epoch=2, owned={})
    s.beat("previous epoch, owns more", "a", epoch=2, owned={"in": (0, 1, 2)})
    s.beat("an epoch before that", "a", epoch=1, owned={})
    s.beat("current epoch", "a", epoch=3, owned=MINE)
    s.beat("b", "b")
    s.describe("settled")
    s.leave("leaves with any epoch", "a")


@scenario({"in": 2})
def a_streams_group(s: ConsumerScript) -> None:
    s.streams_join("a streams member joins", "a", "in")
    s.join("a consumer would join", "b", "in")
    s.beat("a consumer would live", "b", epoch=3)
    s.leave("a consumer would leave", "b")
    s.describe("is no consumer group")


@scenario({"in": 2})
def not_for_streams(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.streams_join("a streams member would join", "b", "in")
    s.describe("as it was")


@scenario({"in": 2})
def simple_group_becomes_consumer(s: ConsumerScript) -> None:
    s.commit("a position without a group", "", {("in", 0): 7}, epoch=-1)
    s.list_groups("a simple group")
    s.describe("is no consumer group")
    s.beat("a member of nothing", "a", epoch=2)
    s.leave("leaves nothing", "a")
    s.join("joins", "a", "in")
    s.describe("converted")
    s.list_groups("a consumer group")
    s.fetch("the position is there", {"in": [0, 1]})
    s.leave("leaves", "a")
    s.delete_group("deleted")
    s.fetch("no position", {"in": [0]})
