"""Offsets of classic groups: who may commit and delete them, and when."""

from __future__ import annotations

from tests.harness.polling import wait_until
from tests.interop.classic_scenarios.scenario import classic_scenario
from tests.interop.classic_script import ClassicScript, subscription

ONE = {("in", 0): 5}


@classic_scenario(**{"in": 2, "other": 1})
def commits(s: ClassicScript) -> None:
    protocols = {"range": subscription(s.name("in"))}
    s.commit("nobody makes a simple group", "", {("in", 0): 1, ("other", 0): 2}, epoch=-1)
    s.list_groups("a simple group")
    s.describe_members("a simple group, described")
    s.commit("a generation in a simple group", "x", ONE, epoch=3)
    s.join("an id in a simple group", "a", protocols=protocols)
    s.commit("nobody, while an id is given", "", ONE, epoch=-1)
    s.join("joins", "a", protocols=protocols)
    s.commit("while the assignment is awaited", "a", ONE)
    s.commit("nobody, while the assignment is awaited", "", ONE, epoch=-1)
    s.sync("syncs", "a", {"a": b"all"})
    for version in range(2, 10):
        s.commit(f"by the member, {version}", "a", ONE, version=version)
    s.commit("an older generation", "a", ONE, epoch=0)
    s.commit("a newer generation", "a", ONE, epoch=9)
    s.commit("generation -1 of the member", "a", ONE, epoch=-1)
    s.commit("another member", "x", ONE, epoch=1)
    s.commit("nobody", "", ONE, epoch=-1)
    s.commit("nobody, an older version", "", ONE, epoch=-1, version=5)
    s.commit("too much metadata", "a", ONE, metadata="x" * 4_097)
    s.commit("a topic that nobody reads", "a", {("other", 0): 9})
    s.fetch("fetched", {"in": [0, 1], "other": [0]})
    s.delete_offsets("of a topic that is read", {"in": [0], "other": [0]})
    s.delete_group("with members")
    s.enter("b", "b", protocols=protocols)
    wait_until(lambda: s.described()["state"] == "PreparingRebalance", "a rebalance")
    s.commit("by the old generation in a rebalance", "a", ONE)
    s.delete_offsets("in a rebalance", {"in": [0], "other": [0]})
    s.ask_join("a", protocols=protocols)
    s.hear("a joined", "a")
    s.hear("b joined", "b")
    s.commit("by the new generation before its assignment", "b", ONE)
    s.commit("by an older generation before its assignment", "b", ONE, epoch=1)
    s.leave_group("both leave", "a", ("a", None), ("b", None))
    s.commit("nobody, in the empty group", "", ONE, epoch=-1)
    s.commit("somebody, in the empty group", "x", ONE, epoch=-1)
    s.commit("a generation in the empty group", "a", ONE, epoch=2)
    s.delete_offsets("of the empty group", {"in": [0]})
    s.fetch("what is left", None)
    s.delete_group("the empty group")
    s.fetch("nothing", {"in": [0]})


@classic_scenario(**{"in": 1})
def commits_of_static_members(s: ClassicScript) -> None:
    s.join("a joins", "a", instance="one")
    s.sync("syncs", "a", {"a": b"all"}, instance="one")
    s.commit("by the member", "a", ONE, version=9)
    s.join("comes back", "a2", instance="one")
    s.commit("by the old one", "a", ONE, epoch=1)
    s.commit("by the new one", "a2", ONE, epoch=1)
    s.fetch("fetched", {"in": [0]})


@classic_scenario(**{"in": 1, "other": 1})
def offsets_of_unreadable_subscriptions(s: ClassicScript) -> None:
    """The coordinator then does not know what is read: everything may be."""
    s.enter("a", "a", protocols={"range": b"\x00"})
    s.hear("a leads", "a")
    s.sync("syncs", "a", {"a": b"all"})
    s.commit("commits", "a", {("in", 0): 1, ("other", 0): 2})
    s.delete_offsets("delete", {"in": [0], "other": [0]})
    s.leave_group("leaves", "a")
    s.delete_offsets("delete when empty", {"in": [0]})
    s.enter("w", "w", protocol_type="connect", protocols={"x": b""})
    s.hear("w leads", "w")
    s.delete_offsets("delete of workers' offsets", {"other": [0]})
