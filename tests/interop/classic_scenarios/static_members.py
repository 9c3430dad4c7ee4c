"""Static members: replacement, fencing, leaving in a batch (KIP-345)."""

from __future__ import annotations

from tests.harness.polling import wait_until
from tests.interop.classic_scenarios.scenario import classic_scenario
from tests.interop.classic_script import ClassicScript, subscription


@classic_scenario()
def restarts_without_rebalance(s: ClassicScript) -> None:
    s.join("a joins at once", "a", instance="one")
    s.sync("a syncs", "a", {"a": b"all"}, instance="one")
    s.ask_join("b", instance="two")
    s.heartbeat("a must join", "a", instance="one")
    s.ask_join("a", instance="one")
    s.generation("both", "a", "b")
    s.describe_members("both are here")
    s.join("the follower comes back", "b2", instance="two")
    s.describe_members("its place is kept")
    s.sync("and has its assignment", "b2", instance="two")
    s.heartbeat("nobody has to join", "a", instance="one")
    s.heartbeat("it beats", "b2", instance="two")
    s.heartbeat("the old one is fenced", "b", instance="two")
    s.heartbeat("the old one without its instance is unknown", "b")
    s.sync("the old one's sync is fenced", "b", instance="two")
    s.join("the old one's join is fenced", "b", instance="two")
    s.leave_group("the old one's leaving is fenced", "b", ("b", "two"))
    s.join("the leader comes back", "a2", instance="one")
    s.sync("it has its assignment", "a2", instance="one")
    s.heartbeat("still nobody has to join", "b2", instance="two")
    s.join("the leader comes back with an older version", "a3", instance="one", version=8)
    s.sync("it acts as a follower", "a3", instance="one")
    s.heartbeat("and nobody has to join", "b2", instance="two")
    s.join("the follower comes back with an older version", "b3", instance="two", version=5)
    s.describe_members("the same generation")


@classic_scenario()
def a_static_member_reads_more(s: ClassicScript) -> None:
    s.join("a joins at once", "a", instance="one", protocols={"range": subscription("in")})
    s.sync("a syncs", "a", {"a": b"all"}, instance="one")
    s.join("a comes back and reads more", "a2", instance="one", protocols={"range": subscription("in", "more")})


@classic_scenario()
def restarts_with_rebalance(s: ClassicScript) -> None:
    both = (("range", subscription("in")), ("roundrobin", subscription("in")))
    s.join("a joins", "a", instance="one", protocols=both)
    s.join("a comes back while it completes", "a2", instance="one", protocols=both)
    s.sync("the old a is fenced", "a", {"a": b"all"}, instance="one")
    s.sync("the new a syncs", "a2", {"a2": b"all"}, instance="one")
    s.join("it comes back with another favourite", "a3", instance="one", protocols=both[::-1])
    s.describe_members("a rebalance")
    s.sync("syncs", "a3", {"a3": b"all"}, instance="one", protocol="roundrobin")
    s.join("it comes back with another type", "a4", instance="one", protocol_type="connect", protocols=both)
    s.join("it comes back without a common protocol", "a4", instance="one", protocols={"sticky": b""})
    s.describe_members("it is as it was")


@classic_scenario()
def doubles(s: ClassicScript) -> None:
    """Two with one instance id, both waiting."""
    s.join("a joins", "a", instance="one")
    s.sync("a syncs", "a", {"a": b"all"}, instance="one")
    s.ask_join("b", instance="two")
    wait_until(lambda: s.described()["state"] == "PreparingRebalance", "b waits")
    s.ask_join("b2", instance="two")
    s.hear("the first b is fenced while it joins", "b")
    s.ask_join("a", instance="one")
    s.hear("a joined", "a")
    s.hear("the second b joined", "b2")
    s.ask_sync("b2", instance="two")
    s.heartbeat("time for b's sync to arrive", "c", member="a", generation=s.generations["a"])
    s.ask_join("b3", instance="two")
    s.hear("the second b is fenced while it syncs", "b2")
    s.ask_join("a", instance="one")
    s.hear("a joined again", "a")
    s.hear("the third b joined", "b3")
    s.describe_members("one of them")


@classic_scenario()
def leaving_in_a_batch(s: ClassicScript) -> None:
    s.join("a joins", "a", instance="one")
    s.sync("a syncs", "a", {"a": b"all"}, instance="one")
    s.ask_join("b", instance="two")
    s.enter("c", "c")
    s.ask_join("a", instance="one")
    s.generation("three", "a", "b", "c")
    s.join("an id is given", "d")
    s.leave_group(
        "some of them leave",
        "a",
        ("", "two"),
        ("c", None),
        ("", "three"),
        ("a", "two"),
        ("b", "one"),
        ("x", None),
        ("d", None),
        ("c", None),
        ("", None),
    )
    s.describe_members("a is left")
    s.join("a joins again", "a", instance="one")
    s.sync("a has all", "a", {"a": b"all"}, instance="one")
    s.leave_group("an operator removes a", "x", ("", "one"))
    s.describe_members("nobody is left")
    s.heartbeat("a is unknown", "a", instance="one")


@classic_scenario()
def static_members_that_stay_away(s: ClassicScript) -> None:
    """They keep their place while others join; their session ends it."""
    s.join("a joins", "a", instance="one", rebalance_ms=1_000, session_ms=6_000)
    s.sync("a syncs", "a", {"a": b"all"}, instance="one")
    s.enter("b", "b", rebalance_ms=1_000)
    s.hear("b joined without a", "b")
    s.describe_members("both")
    s.sync("b has all", "b", {"a": b"", "b": b"all"})
    wait_until(lambda: s.heartbeat(f"b beats {s.requests}", "b") == "REBALANCE_IN_PROGRESS", "a did not sync")
    s.recording = {step: seen for step, seen in s.recording.items() if not step.startswith("b beats")}
    s.join("b is alone", "b", rebalance_ms=1_000)
    s.describe_members("a is gone")
