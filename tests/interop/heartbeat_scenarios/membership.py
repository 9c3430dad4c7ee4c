"""Members come, share, go, are late, and tell one another."""

from __future__ import annotations

from tests.interop.heartbeat_scenarios.scenario import NOTHING, scenario
from tests.interop.heartbeat_script import ALL, Script, h, subtopology, topology

# Members come and go.


@scenario({"in": 4})
def lone_member(s: Script) -> None:
    s.describe("nobody knows the group")
    s.fetch("offsets of a group nobody knows", {"in": [0]})
    s.delete_group("delete a group nobody knows")
    s.join("joins", "a", s.source("in"))
    s.describe("joined")
    s.beat("beats", "a")
    s.beat("says what it has", "a", owned=ALL)
    s.list_groups("listed")
    s.list_groups("listed as stable", "Stable")
    s.list_groups("listed as stable in small letters", "stable")
    s.list_groups("not listed as empty", "Empty")
    s.list_groups("listed as streams", types=["streams"])
    s.list_groups("listed as Streams", types=["Streams"])
    s.list_groups("not listed as consumer", types=["consumer"])
    s.describe_classic("described as classic", 5)
    s.describe_classic("described as classic, newer", 6)
    s.delete_group("delete with a member")
    s.leave("leaves", "a")
    s.describe("empty")
    s.list_groups("listed as empty", "Empty")
    s.leave("leaves again", "a")
    s.beat("beats after leaving", "a", epoch=2)
    s.join("comes back", "a", s.source("in"))
    s.describe("back")
    s.leave("leaves for good", "a")
    s.delete_group("delete the empty group")
    s.describe("gone")
    s.list_groups("gone from the list")
    s.join("a new group of the same name", "a", s.source("in"))


@scenario({"in": 4})
def two_members(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins", "b", s.source("in"))
    s.describe("b waits")
    s.beat("a is told to revoke", "a")
    s.describe("a revokes")
    s.list_groups("reconciling", "Reconciling")
    s.beat("a says nothing", "a")
    s.beat("b still waits", "b")
    s.beat("a still has them all", "a", owned={"0": (0, 1, 2, 3)})
    s.beat("a acknowledges", "a", owned=ALL)
    s.describe("released")
    s.beat("b gets its tasks", "b")
    s.describe("settled")
    s.beat("a is steady", "a")
    s.beat("b is steady", "b")
    s.leave("a leaves", "a")
    s.describe("a is gone")
    s.beat("b takes over", "b")
    s.describe("b has them all")
    s.leave("b leaves", "b")
    s.describe("empty")


@scenario({"in": 6})
def three_members(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins", "b", s.source("in"))
    s.join("c joins while a has not heard of b", "c", s.source("in"))
    s.beat("a is told", "a")
    s.beat("b waits", "b")
    s.beat("c waits", "c")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.beat("c takes", "c")
    s.describe("three share")
    s.leave("b leaves", "b")
    s.beat("a takes over", "a")
    s.beat("c takes over", "c")
    s.beat("a again", "a")
    s.describe("two share")


@scenario({"in": 4})
def two_members_of_one_process(s: Script) -> None:
    s.join("a joins", "a", s.source("in", changelogs=["log"]), process="p")
    s.beat_until("a has its tasks", "a", lambda _: s.owns("a") == 4)
    s.join("b joins", "b", s.source("in", changelogs=["log"]), process="p")
    s.beat("a is told", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.describe("two threads")


@scenario({"in": 4})
def leave_while_revoking(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins", "b", s.source("in"))
    s.beat("a is told", "a")
    s.leave("b leaves before it has anything", "b")
    s.beat("a has not let go and gets them back", "a")
    s.beat("a lets go", "a", owned=ALL)
    s.beat("a has them all", "a")
    s.describe("a alone")


@scenario({"in": 4})
def rejoin(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.join("joins again, the same", "a", s.source("in"))
    s.describe("nothing moved")
    s.join("joins from another process", "a", s.source("in"), process="q")
    s.join("joins with another timeout", "a", s.source("in"), process="q", rebalance_timeout_ms=50_000)
    s.join("b joins", "b", s.source("in"))
    s.join("a joins while it shall revoke", "a", s.source("in"), process="q", rebalance_timeout_ms=50_000)
    s.beat("b takes", "b")
    s.describe("after the rejoin")
    s.beat("a is told to revoke or is steady", "a", owned=ALL)
    s.beat("b is steady", "b")


@scenario({"in": 4})
def metadata_changes(s: Script) -> None:
    tag = h.KeyValue(key="zone", value="1")
    s.join("joins", "a", s.source("in"), client_tags=(tag,), rack_id="r1")
    s.describe("tags and rack")
    s.beat("another rack", "a", rack_id="r2")
    s.beat("the same rack", "a", rack_id="r2")
    s.beat("other tags", "a", client_tags=(h.KeyValue(key="zone", value="2"),))
    s.beat("no tags", "a", client_tags=())
    s.beat("another process", "a", process="q")
    s.beat("another timeout", "a", rebalance_timeout_ms=1_000)
    s.beat("an endpoint", "a", user_endpoint=h.Endpoint(host="here", port=1))
    s.join("joins without endpoint", "a", s.source("in"), process="q", rebalance_timeout_ms=1_000)
    s.describe("all changed")


# Fencing.


@scenario({"in": 4})
def previous_epoch(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins", "b", s.source("in"))
    s.beat("a is told", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    current = s.epochs["a"]
    had = s.tasks["a"]["active"]
    s.beat("previous epoch without lists", "a", epoch=current - 1)
    s.beat("previous epoch, owning all of its own", "a", epoch=current - 1, owned=had)
    s.beat("previous epoch, owning a part", "a", epoch=current - 1, owned={"0": had["0"][:1]})
    s.beat("previous epoch, owning nothing", "a", epoch=current - 1, owned=NOTHING)
    s.beat("previous epoch, owning others'", "a", epoch=current - 1, owned={"0": (0, 1, 2, 3)})
    s.beat("an epoch before", "a", epoch=1, owned=NOTHING)
    s.beat("an epoch ahead", "a", epoch=current + 1, owned=NOTHING)
    s.describe("still there")


@scenario({"in": 4})
def owned_tasks(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.beat("owns a part", "a", owned={"0": (1, 2)})
    s.beat("owns nothing", "a", owned=NOTHING)
    s.beat("owns a task of an unknown subtopology", "a", owned={"7": (0,)})
    s.beat("owns a task too many", "a", owned={"0": (4,)})
    s.beat("owns a negative task", "a", owned={"0": (-1,)})
    s.beat("owns one as standby", "a", owned=NOTHING, standby_tasks=(h.TaskIds(subtopology_id="0", partitions=(1,)),))
    s.describe("unmoved")


@scenario({"in": 2})
def unknown(s: Script) -> None:
    s.beat("unknown group", "a", epoch=1)
    s.leave("leave an unknown group", "a")
    s.join("a joins", "a", s.source("in"))
    s.beat("beat as unknown member", "x", epoch=1)
    s.leave("leave as unknown member", "x")
    s.leave("leave with shutdown as unknown member", "x", shutdown_application=True)
    s.beat("a hears of the shutdown", "a")


# Standby replicas, delays, timeouts.


@scenario({"in": 4}, num_standby_replicas=1)
def standby_replicas(s: Script) -> None:
    given = topology(subtopology("0", [s.name("in")], changelogs=[s.topic("log")]), subtopology("1", [s.name("in")]))
    s.join("a joins", "a", given)
    s.beat_until("a has its tasks", "a", lambda _: s.owns("a") == 8)
    s.describe("no place for a standby")
    s.join("b joins", "b", given)
    s.beat("a is told", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.beat("a takes", "a")
    s.beat("b again", "b")
    s.describe("each stands by for the other")
    s.leave("a leaves", "a")
    s.beat("b is told", "b")
    s.beat("b acknowledges", "b", owned=ALL)
    s.describe("b alone")


@scenario({"in": 4}, initial_rebalance_delay_ms=600)
def initial_delay(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.describe("delayed")
    s.beat("a beats", "a")
    s.join("b joins", "b", s.source("in"))
    s.describe_until("the delay is over", lambda seen: seen["assignment epoch"] == seen["group epoch"])
    s.beat("a gets its tasks", "a")
    s.beat("b gets its tasks", "b")
    s.describe("settled")
    s.leave("a leaves", "a")
    s.leave("b leaves", "b")
    s.join("delayed again after it was empty", "a", s.source("in"))


@scenario({"in": 4}, initial_rebalance_delay_ms=200)
def lone_member_and_initial_delay(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.pause_ms(700)
    s.describe("the delay is over")
    s.beat("beats", "a")
    s.describe("beaten")


@scenario({"in": 4}, assignment_interval_ms=500)
def assignment_interval(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins within the interval", "b", s.source("in"))
    s.beat("a beats within the interval", "a")
    s.describe("assigning")
    s.pause_ms(1_000)
    s.describe("the interval is over")
    s.beat("b beats", "b")
    s.beat("a is told", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b gets its tasks", "b")
    s.describe("settled")


@scenario({"in": 4}, session_timeout_ms=1_000, heartbeat_interval_ms=100)
def session_timeout(s: Script) -> None:
    s.join("joins", "a", s.source("in"))
    s.describe_until("is fenced", lambda seen: not seen["members"])
    s.beat("beats", "a")
    s.join("joins again", "a", s.source("in"))


@scenario({"in": 4})
def rebalance_timeout(s: Script) -> None:
    s.join("a joins", "a", s.source("in"), rebalance_timeout_ms=300)
    s.join("b joins", "b", s.source("in"))
    s.beat("a is told and does not revoke", "a")
    s.describe_until("a is fenced", lambda seen: seen["members"] == ["b"])
    s.beat("a beats", "a", owned=ALL)
    s.beat_until("b has all", "b", lambda _: s.owns("b") == 4)
    s.describe("b has all, described")


# What members tell one another.


@scenario({"in": 4, "r": 2})
def endpoints(s: Script) -> None:
    given = topology(
        subtopology("0", [s.name("in")], sinks=[s.name("r")]), subtopology("1", repartitions=[s.topic("r", 2)])
    )
    s.join("a joins", "a", given, user_endpoint=h.Endpoint(host="a.host", port=1))
    s.beat("a beats", "a")
    s.join("b joins without endpoint", "b", given)
    s.beat("a revokes", "a")
    s.beat("a acknowledges", "a", owned=ALL)
    s.beat("b takes", "b")
    s.join("c joins with endpoint", "c", given, user_endpoint=h.Endpoint(host="c.host", port=65_535))
    s.beat("a hears of c", "a")
    s.beat("b hears of c", "b")
    s.beat("a moves", "a", user_endpoint=h.Endpoint(host="a.host", port=2))
    s.beat("b hears of a", "b")
    s.beat("b hears no more", "b")
    s.beat("asks anew", "b", endpoint_information_epoch=-1)
    s.describe("endpoints")


@scenario({"in": 2})
def shutdown(s: Script) -> None:
    s.join("a joins", "a", s.source("in"))
    s.join("b joins", "b", s.source("in"))
    s.beat("b asks to shut down", "b", shutdown_application=True)
    s.beat("a hears it", "a")
    s.join("c hears it", "c", s.source("in"))
    s.leave("b leaves", "b")
    s.beat("a still hears it", "a")
    s.leave("a leaves", "a", shutdown_application=True)
    s.beat("c hears a's", "c")
    s.leave("c leaves", "c")
    s.join("nobody asks any more", "a", s.source("in"))
    s.beat("nobody asks", "a")


@scenario({"in": 2})
def shutdown_by_the_first(s: Script) -> None:
    s.join("joins and asks to shut down", "a", s.source("in"), shutdown_application=True)
    s.beat("hears it", "a")
