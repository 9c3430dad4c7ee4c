"""Members come, share, go, are late."""

from __future__ import annotations

from typing import Any

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"in": 4})
def lone_member(s: ConsumerScript) -> None:
    s.describe("nobody knows the group")
    s.fetch("offsets of a group nobody knows", {"in": [0]})
    s.delete_group("delete a group nobody knows")
    s.join("joins", "a", "in")
    s.describe("joined")
    s.beat("beats", "a")
    s.beat("says what it has", "a", owned=MINE)
    s.beat("says everything", "a", owned=MINE, names=(s.name("in"),), rebalance_timeout_ms=60_000)
    s.list_groups("listed")
    s.list_groups("listed as stable", "Stable")
    s.list_groups("listed as stable in small letters", "stable")
    s.list_groups("not listed as empty", "Empty")
    s.list_groups("listed as consumer", types=["consumer"])
    s.list_groups("listed as Consumer", types=["Consumer"])
    s.list_groups("not listed as streams", types=["streams"])
    s.list_groups("not listed as classic", types=["classic"])
    s.describe_classic("described as classic", 5)
    s.describe_classic("described as classic, newer", 6)
    s.delete_group("delete with a member")
    s.leave("leaves", "a")
    s.describe("empty")
    s.list_groups("listed as empty", "Empty")
    s.leave("leaves again", "a")
    s.beat("beats after leaving", "a", epoch=2)
    s.join("comes back", "a", "in")
    s.describe("back")
    s.leave("leaves for good", "a")
    s.delete_group("delete the empty group")
    s.describe("gone")
    s.list_groups("gone from the list")
    s.join("a new group of the same name", "a", "in")


@scenario({"in": 4})
def two_members(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.describe("b waits")
    s.list_groups("reconciling", "Reconciling")
    s.beat("a is told to revoke", "a")
    s.describe("a revokes")
    s.beat("a says nothing", "a")
    s.beat("b still waits", "b")
    s.beat("a still has them all", "a", owned={"in": (0, 1, 2, 3)})
    s.beat("a acknowledges", "a", owned=MINE)
    s.describe("released")
    s.beat("b gets its partitions", "b")
    s.describe("settled")
    s.beat("a is steady", "a")
    s.beat("b is steady", "b", owned=MINE)
    s.leave("a leaves", "a")
    s.describe("a is gone")
    s.beat("b takes all", "b")
    s.describe("b alone")


@scenario({"in": 7, "more": 2})
def three_members(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.beat("a revokes for b", "a")
    s.join("c joins meanwhile", "c", "in")
    s.describe("three, nobody settled")
    s.beat("a acknowledges, and has to revoke more or not", "a", owned=MINE)
    s.beat("b", "b")
    s.beat("c", "c")
    s.beat("a again", "a", owned=MINE)
    s.beat("b again", "b", owned=MINE)
    s.beat("c again", "c", owned=MINE)
    s.describe("settled")
    s.leave("b leaves", "b")
    s.beat("c takes", "c")
    s.beat("a takes", "a")
    s.describe("two are left")
    s.leave("c leaves", "c")
    s.leave("a leaves", "a")
    s.describe("empty")


@scenario({"in": 6})
def revocation_that_changes_its_mind(s: ConsumerScript) -> None:
    """b leaves while a revokes for it."""
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.beat("a is told to revoke", "a")
    s.leave("b leaves", "b")
    s.beat("a has not revoked yet", "a", owned={"in": (0, 1, 2, 3, 4, 5)})
    s.beat("a has revoked", "a", owned=MINE)
    s.describe("a has all again")


@scenario({"in": 4})
def a_member_joins_again(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.join("a joins again, owning nothing", "a", "in")
    s.describe("a had them all")
    s.beat("b takes", "b")
    s.join("b joins again", "b", "in")
    s.beat("a beats", "a")
    s.describe("settled")


@scenario({"in": 2})
def more_members_than_partitions(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")
    s.beat("a revokes", "a")
    s.beat("a acknowledges", "a", owned=MINE)
    s.beat("b takes", "b")
    s.join("c joins", "c", "in")
    s.beat("a", "a")
    s.beat("b", "b")
    s.describe("c has nothing")


@scenario({"in": 4}, session_timeout_ms=1_000, heartbeat_interval_ms=500)
def session_timeout(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins", "b", "in")

    def is_alone(seen: dict[str, Any]) -> bool:
        s.beat_quietly("b")
        return bool(seen["members"] == ["b"] and seen["state"] == "Stable")

    s.describe_until("a is fenced", is_alone)
    s.beat("a beats in vain", "a", epoch=2)
    s.beat_until("b has all", "b", lambda answer: s.count("b") == 4)
    s.describe("b alone")


@scenario({"in": 4})
def rebalance_timeout(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", rebalance_timeout_ms=1_000)
    s.join("b joins", "b", "in")
    s.beat("a is told to revoke", "a")
    s.describe_until("a is fenced", lambda seen: seen["members"] == ["b"])
    s.beat_until("b has all", "b", lambda answer: s.count("b") == 4)
    s.beat("a comes too late", "a", owned=MINE)


@scenario({"in": 4}, assignment_interval_ms=15_000)
def assignment_interval(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in")
    s.join("b joins within the interval", "b", "in")
    s.describe("b has no target yet")
    s.beat("a keeps all", "a")
    s.beat("b waits", "b")
    s.leave("b leaves", "b")
    s.describe("assigning")
    s.list_groups("listed as assigning", "Assigning")
    s.beat("a is not concerned", "a")


@scenario({"in": 4})
def what_a_member_says_anew(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", rack_id="r1")
    s.describe("with a rack")
    s.beat("another rack", "a", rack_id="r2")
    s.describe("no new epoch")
    s.beat("another timeout", "a", rebalance_timeout_ms=30_000)
    s.beat("an assignor", "a", server_assignor="range")
    s.describe("range now")
    s.beat("the other", "a", server_assignor="uniform")
    s.describe("uniform again")


@scenario({"in": 7, "other": 7})
def range_assignor(s: ConsumerScript) -> None:
    for number, member in enumerate("abc"):
        s.join(f"{member} joins", member, "in", "other", server_assignor="range")
        for other in "abc"[:number]:
            s.beat(f"{other} revokes for {member}", other)
            s.beat(f"{other} acknowledges for {member}", other, owned=MINE)
        s.beat(f"{member} takes", member)
        s.describe(f"with {member}")
    for other in "abc":
        s.beat(f"{other} at the end", other, owned=MINE)
    s.describe("ranges")
    s.leave("b leaves", "b")
    for round_ in range(2):
        for other in "ac":
            s.beat(f"{other} moves, {round_}", other, owned=MINE)
    s.describe("ranges of two")


@scenario({"in": 6})
def majority_of_assignors(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", server_assignor="range")
    s.describe("one for range")
    s.join("b joins", "b", "in")
    s.describe("one for range, one says nothing")
    s.join("c joins", "c", "in", server_assignor="uniform")
    s.join("d joins", "d", "in", server_assignor="uniform")
    s.describe("two for uniform")
    s.leave("d leaves", "d")
    s.leave("c leaves", "c")
    s.describe("one for range again")
    s.leave("a leaves", "a")
    s.describe("nobody says anything")


@scenario({"in": 2})
def a_full_group(s: ConsumerScript) -> None:
    """Five may be in it."""
    for member in "abcde":
        s.join(f"{member} joins", member, "in")
    s.join("f is one too many", "f", "in")
    s.join("a joins again", "a", "in")
    s.beat("a stranger", "x", epoch=3)
    s.leave("e leaves", "e")
    s.join("f joins now", "f", "in")
