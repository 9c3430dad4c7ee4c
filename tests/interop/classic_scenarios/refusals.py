"""Requests that are refused, of groups that are there and of groups that are not."""

from __future__ import annotations

from tests.interop.classic_scenarios.scenario import classic_scenario
from tests.interop.classic_script import ClassicScript


@classic_scenario()
def no_such_group(s: ClassicScript) -> None:
    s.join("with an id", "a", member="a-1")
    s.join("with an id and an instance", "b", member="b-1", instance="b")
    s.sync("sync", "c", member="c-1", generation=1)
    s.heartbeat("heartbeat", "d", member="d-1", generation=1)
    s.leave_group("leave", "e", ("e-1", None))
    s.leave_group("leave by instance", "f", ("", "f"))
    s.leave_group("leave of nobody", "g", ("", None))
    s.commit("commit", "h", {("in", 0): 1}, epoch=1, version=8)
    s.delete_group("delete")
    s.describe_members("described")
    s.describe_members("described, older", 5)
    s.list_groups("listed")


@classic_scenario()
def no_group_id(s: ClassicScript) -> None:
    s.join("join", "a", group="")
    s.join("join with an id", "b", group="", member="b-1")
    s.sync("sync", "c", group="", member="c-1")
    s.heartbeat("heartbeat", "d", group="", member="d-1")
    s.leave_group("leave", "e", ("e-1", None), group="")
    s.leave_group("leave, older", "f", ("e-1", None), group="", version=2)


@classic_scenario()
def times_and_protocols(s: ClassicScript) -> None:
    s.join("too short a session", "a", session_ms=999)
    s.join("too short a session, with an id", "a", session_ms=999, member="a-1")
    s.join("too long a session", "b", session_ms=1_800_001)
    s.join("no session", "c", session_ms=0)
    s.join("a negative session", "d", session_ms=-1)
    s.join("no protocols", "e", protocols=())
    s.join("no type", "f", protocol_type="")
    s.join("no type and no protocols", "g", protocol_type="", protocols=())
    s.describe_when_there("there is a group now")
    s.join("a protocol without a name", "h", protocols={"": b""})
    s.join("the longest session", "i", session_ms=1_800_000)


@classic_scenario()
def wrong_ids_and_generations(s: ClassicScript) -> None:
    s.enter("a", "a")
    s.hear("a leads", "a")
    s.sync("no such member", "x", member="x", generation=1)
    s.sync("an older generation", "a", {"a": b""}, generation=0)
    s.sync("a newer generation", "a", {"a": b""}, generation=2)
    s.sync("generation -1", "a", {"a": b""}, generation=-1)
    s.sync("an instance that is not there", "a", {"a": b""}, instance="a")
    s.sync("without type and name", "a", {"a": b""}, protocol_type=None, protocol=None)
    s.sync("without a name", "a", {"a": b""}, protocol=None)
    s.sync("an older version may be without", "a", {"a": b"all"}, version=4)
    s.heartbeat("beats", "a")
    s.heartbeat("no such member beats", "x", member="x", generation=1)
    s.heartbeat("nobody beats", "x", member="", generation=1)
    s.heartbeat("an older generation beats", "a", generation=0)
    s.heartbeat("a newer generation beats", "a", generation=2)
    s.heartbeat("an instance that is not there beats", "a", instance="a")
    s.join("an unknown id joins", "x", member="x")
    s.join("an unknown id with an instance joins", "x", member="x", instance="x")
    s.join("a with an instance joins", "a", instance="a")
    s.leave_group("an unknown id leaves", "x", ("x", None))
    s.leave_group("a with an instance leaves", "a", ("a", "a"))
    s.leave_group("nobody leaves", "x", ("", None))
    s.leave_group("an empty list leaves", "x", ("x", None), ("x", None))
    s.describe_members("nothing of that mattered")
    s.join("an id is given", "b")
    s.heartbeat("it beats before it joins", "b", generation=1)
    s.sync("it syncs before it joins", "b", generation=1)
    s.leave_group("it leaves before it joins", "b")
    s.join("it joins after it left", "b")


@classic_scenario(**{"in": 1})
def a_streams_group(s: ClassicScript) -> None:
    """Its id, in requests of classic members; streams requests about classic groups."""
    super_join = s.source("in")
    s.group_of_streams("a streams member joins", "m", super_join)
    s.join("a classic member joins", "a")
    s.join("with an id", "b", member="b-1")
    s.sync("syncs", "b", member="b-1", generation=1)
    s.heartbeat("beats", "b", member="b-1", generation=1)
    s.leave_group("leaves", "b", ("b-1", None), ("", "i"))
    s.describe_members("described as a classic group")
    s.streams_member_leaves("the streams member leaves", "m")
    s.sync("syncs in the empty group", "b", member="b-1", generation=1)
    s.heartbeat("beats in the empty group", "b", member="b-1", generation=1)
    s.leave_group("leaves the empty group", "b", ("b-1", None))
    s.enter("a takes the empty group", "a")
    s.hear("a leads", "a")
    s.sync("a has all", "a", {"a": b"all"})
    s.describe_members("it is a classic group")
    s.list_groups("listed as one")
    s.group_of_streams("a streams member may not join", "n", super_join)
    s.leave_group("a leaves", "a")
    s.group_of_streams("a streams member takes it back", "n", super_join)
    s.describe_members("it is none")
