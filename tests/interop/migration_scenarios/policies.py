"""Scripts that go on whatever `group.consumer.migration.policy` allows; they are played under each of its values."""

from __future__ import annotations

from tests.interop.consumer_script import MINE
from tests.interop.mixed_script import MixedScript

__all__ = ["POLICY_SCRIPTS"]

ALL = range(4)


def consumer_comes_to_classic_members(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.describe("after a consumer came")
    s.describe_classic("as a classic group", 6)
    s.heartbeat("p beats", "p")
    s.leave("a leaves", "a")
    s.describe("after the consumer left")
    s.describe_classic("as a classic group, in the end", 6)
    s.heartbeat("p beats again", "p")


def classic_member_comes_to_consumers(s: MixedScript) -> None:
    s.consumer_joins("a joins", "a", "in", instance_id="one")
    s.join("p asks", "p", protocols=s.reads("in"), version=9)
    s.join("p joins", "p", member=None if "p" in s.ids else "p", protocols=s.reads("in"))
    s.sync("p syncs", "p")
    s.describe("mixed, or not")
    s.beat("a lets go", "a", instance_id="one", owned=MINE)
    s.heartbeat("p beats", "p")
    s.join("a comes back as a classic member", "q", instance="one", protocols=s.reads("in"))
    s.describe("all speak the classic protocol, or none")
    s.describe_classic("as a classic group", 6)
    s.heartbeat("p beats again", "p")
    s.heartbeat("q beats", "q", instance="one")


POLICY_SCRIPTS = (consumer_comes_to_classic_members, classic_member_comes_to_consumers)
