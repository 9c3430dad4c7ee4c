"""A classic group with members becomes a consumer group, and its members live on in it."""

from __future__ import annotations

from tests.interop.consumer_script import MINE
from tests.interop.mixed_script import MixedScript, migration_scenario

ALL = range(4)


@migration_scenario()
def eager_member_and_a_consumer(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.commit("p commits", "p", {("in", 0): 5})
    s.consumer_joins("a joins", "a", "in")
    s.describe("a consumer group")
    s.list_groups("listed")
    s.list_groups("listed as a consumer group", types=("consumer",))
    s.describe_classic("as a classic group, older", 5)
    s.describe_classic("as a classic group", 6)
    s.commit("p commits with its generation", "p", {("in", 1): 6})
    s.heartbeat("p must join again", "p")
    s.heartbeat("and still must", "p")
    s.sync("p syncs too early", "p")
    s.again("p", "p", "in")
    s.heartbeat("p lives", "p")
    s.beat("a takes", "a", owned=MINE)
    s.beat("a has", "a", owned=MINE)
    s.describe("settled")
    s.commit("p commits what it has", "p", {("in", 0): 7})
    s.commit("with its old generation what it had then", "p", {("in", 0): 8}, epoch=1)
    s.commit("with its old generation what it has not", "p", {("in", 3): 8}, epoch=1)
    s.commit("with a generation to come", "p", {("in", 0): 8}, epoch=9)
    s.commit("an older version", "p", {("in", 0): 9}, version=8)
    s.commit("a commits", "a", {("in", 3): 9}, epoch=s.epochs["a"])
    s.fetch("p fetches", {"in": ALL}, member=s.ids["p"], epoch=s.generations["p"])
    s.fetch("p fetches with its old generation", {"in": ALL}, member=s.ids["p"], epoch=1)
    s.join("p joins as it is", "p", protocols=s.reads("in"))
    s.sync("and has the same", "p")
    s.delete_group("not empty")
    s.delete_offsets("offsets of a topic that is read", {"in": [0]})


@migration_scenario()
def cooperative_member_and_a_consumer(s: MixedScript) -> None:
    both = ("cooperative-sticky", "range")
    s.alone("p", {"in": ALL}, protocols=s.reads("in", protocols=both))
    s.consumer_joins("a joins", "a", "in")
    s.heartbeat("p must join again", "p")
    s.join("p joins with what it has", "p", protocols=s.reads("in", owned={"in": ALL}, protocols=both))
    s.describe("it is to give two up")
    s.sync("p is told", "p", protocol="cooperative-sticky")
    s.heartbeat("p must join again to say that it let go", "p")
    s.beat("a waits", "a")
    s.join("p let go", "p", protocols=s.reads("in", owned={"in": (0, 1)}, protocols=both))
    s.sync("p keeps the others", "p", protocol="cooperative-sticky")
    s.heartbeat("p lives", "p")
    s.beat("a takes", "a")
    s.describe("settled")
    s.leave("a leaves for a moment", "a", epoch=-2)


@migration_scenario()
def member_waits_for_what_a_consumer_has(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.heartbeat("p must join again", "p")
    s.again("p", "p", "in")
    s.beat("a takes", "a", owned=MINE)
    s.consumer_joins("b joins", "b", "other")
    s.join("p reads another", "p", protocols=s.reads("other"))
    s.sync("p has nothing yet", "p")
    s.heartbeat("p's heartbeat", "p")
    s.beat("a gets the rest", "a", owned=MINE)
    s.beat("b's heartbeat", "b", owned=MINE)
    s.join("p reads it again", "p", protocols=s.reads("in"))
    s.sync("p syncs", "p")
    s.heartbeat("a has not let go", "p")
    s.beat("a is told", "a", owned=MINE)
    s.heartbeat("still not", "p")
    s.beat("a lets go", "a", owned=MINE)
    s.heartbeat("now p can join", "p")
    s.again("p is back", "p", "in")
    s.describe("settled")


@migration_scenario()
def rolled_one_by_one(s: MixedScript) -> None:
    s.both("p", "q", {"p": {"in": (0, 1)}, "q": {"in": (2, 3)}})
    s.leave_group("p leaves", "p")
    s.consumer_joins("a joins a rebalance", "a", "in")
    s.describe("upgraded in a rebalance")
    s.heartbeat("q must join again", "q")
    s.again("q", "q", "in")
    s.beat("a takes", "a", owned=MINE)
    s.leave_group("q leaves", "q")
    s.describe("only consumers")
    s.beat("a gets all", "a", owned=MINE)
    s.describe("settled")


@migration_scenario({"in": 6})
def members_that_wait_for_an_answer(s: MixedScript) -> None:
    s.both("p", "q", {"p": {"in": (0, 1, 2)}, "q": {"in": (3, 4, 5)}})
    s.ask_join("p", protocols=s.reads("in"))
    s.consumer_joins("a joins", "a", "in")
    s.hear("p is told to join again", "p")
    s.describe("upgraded")
    s.heartbeat("q must join again", "q")
    s.join("p joins", "p", protocols=s.reads("in"))
    s.sync("p syncs", "p")


@migration_scenario({"in": 6})
def members_that_wait_for_the_leader(s: MixedScript) -> None:
    s.both("p", "q", {"p": {"in": (0, 1, 2)}, "q": {"in": (3, 4, 5)}})
    s.ask_join("p", protocols=s.reads("in"))
    s.ask_join("q", protocols=s.reads("in"))
    s.hear("p joined again", "p")
    s.hear("q joined again", "q")
    s.ask_sync("q")
    s.pause_ms(200)
    s.consumer_joins("a joins", "a", "in")
    s.hear("q is told to join again", "q")
    s.describe("upgraded")
    s.sync("the leader comes too late", "p", {"p": s.assigns({"in": (0, 1, 2)}), "q": s.assigns({"in": (3, 4, 5)})})
    s.again("p", "p", "in")


@migration_scenario()
def id_that_was_given_out_before(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.join("q is given an id", "q", protocols=s.reads("in"))
    s.consumer_joins("a joins", "a", "other")
    s.join("q comes with it", "q", protocols=s.reads("other"))
    s.sync("q syncs", "q")
    s.join("anybody may come with an id", "r", member="r", protocols=s.reads("other"))
    s.describe("four members")


@migration_scenario({"in": 4, "other": 2})
def many_protocols_and_topics(s: MixedScript) -> None:
    names = ("roundrobin", "range")
    s.alone("p", {"in": ALL}, protocols=s.reads("in", protocols=names))
    s.consumer_joins("a joins", "a", "other")
    s.describe("mixed")
    s.join("q with one of them, first", "q", protocols=s.reads("other", "missing", protocols=("range", "mine")))
    s.join("q", "q", protocols=s.reads("other", "missing", protocols=("range", "mine")))
    s.sync("q syncs with another", "q", protocol="roundrobin")
    s.sync("q syncs", "q", protocol="range")
    s.sync("q syncs without a name", "q", protocol=None, protocol_type=None, version=4)
    s.join("none of p's any more", "p", protocols=s.reads("in", protocols=("mine",)))
    s.join("p with the other", "p", protocols=s.reads("in", protocols=("range",)))
    s.join("roundrobin is nobody's now", "r", protocols=s.reads("in", protocols=("roundrobin",)))
    s.describe("mixed still")


@migration_scenario()
def versions_of_join_and_sync(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, version=5, protocols=s.reads("in", version=0))
    s.consumer_joins("a joins", "a", "in")
    for version in (2, 3, 4, 5, 6, 7, 8, 9):
        data = s.reads("in", version=min(version - 2, 3))
        s.join(f"p joins, version {version}", "p", protocols=data, version=version)
        s.sync(f"p syncs, version {version}", "p", version=min(version - 1, 5))
    s.join("q joins without an id, version 3", "q", protocols=s.reads("other"), version=3)
    s.heartbeat("q beats", "q")
    s.describe("q is here")


@migration_scenario()
def static_member_comes_as_consumer(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, instance="one")
    s.consumer_joins("a has its instance", "a", "in", instance_id="one")
    s.describe("replaced")
    s.heartbeat("p is fenced", "p", instance="one")
    s.sync("p's sync is fenced", "p", instance="one")
    s.join("p's join is fenced", "p", instance="one", protocols=s.reads("in"))
    s.leave_group("p's leaving is fenced", "p", ("p", "one"))
    s.heartbeat("p without its instance", "p")
    s.beat("a has all", "a", instance_id="one", owned=MINE)


@migration_scenario()
def static_members_restart_in_a_mixed_group(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, instance="one")
    s.consumer_joins("a joins", "a", "in")
    s.heartbeat("p must join again", "p", instance="one")
    s.again("p", "p", "in", instance="one")
    s.beat("a takes", "a", owned=MINE)
    s.join("p restarts", "p2", instance="one", protocols=s.reads("in"))
    s.sync("p2 syncs", "p2", instance="one")
    s.heartbeat("the old one is fenced", "p", instance="one")
    s.heartbeat("p2 lives", "p2", instance="one")
    s.describe("the same place")
    s.join("a new instance", "r", instance="two", protocols=s.reads("other"))
    s.sync("r syncs", "r", instance="two")
    s.join("an unknown instance with an id", "x", member="x", instance="three", protocols=s.reads("in"))
    s.heartbeat("an unknown instance", "p2", instance="three")
    s.leave_group("an operator removes it", "p2", ("", "two"), ("", "nobody"), ("stranger", None))
    s.describe("without it")


@migration_scenario()
def empty_groups(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.leave_group("p leaves", "p")
    s.consumer_joins("a joins", "a", "in")
    s.describe("from the beginning")
    s.leave("a leaves", "a")
    s.heartbeat("nobody is a member", "p")
    s.sync("nor syncs", "p")
    s.leave_group("nor leaves", "p")
    s.alone("q", {"in": ALL})
    s.describe_members("classic again")
