"""Classic members in a consumer group that are silent, do not join again, or do not ask for their assignment."""

from __future__ import annotations

from tests.interop.consumer_script import MINE
from tests.interop.mixed_script import MixedScript, migration_scenario

ALL = range(4)


@migration_scenario()
def session_of_a_classic_member_ends(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, session_ms=1_000)
    s.consumer_joins("a joins", "a", "in")
    s.members_become("p is gone", 1)
    s.beat("a has all", "a", owned=MINE)


@migration_scenario()
def member_does_not_join_again(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, rebalance_ms=1_000)
    s.consumer_joins("a joins", "a", "in")
    s.heartbeat("p must join again", "p")
    s.members_become("p is gone", 1)
    s.beat("a has all", "a", owned=MINE)


@migration_scenario()
def member_does_not_sync(s: MixedScript) -> None:
    s.alone("p", {"in": ALL})
    s.consumer_joins("a joins", "a", "in")
    s.join("p joins", "p", protocols=s.reads("in"), rebalance_ms=1_000)
    s.members_become("p is gone", 1)
    s.beat("a has all", "a", owned=MINE)


@migration_scenario()
def member_joins_and_syncs_in_time(s: MixedScript) -> None:
    s.alone("p", {"in": ALL}, rebalance_ms=1_000)
    s.consumer_joins("a joins", "a", "in")
    s.heartbeat("p must join again", "p")
    s.join("p joins", "p", protocols=s.reads("in"), rebalance_ms=1_000)
    s.sync("p syncs", "p")
    s.pause_ms(1_200)
    s.describe("p is still here")
    s.heartbeat("p lives", "p")
