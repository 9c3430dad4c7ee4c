"""Who serves which partitions is told of every member with an endpoint, and made anew only where something changed."""

from __future__ import annotations

from typing import Any

from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext


def told(ctx: CoordinatorContext, member: str, epoch: int, **given: Any) -> dict[str, Any]:
    """By host; asked for whatever the member knew."""
    response = ctx.heartbeat(member, epoch, endpoint_information_epoch=-1, **given).response
    return {each.user_endpoint.host: each for each in response.partitions_by_user_endpoint}


def served(entry: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(  # type: ignore[return-value]
        {each.topic: each.partitions for each in partitions}
        for partitions in (entry.active_partitions, entry.standby_partitions)
    )


def two_members() -> CoordinatorContext:
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings={"group.streams.num.standby.replicas": 1})
    ctx.join("m1", topology=STATEFUL, endpoint=("one", 1))
    ctx.join("m2", topology=STATEFUL, endpoint=("two", 2))
    kept = ctx.heartbeat("m1", 2).active
    ctx.heartbeat("m1", 2, active=kept)
    ctx.heartbeat("m2", 3)
    ctx.heartbeat("m1", 3)
    return ctx


def test_active_and_standby_partitions_of_everybody() -> None:
    ctx = two_members()
    found = {host: served(entry) for host, entry in told(ctx, "m1", 3).items()}
    assert sorted(found) == ["one", "two"]
    (active_one, standby_one), (active_two, standby_two) = found["one"], found["two"]
    assert sorted((*active_one["in"], *active_two["in"])) == [0, 1]
    assert (active_one, active_two) == (standby_two, standby_one)


def test_unchanged_endpoints_are_not_rebuilt() -> None:
    ctx = two_members()
    before = told(ctx, "m1", 3)
    assert all(told(ctx, "m2", 3)[host] is before[host] for host in before)
    ctx.heartbeat("m1", 3, endpoint=("elsewhere", 1))
    after = told(ctx, "m2", 3)
    assert sorted(after) == ["elsewhere", "two"]
    assert served(after["elsewhere"]) == served(before["one"])


def test_endpoints_of_departed_members_are_removed() -> None:
    ctx = two_members()
    told(ctx, "m1", 3)
    ctx.leave("m2")
    ctx.sleep(0)
    assert sorted(told(ctx, "m1", 3)) == ["one"]
    assert served(told(ctx, "m1", 4)["one"]) == ({"in": (0, 1)}, {})
