"""Members that join, sync, change their minds, leave and fall silent."""

from __future__ import annotations

from tests.harness.polling import wait_until
from tests.interop.classic_scenarios.scenario import classic_scenario
from tests.interop.classic_script import ClassicScript, subscription

# Of a consumer's metadata Kafka reads the topics, and never answers when it stumbles over other bytes.
BOTH = (("range", subscription("in")), ("roundrobin", subscription("in", user_data=b"a")))
TURNED = (("roundrobin", subscription("in", user_data=b"b")), ("range", subscription("in", "more")))
OTHER = subscription("in", "other", user_data=b"\x00\xff", version=3)


@classic_scenario()
def one_member(s: ClassicScript) -> None:
    s.describe_members("before")
    s.join("is given an id", "a")
    s.describe_when_there("an id was given")
    s.list_groups("listed with an id given")
    s.heartbeat("heartbeat before joining", "a", generation=0)
    s.join("joins", "a")
    s.describe_members("joined")
    s.list_groups("listed while it completes")
    s.heartbeat("heartbeat before syncing", "a")
    s.join("joins again as it was", "a")
    s.sync("syncs", "a", {"a": b"everything", "x": b"for nobody"})
    s.describe_members("stable")
    s.list_groups("listed when stable")
    s.heartbeat("heartbeat", "a")
    s.sync("syncs again", "a")
    s.join("the leader joins again as it was", "a")
    s.describe_members("completing again")
    s.sync("an assignment for nobody", "a", {})
    s.describe_members("stable without bytes")
    s.join("joins with other metadata", "a", protocols={"range": OTHER})
    s.sync("syncs with the old generation", "a", generation=1)
    s.sync("syncs with the new one", "a", {"a": b"new"})
    s.leave_group("leaves", "a")
    s.describe_members("empty")
    s.list_groups("listed when empty")
    s.heartbeat("heartbeat after leaving", "a")
    s.sync("sync after leaving", "a")
    s.leave_group("leaves again", "a")
    s.join("joins with its old id", "a")
    s.delete_group("delete")
    s.describe_members("deleted")


@classic_scenario()
def two_members(s: ClassicScript) -> None:
    s.enter("a", "a", protocols=BOTH)
    s.hear("a leads", "a")
    s.sync("a is alone", "a", {"a": b"all"}, protocol="range")
    s.enter("b", "b", protocols=TURNED)
    wait_until(lambda: s.heartbeat(f"a beats {s.requests}", "a") == "REBALANCE_IN_PROGRESS", "a is told")
    s.recording = {step: seen for step, seen in s.recording.items() if not step.startswith("a beats")}
    s.describe_members("waiting for a")
    s.sync("a syncs too late", "a", {"a": b"all"})
    s.ask_join("a", protocols=BOTH)
    s.hear("a joined", "a")
    s.hear("b joined", "b")
    protocol = s.recording["a joined"]["protocol"]
    assert isinstance(protocol, str)
    s.ask_sync("b", protocol=protocol)
    s.heartbeat("b's heartbeat while it waits", "c", member="b", generation=s.generations["b"])
    s.sync("a synced", "a", {"a": b"half", "b": b"other half"}, protocol=protocol)
    s.hear("b synced", "b")
    s.describe_members("both")
    s.join("the follower joins as it was", "b", protocols=TURNED)
    s.sync("and syncs", "b", protocol=protocol)
    s.join("somebody who speaks something else", "c", protocols={"sticky": b""})
    s.join("somebody who speaks nothing", "d", protocols=())
    s.join("somebody of another type", "e", protocol_type="connect", protocols=BOTH)
    s.ask_join("b", protocols={"range": OTHER})
    s.ask_join("a", protocols=BOTH)
    s.hear("a, when b changed", "a")
    s.hear("b, when b changed", "b")
    s.describe_members("the protocol that is left")
    s.sync("a knows the wrong protocol", "a", {}, protocol="roundrobin")
    s.sync("a knows the wrong type", "a", {}, protocol_type="connect")
    s.sync("a syncs", "a", {"a": b"1", "b": b"2"})
    s.sync("b syncs", "b")
    s.leave_group("b leaves", "b")
    s.heartbeat("a must join", "a")
    s.join("a joins alone", "a", protocols=BOTH)
    s.sync("a has all", "a", {"a": b"all again"})
    s.leave_group("a leaves", "a")
    s.describe_members("nobody")


@classic_scenario()
def joining_while_others_sync(s: ClassicScript) -> None:
    s.enter("a", "a")
    s.hear("a leads", "a")
    s.enter("b", "b")
    s.heartbeat("a must join", "a")
    s.sync("a syncs too late", "a", {"a": b"all"})
    s.ask_join("a")
    s.hear("a joined", "a")
    s.hear("b joined", "b")
    s.ask_sync("b")
    s.enter("c", "c")
    s.hear("b is told while it waits for its assignment", "b")
    s.sync("the leader's sync comes too late", "a", {"a": b"1", "b": b"2"})
    s.ask_join("b")
    s.ask_join("a")
    s.generation("three", "a", "b", "c")
    s.describe_members("all three")
    s.leave_group("two leave at once", "a", ("a", None), ("c", None), ("nobody", None))
    s.heartbeat("b must join", "b")
    s.join("b joins", "b")
    s.sync("b has all", "b", {"b": b"all"})


@classic_scenario()
def too_many_members(s: ClassicScript) -> None:
    """`group.max.size` is five."""
    names = ["a", "b", "c", "d", "e"]
    s.enter("a", "a")
    s.hear("a leads", "a")
    for number, name in enumerate(names[1:], start=1):
        s.enter(name, name)
        for other in names[:number]:
            if other != name:
                s.ask_join(other)
        s.generation(f"generation {number + 1}", "a", *names[1 : number + 1])
    s.join("one too many", "f")
    s.join("one too many, of an old version", "g", version=3)
    s.join("one too many, static", "h", instance="h")
    s.join("one too many, with some id", "i", member="i-1")
    s.describe_members("five")
    s.join("a member may join again", "b")


@classic_scenario()
def silent_members(s: ClassicScript) -> None:
    s.enter("a", "a", session_ms=1_000)
    s.hear("a leads", "a")
    s.sync("a is alone", "a", {"a": b"all"})
    wait_until(lambda: s.described()["state"] == "Empty", "a is gone")
    s.describe_members("empty")
    s.heartbeat("a comes too late", "a")
    s.enter("b", "b")
    s.hear("b leads", "b")
    s.sync("b is alone", "b", {"b": b"all"})
    s.join("c is given an id", "c", session_ms=1_000)
    s.pause_ms(1_500)
    s.join("c comes too late", "c", session_ms=1_000)
    s.enter("d", "d", rebalance_ms=1_000)
    s.heartbeat("b must join, and does not", "b")
    s.leave_group("b leaves instead", "b")
    s.hear("d is alone then", "d")
    s.sync("d syncs", "d", {"d": b"d"})
    s.ask_join("d", rebalance_ms=1_000, protocols={"range": OTHER})
    s.hear("d leads", "d")
    s.sync("d syncs again", "d", {"d": b"d"})
    s.enter("e", "e", rebalance_ms=1_000)
    s.hear("d did not join in time", "e")
    s.describe_members("e alone")
    wait_until(lambda: s.described()["state"] == "Empty", "e did not sync in time")
    s.heartbeat("e comes too late", "e")
    s.describe_members("nobody")


@classic_scenario()
def a_silent_leader(s: ClassicScript) -> None:
    s.enter("a", "a", rebalance_ms=1_500)
    s.hear("a leads", "a")
    s.enter("b", "b", rebalance_ms=1_500)
    s.ask_join("a", rebalance_ms=1_500)
    s.hear("a joined", "a")
    s.hear("b joined", "b")
    s.ask_sync("b")
    s.hear("the leader did not sync in time", "b")
    s.heartbeat("the leader is gone", "a")
    s.join("b leads", "b", rebalance_ms=1_500)
    s.sync("b has all", "b", {"b": b"all"})


@classic_scenario()
def other_kinds_of_members(s: ClassicScript) -> None:
    """Kafka Connect, or anybody's own protocol."""
    s.enter("a", "a", protocol_type="connect", protocols={"compatible": b"\x00\xff"})
    s.hear("a leads", "a")
    s.sync("a has work", "a", {"a": b"\x01\x02"}, protocol_type="connect", protocol="compatible")
    s.describe_members("workers")
    s.list_groups("listed")
    s.join("a consumer", "b")
    s.leave_group("leaves", "a")
    s.enter("c", "c", protocols={"range": subscription("in")})
    s.hear("a consumer takes the empty group", "c")
    s.sync("c has all", "c", {"c": b"all"})
    s.describe_members("consumers")


@classic_scenario()
def large_metadata(s: ClassicScript) -> None:
    large = bytes(range(256)) * 2_000
    bytes_of = {"protocol_type": "bytes", "protocol": "range"}
    s.enter("a", "a", protocols={"range": large}, protocol_type="bytes")
    s.hear("a leads", "a")
    s.sync("half a megabyte each way", "a", {"a": large}, **bytes_of)
    s.join("joins again", "a", protocols={"range": large}, protocol_type="bytes")
    s.sync("a megabyte and a half", "a", {"a": large * 2}, **bytes_of)
    s.describe_members("it did not fit")
    s.heartbeat("must join", "a")
    s.join("joins with less", "a", protocols={"range": b"less"}, protocol_type="bytes")
    s.sync("with less", "a", {"a": b"less"}, **bytes_of)
    s.describe_members("it fits")
