"""Positions of consumer groups: who may commit and fetch, with which epoch."""

from __future__ import annotations

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"in": 4, "other": 1})
def positions(s: ConsumerScript) -> None:
    s.commit("without a group, as a member", "a", {("in", 0): 1}, epoch=2)
    s.join("a joins", "a", "in")
    s.commit("a commits", "a", {("in", 0): 10, ("in", 1): 11}, metadata="hello")
    s.commit("an older version", "a", {("in", 0): 1}, version=8)
    s.commit("the epoch before", "a", {("in", 0): 2}, epoch=1)
    s.commit("an epoch ahead", "a", {("in", 0): 3}, epoch=5)
    s.commit("no epoch", "a", {("in", 0): 4}, epoch=-1)
    s.commit("nobody", "", {("in", 0): 5}, epoch=-1)
    s.commit("somebody else", "x", {("in", 0): 6}, epoch=2)
    s.commit("another topic", "a", {("other", 0): 7})
    s.commit("a topic that is not there", "a", {("nowhere", 0): 8})
    s.commit("too much metadata", "a", {("in", 2): 9}, metadata="m" * 5_000)
    s.fetch("as anybody", {"in": [0, 1, 2], "other": [0]})
    s.fetch("all as anybody", None)
    s.fetch("as a", {"in": [0]}, member="a", epoch=2)
    s.fetch("as a, behind", {"in": [0]}, member="a", epoch=1)
    s.fetch("as a, ahead", {"in": [0]}, member="a", epoch=9)
    s.fetch("as a, no epoch", {"in": [0]}, member="a")
    s.fetch("as a stranger", {"in": [0]}, member="x", epoch=2)
    s.delete_offsets("read topics stay", {"in": [0], "other": [0]})
    s.fetch("what is left", {"in": [0], "other": [0]})
    s.leave("a leaves", "a")
    s.commit("nobody, empty group", "", {("in", 3): 12}, epoch=-1)
    s.commit("a member that is gone", "a", {("in", 3): 13}, epoch=2)
    s.delete_offsets("nobody reads it", {"in": [0]})
    s.fetch("at the end", None)
    s.delete_group("deleted")
    s.fetch("nothing", None)


@scenario({"in": 4})
def late_positions(s: ConsumerScript) -> None:
    """An old epoch may commit what was assigned in it."""
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.beat("a revokes", "a")
    s.commit("a, what it has to give up", "a", {("in", 3): 1})
    s.beat("a acknowledges", "a", owned=MINE)
    s.commit("a, with the epoch before", "a", {("in", 0): 2}, epoch=2)
    s.commit("a, what it gave up, with the epoch before", "a", {("in", 3): 3}, epoch=2)
    s.commit("a, both, with the epoch before", "a", {("in", 0): 4, ("in", 3): 4}, epoch=2)
    s.commit("a, what it gave up, with the epoch now", "a", {("in", 3): 5})
    s.beat("b takes", "b")
    s.commit("b", "b", {("in", 3): 6})
    s.commit("b, with an epoch before it had it", "b", {("in", 3): 7}, epoch=2)
    s.fetch("at the end", None)
