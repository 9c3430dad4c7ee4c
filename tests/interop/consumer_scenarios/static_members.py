"""Static members: away, back, replaced, doubled."""

from __future__ import annotations

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"in": 4})
def static_swap(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", instance_id="one")
    s.join("b joins", "b", "in", instance_id="two")
    s.beat("a revokes", "a", instance_id="one")
    s.beat("a acknowledges", "a", instance_id="one", owned=MINE)
    s.beat("b takes", "b", instance_id="two")
    s.describe("settled")
    s.join("a double", "c", "in", instance_id="one")
    s.leave("a goes for a while", "a", epoch=-2, instance_id="one")
    s.describe("a is away")
    s.beat("a beats while it is away", "a", instance_id="one")
    s.beat("b is not concerned", "b", instance_id="two")
    s.join("c takes its place", "c", "in", instance_id="one")
    s.describe("swapped, nothing moved")
    s.beat("a is fenced", "a", instance_id="one")
    s.leave("a cannot leave", "a", instance_id="one")
    s.leave("a cannot leave for a while", "a", epoch=-2, instance_id="one")
    s.beat("a without its instance id", "a")
    s.beat("c lives", "c", instance_id="one", owned=MINE)
    s.leave("c leaves for good", "c", instance_id="one")
    s.describe("c is gone")
    s.beat("b takes all", "b", instance_id="two")
    s.join("the instance comes back", "d", "in", instance_id="one")
    s.describe("as a new one")


@scenario({"in": 4, "other": 2})
def swap_with_another_subscription(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", instance_id="one")
    s.leave("a goes for a while", "a", epoch=-2, instance_id="one")
    s.join("b takes its place and reads another topic", "b", "other", instance_id="one")
    s.describe("reads the other")
    s.leave("b goes for a while", "b", epoch=-2, instance_id="one")
    s.join("c takes its place and reads both", "c", "in", "other", instance_id="one")
    s.describe("reads both")


@scenario({"in": 4})
def away_while_it_should_revoke(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", instance_id="one")
    s.join("b joins", "b", "in")
    s.beat("a is told to revoke", "a", instance_id="one")
    s.leave("a goes for a while", "a", epoch=-2, instance_id="one")
    s.describe("what it had to give up is free")
    s.beat("b takes", "b")
    s.join("c is back", "c", "in", instance_id="one")
    s.describe("settled")


@scenario({"in": 4}, session_timeout_ms=1_000, heartbeat_interval_ms=500)
def away_for_too_long(s: ConsumerScript) -> None:
    s.join("a joins", "a", "in", instance_id="one")
    s.leave("a goes for a while", "a", epoch=-2, instance_id="one")
    s.describe_until("and does not come back", lambda seen: seen["members"] == [])
    s.join("b begins anew", "b", "in", instance_id="one")


@scenario({"in": 4})
def static_and_dynamic(s: ConsumerScript) -> None:
    s.join("a joins, dynamic", "a", "in")
    s.join("a joins, static now", "a", "in", instance_id="one")
    s.describe("has an instance")
    s.beat("with it", "a", instance_id="one")
    s.beat("without it", "a")
    s.leave("leaves without it", "a")
    s.join("another one", "b", "in", instance_id="one")
