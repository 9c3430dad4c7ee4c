"""The triggers of a rebalance are told apart in the coordinator's events, and so in its log."""

from __future__ import annotations

from typing import Any

from tests.coordinator.classic_context import ClassicContext
from tests.coordinator.consumer.consumer_histories import World
from tests.coordinator.coordinator_context import CoordinatorContext, Outcome

from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard


class _Watched(ClassicContext):
    """Keeps the reasons of rebalances."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        super().__init__()

    def _heard(self, outcome: Any) -> None:
        super()._heard(outcome)
        self.reasons += [dict(event.details)["reason"] for event in outcome.events if event.name == "RebalanceBegan"]

    def began(self) -> str:
        (reason,) = self.reasons
        self.reasons.clear()
        return reason


def test_a_classic_group_names_what_began_a_rebalance() -> None:
    ctx = _Watched()
    leader, follower = ctx.stable(2)
    ctx.reasons.clear()

    def settle() -> None:
        for each in (leader, follower):
            ctx.sync(each, ctx.membership.generation, {leader: b""} if each == leader else None)
        assert ctx.state == "Stable"

    newcomer = ctx.admitted()
    ctx.join(newcomer)
    assert ctx.began().startswith(f"member {newcomer} joins; ")
    ctx.join(leader)
    ctx.join(follower)
    assert ctx.leave(newcomer) == "none"
    assert ctx.began() == f"members left: {newcomer}"
    ctx.join(leader)
    ctx.join(follower)
    settle()
    ctx.join(follower, protocols=(("range", b"other topics"),))
    assert ctx.began().startswith(f"member {follower} joins again, its metadata changed; ")
    ctx.join(leader)
    settle()
    ctx.join(leader)  # the leader saw new partitions: its reason is in the request
    assert ctx.began().startswith(f"member {leader} joins again, it is the leader; client reason: ")
    ctx.join(follower, protocols=(("range", b"other topics"),))
    settle()
    for _ in range(3):
        ctx.sleep(4_000)
        ctx.heartbeat(leader, ctx.membership.generation)
    assert ctx.began() == f"the session of member {follower} timed out"


def test_a_streams_group_names_what_began_a_new_epoch() -> None:
    ctx = _WatchedStreams(settings={"group.streams.session.timeout.ms": 45_000})
    ctx.join("m1")
    assert ctx.bumped()[0].startswith("a member joined")
    second = ctx.join("m2")
    assert ctx.bumped() == ["a member joined"]
    ctx.heartbeat("m2", second.epoch, rack_id="elsewhere")
    assert ctx.bumped() == ["a member changed"]
    ctx.set_topics({"in": 6})
    assert ctx.bumped() == ["topics or their partition counts changed"]
    ctx.set_topics({})
    assert ctx.bumped() == ["topics or their partition counts changed, the topology became ready or not ready"]
    ctx.set_topics({"in": 4})
    ctx.bumped()
    ctx.set_group_settings({"streams.num.standby.replicas": "1"})
    assert ctx.bumped() == ["assignment settings changed"]
    ctx.leave("m1")
    assert ctx.bumped() == ["a member left"]
    ctx.sleep(60_000)
    assert ctx.bumped() == ["the member session expired"]


class _WatchedStreams(CoordinatorContext):
    """Keeps the reasons of new group epochs."""

    reasons: list[str]

    def __post_init__(self) -> None:
        self.reasons = []
        super().__post_init__()

    def apply(self, result: CoordinatorResult) -> Outcome:
        self.reasons += [dict(event.details)["reason"] for event in result.events if event.name == "GroupEpochBumped"]
        return super().apply(result)

    def bumped(self) -> list[str]:
        found, self.reasons = self.reasons, []
        return found


class _WatchedConsumers(World):
    """Keeps the reasons of new group epochs."""

    def apply(self, result: CoordinatorResult, shard: GroupCoordinatorShard | None = None) -> CoordinatorResult:
        self.reasons = getattr(self, "reasons", [])
        self.reasons += [dict(event.details)["reason"] for event in result.events if event.name == "GroupEpochBumped"]
        return super().apply(result, shard)

    def bumped(self) -> list[str]:
        found, self.reasons = self.reasons, []
        return found


def test_a_consumer_group_names_what_began_a_new_epoch() -> None:
    world = _WatchedConsumers(settings={})
    for name in ("in", "other"):
        world.create(name, 4)
    world.bumped()
    join: dict[str, Any] = {"owned": set(), "timeout_ms": 5_000}
    world.beat("a", 0, subscribed_topic_names=("in",), **join)
    assert world.bumped() == ["a member joined"]
    epoch = world.beat("a", 2, subscribed_topic_names=("in", "other")).member_epoch
    assert world.bumped() == ["a member or its subscription changed"]
    world.create("in", 6)
    world.beat("a", epoch)
    assert world.bumped() == ["topics or their partition counts changed"]
    world.beat("b", 0, subscribed_topic_names=("in",), **join)
    assert world.bumped() == ["a member joined"]
    world.beat("b", -1)
    assert world.bumped() == ["a member left"]
    world.sleep(6_000)  # its old partitions were to be given back
    assert world.bumped() == ["the rebalance timeout expired"]
    world.beat("a", 0, subscribed_topic_names=("in",), **join)
    assert world.bumped() == ["a member joined"]
    world.sleep(10_000)
    assert world.bumped() == ["the member session expired"]
