"""What a mixed group refuses, and which classic groups cannot be upgraded."""

from __future__ import annotations

from tests.interop.consumer_script import MINE
from tests.interop.mixed_script import MixedScript, migration_scenario

ALL = range(4)


@migration_scenario()
def other_protocol_type(s: MixedScript) -> None:
    s.join("p is given an id", "p", protocols=(("default", b""),), protocol_type="connect")
    s.join("p joined", "p", protocols=(("default", b""),), protocol_type="connect")
    s.sync("p synced", "p", {"p": b"all"}, protocol="default", protocol_type="connect")
    s.consumer_joins("a cannot join", "a", "in")
    s.beat("a cannot beat", "a", epoch=1)
    s.leave("a cannot leave", "a")
    s.describe("no consumer group")
    s.describe_members("unchanged")


@migration_scenario()
def assignment_that_is_none(s: MixedScript) -> None:
    s.enter("p", "p", protocols=s.reads("in"))
    s.hear("p joined", "p")
    s.sync("p synced", "p", {"p": b"\x00\x00\x00\x00\x00\x09"})
    s.consumer_joins("a cannot join", "a", "in")
    s.describe_members("unchanged")
    s.join("p joined again", "p", protocols=s.reads("in"))
    s.sync("p synced again", "p", {"p": b"\x00\x00\x00"})
    s.consumer_joins("a still cannot join", "a", "in")


@migration_scenario()
def assignment_of_an_assignor_of_ones_own(s: MixedScript) -> None:
    mine = s.reads("in", protocols=("mine",))
    s.enter("p", "p", protocols=mine)
    s.hear("p joined", "p")
    s.sync("p synced", "p", {"p": s.assigns({"in": ALL}, user_data=b"mine")}, protocol="mine")
    s.consumer_joins("a cannot join", "a", "in")
    s.describe_members("unchanged")
    s.ask_join("p", protocols=mine)
    s.hear("p joined again", "p")
    s.sync("p synced again", "p", {"p": s.assigns({"in": ALL}, user_data=b"")}, protocol="mine")
    s.consumer_joins("a can join", "a", "in")
    s.describe("upgraded")


@migration_scenario()
def unreadable_subscription(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.join("p joins with no subscription", "p", protocols=(("range", b"\x00"),))
    s.join("p joins with bytes", "p", protocols=(("range", b""), ("sticky", s.reads("in")[0][1])))
    s.join("p's second protocol does not matter", "p", protocols=(*s.reads("in"), ("sticky", b"")))
    s.describe("p is what it was")


@migration_scenario()
def joins_that_are_refused(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.join("another protocol type", "q", protocols=s.reads("in"), protocol_type="connect")
    s.join("no protocol type", "q", protocols=s.reads("in"), protocol_type="")
    s.join("no protocol", "q", protocols=())
    s.join("a protocol that nobody has", "q", protocols=s.reads("in", protocols=("mine",)))
    s.join("session too short", "q", protocols=s.reads("in"), session_ms=10)
    s.join("session too long", "q", protocols=s.reads("in"), session_ms=3_600_000)
    s.join("an instance that nobody has, with an id", "q", member="q", instance="x", protocols=s.reads("in"))
    s.describe("unchanged")


@migration_scenario()
def members_of_the_other_protocol(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.ids["a"] = "a"
    s.heartbeat("a beats as a classic member", "a", generation=s.epochs["a"])
    s.sync("a syncs as a classic member", "a", generation=s.epochs["a"])
    s.commit("a commits with an older version", "a", {("in", 0): 1}, epoch=s.epochs["a"], version=8)
    s.heartbeat("nobody beats", "x", member="x", generation=2)
    s.sync("nobody syncs", "x", member="x", generation=2)
    s.heartbeat("p beats with another generation", "p", generation=7)
    s.sync("p syncs with another generation", "p", generation=7)
    s.join("a joins as a classic member", "a", protocols=s.reads("in"))
    s.describe("a is a classic member")
    s.sync("a syncs", "a")
    s.describe("both are")


@migration_scenario()
def classic_member_beats_as_consumer(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "other")
    p = s.ids["p"]
    s.consumer_joins("p joins as a consumer", p, "in")
    s.describe("both are consumers")
    s.heartbeat("p is no classic member", "p")


@migration_scenario()
def full_groups(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    for member in ("a", "b", "c", "d"):
        s.consumer_joins(f"{member} joins", member, "missing")
    s.join("q is too much", "q", protocols=s.reads("in"))
    s.join("q with an id is too much", "q", member="q", protocols=s.reads("in"))
    s.join("p may join again", "p", protocols=s.reads("in"))
    s.consumer_joins("e is too much", "e", "in")
    s.beat("d lives", "d", owned=MINE)


@migration_scenario()
def full_classic_group(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    for number in range(4):
        who = f"q{number}"
        s.join(f"{who} is given an id", who, protocols=s.reads("in"))
        s.ask_join(who, protocols=s.reads("in"))
    s.join("p joins with all", "p", protocols=s.reads("in"))
    s.consumer_joins("a is too much", "a", "in")
    s.describe_members("unchanged")
