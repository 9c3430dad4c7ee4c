"""The last consumer goes, or is replaced: what is left is a classic group."""

from __future__ import annotations

from tests.interop.consumer_script import MINE
from tests.interop.mixed_script import MixedScript, migration_scenario

ALL = range(4)


def mixed(s: MixedScript, partitions: range = ALL, **fields: object) -> None:
    """p speaks the classic protocol, a the consumer protocol; each has half of the partitions."""
    s.alone("p", {"in": partitions})
    s.consumer_joins("a joins", "a", "in", **fields)
    s.heartbeat("p must join again", "p")
    s.again("p", "p", "in")
    s.beat("a takes", "a", owned=MINE, **({"instance_id": fields["instance_id"]} if fields else {}))


def classic_again(s: MixedScript) -> None:
    """p is alone in a classic group that rebalances."""
    s.heartbeat("p is to join", "p")
    s.sync("p cannot sync", "p")
    s.join("p leads", "p", protocols=s.reads("in"))
    s.sync("p assigns", "p", {"p": s.assigns({"in": ALL})})
    s.heartbeat("p lives", "p")
    s.describe_members("stable")


@migration_scenario()
def last_consumer_leaves(s: MixedScript) -> None:
    mixed(s)
    s.commit("p commits", "p", {("in", 0): 7})
    s.leave("a leaves", "a")
    s.describe("no consumer group")
    s.describe_members("a classic group")
    s.list_groups("listed")
    s.commit("p commits before it joins", "p", {("in", 0): 8})
    s.beat("a beats", "a")
    classic_again(s)
    s.fetch("offsets stay", {"in": (0, 1)})


@migration_scenario(session_timeout_ms=1_000, heartbeat_interval_ms=500)
def last_consumers_session_ends(s: MixedScript) -> None:
    mixed(s)
    s.classic_state_becomes("a classic group", "PreparingRebalance")
    classic_again(s)


@migration_scenario()
def operator_removes_the_last_consumer(s: MixedScript) -> None:
    mixed(s, instance_id="one")
    s.leave_group("a is removed", "p", ("", "one"))
    s.describe_members("a classic group")
    classic_again(s)


@migration_scenario({"in": 6})  # divisible by three: of four, Kafka gives the extra one in the order of a hash map
def all_but_one_leave_together(s: MixedScript) -> None:
    mixed(s, range(6))
    s.join("q is given an id", "q", protocols=s.reads("in"))
    s.join("q joins", "q", protocols=s.reads("in"))
    s.sync("q has nothing yet", "q")
    s.leave_group("they leave", "p", ("a", None), ("q", None), ("q", None), ("nobody", None))
    s.describe_members("p is alone")
    classic_again(s)


@migration_scenario()
def consumer_leaves_while_others_stay(s: MixedScript) -> None:
    mixed(s)
    s.consumer_joins("b joins", "b", "other")
    s.leave("a leaves", "a")
    s.describe("still a consumer group")
    s.leave_group("p leaves", "p")
    s.describe("b is alone")
    s.leave("b leaves", "b")
    s.describe("empty, and no classic group")


@migration_scenario()
def static_consumer_comes_as_classic_member(s: MixedScript) -> None:
    mixed(s, instance_id="one")
    s.join("it comes with an id of its own", "x", member="x", instance="one", protocols=s.reads("in"))
    s.join("it comes", "q", instance="one", protocols=s.reads("in"))
    s.describe_members("classic, stable")
    s.sync("q has a's partitions", "q", instance="one")
    s.heartbeat("q lives", "q", instance="one")
    s.heartbeat("p lives", "p")
    s.beat("a beats", "a", instance_id="one")
    s.describe("no consumer group")


@migration_scenario({"in": 4, "other": 2})
def static_consumer_comes_and_reads_another(s: MixedScript) -> None:
    mixed(s, instance_id="one")
    s.join("it comes", "q", instance="one", protocols=s.reads("other"))
    s.describe_members("classic, rebalances")
    s.sync("q cannot sync", "q", instance="one")
    s.heartbeat("p is to join", "p")


@migration_scenario()
def away_static_consumer_comes_as_classic_member(s: MixedScript) -> None:
    mixed(s, instance_id="one")
    s.leave("a goes for a while", "a", epoch=-2, instance_id="one")
    s.describe("a is away")
    s.join("it comes", "q", instance="one", protocols=s.reads("in"))
    s.describe_members("classic")
    s.sync("q syncs", "q", instance="one")


@migration_scenario()
def lone_static_consumer_comes_as_classic_member(s: MixedScript) -> None:
    s.consumer_joins("a joins", "a", "in", instance_id="one")
    s.join("it comes", "q", instance="one", protocols=s.reads("in"))
    s.describe_members("classic, stable")
    s.sync("q has all", "q", instance="one")
    s.consumer_joins("and back", "b", "in", instance_id="one")
    s.describe("a consumer group")
    s.beat("b lives", "b", instance_id="one", owned=MINE)


@migration_scenario()
def static_consumer_with_a_regex_comes_as_classic_member(s: MixedScript) -> None:
    s.consumer_joins("a joins", "a", regex=s.regex("in"), instance_id="one")
    s.beat_until("a has all", "a", lambda answer: s.count("a") == 4, instance_id="one")
    s.join("it comes", "q", instance="one", protocols=s.reads("in"))
    s.describe_members("classic")


@migration_scenario()
def there_and_back_and_there(s: MixedScript) -> None:
    mixed(s)
    s.leave("a leaves", "a")
    s.join("p leads", "p", protocols=s.reads("in"))
    s.sync("p assigns", "p", {"p": s.assigns({"in": ALL})})
    s.consumer_joins("b joins", "b", "in")
    s.describe("a consumer group again")
    s.again("p once more", "p", "in")
    s.beat("b takes", "b", owned=MINE)
    s.leave_group("p leaves", "p")
    s.beat("b has all", "b", owned=MINE)
    s.describe("consumers only")
