"""Static members as Kafka 4.4 has them: leave for a while, come back as somebody else, and nobody else may be them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext
from tests.harness.coordinator import error_of


def two_static_members(ctx: CoordinatorContext | None = None) -> CoordinatorContext:
    """a1 is instance a with 0 and 1, b1 is instance b with 2 and 3, both at epoch 3."""
    ctx = ctx or CoordinatorContext()
    ctx.join("a1", instance_id="a")
    ctx.join("b1", instance_id="b")
    ctx.heartbeat("a1", 2, instance_id="a")
    ctx.heartbeat("a1", 2, instance_id="a", active={"0": (0, 1)})
    assert ctx.heartbeat("b1", 3, instance_id="b").active == {"0": (2, 3)}
    return ctx


def away(ctx: CoordinatorContext) -> CoordinatorContext:
    ctx.heartbeat("a1", -2, instance_id="a")
    return ctx


def test_leaving_for_a_while_is_one_record_and_no_new_epoch() -> None:
    ctx = two_static_members()
    outcome = ctx.heartbeat("a1", -2, instance_id="a")
    assert outcome.record_names == ["CurrentMemberAssignment"]
    assert (outcome.epoch, outcome.statuses, outcome.active) == (-2, [], None)
    assert outcome.response.heartbeat_interval.total_seconds() == 0
    value: Any = outcome.records[0].value
    assert (value.member_epoch, value.previous_member_epoch, value.state) == (-2, 2, 1)
    assert value.active_tasks[0].assignment_epochs == (0, 0)
    assert (ctx.state(), ctx.describe().group_epoch) == ("Reconciling", 3)


def test_returning_static_member_keeps_its_tasks_under_a_new_id() -> None:
    ctx = away(two_static_members())
    outcome = ctx.join("a2", instance_id="a", process_id="p-a1")
    assert outcome.record_names == [
        "CurrentMemberAssignment!",
        "TargetAssignmentMember!",
        "MemberMetadata!",
        "MemberMetadata",
        "TargetAssignmentMember",
        "CurrentMemberAssignment",
        "CurrentMemberAssignment",
    ]
    assert (outcome.epoch, outcome.active, ctx.state()) == (3, {"0": (0, 1)}, "Stable")
    assert ctx.heartbeat("b1", 3, instance_id="b").records == ()
    assert error_of(lambda: ctx.heartbeat("a1", 3)) == "unknown_member_id"
    assert error_of(lambda: ctx.heartbeat("a1", 3, instance_id="a")) == "fenced_instance_id"
    described = {each.member_id: each.instance_id for each in ctx.describe().members}
    assert described == {"a2": "a", "b1": "b"}


def test_the_same_member_id_may_come_back_too() -> None:
    ctx = away(two_static_members())
    outcome = ctx.join("a1", instance_id="a")
    assert (outcome.epoch, outcome.active, ctx.state()) == (3, {"0": (0, 1)}, "Stable")
    ctx.sleep(44_000)
    assert ctx.heartbeat("a1", 3, instance_id="a").records == ()


def test_a_new_process_is_a_new_epoch_but_keeps_its_tasks() -> None:
    ctx = away(two_static_members())
    outcome = ctx.join("a2", instance_id="a", process_id="another")
    assert outcome.record_names[3:] == [
        "MemberMetadata",
        "TargetAssignmentMember",
        "CurrentMemberAssignment",
        "MemberMetadata",
        "Metadata",
        "TargetAssignmentMetadata",
        "CurrentMemberAssignment",
    ]
    assert (outcome.epoch, outcome.active) == (4, {"0": (0, 1)})


@pytest.mark.parametrize(
    ("given", "new_epoch"),
    [
        ({"rack_id": "r"}, True),
        ({"process_id": "q"}, True),
        ({"client_tags": (("zone", "a"),)}, True),
        ({"rebalance_timeout_ms": 9}, False),
        ({"endpoint": ("h", 1)}, False),
        ({"host": "/10.0.0.1"}, False),
    ],
)
def test_only_what_the_assignor_sees_of_a_static_member_is_a_new_epoch(given: dict[str, Any], new_epoch: bool) -> None:
    ctx = CoordinatorContext()
    ctx.join("a1", instance_id="a")
    outcome = ctx.heartbeat("a1", 2, instance_id="a", **given)
    assert outcome.record_names[0] == "MemberMetadata"
    assert ("Metadata" in outcome.record_names, outcome.epoch) == (new_epoch, 3 if new_epoch else 2)


def test_an_instance_in_use_is_refused_and_its_member_does_not_notice() -> None:
    """Kafka 4.4 takes the member's tasks away in the middle of a rebalance (its cached target is renamed first)."""
    ctx = CoordinatorContext()
    ctx.join("a1", instance_id="a")
    ctx.join("b1", instance_id="b")
    before = ctx.shard.digest()
    assert error_of(lambda: ctx.join("a2", instance_id="a")) == "unreleased_instance_id"
    assert error_of(lambda: ctx.heartbeat("a2", 3, instance_id="a")) == "fenced_instance_id"
    assert error_of(lambda: ctx.heartbeat("a2", -1, instance_id="a")) == "fenced_instance_id"
    assert error_of(lambda: ctx.heartbeat("a2", -2, instance_id="a")) == "fenced_instance_id"
    assert ctx.shard.digest() == before
    assert ctx.heartbeat("a1", 2, instance_id="a").active == {"0": (0, 1)}


def test_an_unknown_instance_is_an_unknown_member() -> None:
    ctx = two_static_members()
    for epoch in (1, -1, -2):
        assert error_of(partial(ctx.heartbeat, "a1", epoch, instance_id="z")) == "unknown_member_id"
    assert error_of(lambda: ctx.heartbeat("a1", 4, instance_id="a")) == "fenced_member_epoch"


def test_a_member_may_join_again_although_it_never_left() -> None:
    """The answer to its join was lost."""
    ctx = two_static_members()
    outcome = ctx.join("a1", instance_id="a")
    assert (outcome.epoch, outcome.active, outcome.records) == (3, {"0": (0, 1)}, ())


def test_the_session_of_a_member_that_is_away_runs_on() -> None:
    ctx = two_static_members()
    ctx.sleep(40_000)
    away(ctx)
    ctx.heartbeat("b1", 3, instance_id="b")
    ctx.sleep(4_999)
    assert len(ctx.describe().members) == 2
    ctx.sleep(1)
    assert [each.member_id for each in ctx.describe().members] == ["b1"]
    assert ctx.heartbeat("b1", 3, instance_id="b").active == {"0": (0, 1, 2, 3)}


def test_the_old_id_has_no_timer_left_and_the_new_one_has_its_own() -> None:
    ctx = away(two_static_members())
    ctx.sleep(20_000)
    ctx.heartbeat("b1", 3, instance_id="b")
    ctx.join("a2", instance_id="a", process_id="p-a1")
    assert ctx.sleep(30_000) == [], "25 s after a1's session would have ended"
    ctx.heartbeat("b1", 3, instance_id="b")
    ctx.sleep(15_000)
    assert [each.member_id for each in ctx.describe().members] == ["b1"]


def test_leaving_completes_a_pending_revocation() -> None:
    ctx = CoordinatorContext()
    ctx.join("a1", instance_id="a", rebalance_timeout_ms=10_000)
    ctx.join("b1", instance_id="b")
    assert ctx.heartbeat("a1", 2, instance_id="a").active == {"0": (0, 1)}
    away(ctx)
    assert ctx.heartbeat("b1", 3, instance_id="b").active == {"0": (2, 3)}
    ctx.sleep(10_000)
    assert len(ctx.describe().members) == 2, "the time to revoke ended when it left"
    ctx.restart()
    ctx.sleep(10_000)
    assert len(ctx.describe().members) == 2, "nor does it begin again with the broker"
    outcome = ctx.join("a2", instance_id="a", process_id="p-a1")
    assert (outcome.epoch, outcome.active) == (3, {"0": (0, 1)})


def test_a_full_group_takes_a_static_member_back() -> None:
    ctx = away(two_static_members(CoordinatorContext(settings={"group.streams.max.size": 2})))
    assert error_of(lambda: ctx.join("c1")) == "group_max_size_reached"
    assert error_of(lambda: ctx.join("c1", instance_id="c")) == "group_max_size_reached"
    assert ctx.join("a2", instance_id="a").active == {"0": (0, 1)}


def test_leaving_for_good_frees_the_instance() -> None:
    ctx = two_static_members()
    assert ctx.leave("a1", instance_id="a").record_names[-1] == "Metadata"
    assert ctx.join("c1", instance_id="a").epoch == 5
    ctx.leave("c1")
    assert error_of(lambda: ctx.leave("c1", instance_id="a")) == "unknown_member_id"


def test_a_static_member_is_known_after_a_restart() -> None:
    ctx = away(two_static_members())
    ctx.restart()
    assert ctx.join("a2", instance_id="a", process_id="p-a1").active == {"0": (0, 1)}
    ctx.restart()
    assert error_of(lambda: ctx.join("a3", instance_id="a")) == "unreleased_instance_id"
    assert ctx.heartbeat("a2", 3, instance_id="a").records == ()


def test_member_that_takes_over_an_instance_gives_up_its_own_tasks() -> None:
    """Kafka 4.4 forgets them until something else happens: nobody runs them."""
    ctx = away(two_static_members())
    outcome = ctx.join("b1", instance_id="a", process_id="p-b1")
    assert "Metadata" in outcome.record_names
    assert (outcome.epoch, outcome.active) == (4, {"0": (0, 1, 2, 3)})
    assert [(each.member_id, each.instance_id) for each in ctx.describe().members] == [("b1", "a")]
    before = ctx.shard.digest()
    ctx.restart()
    assert ctx.shard.digest() == before
    assert ctx.join("c1", instance_id="b").epoch == 5, "nobody is b any more"


def test_a_dynamic_member_may_become_static() -> None:
    ctx = CoordinatorContext()
    ctx.join("a1")
    assert ctx.join("a1", instance_id="a").record_names == ["MemberMetadata"]
    assert ctx.join("a1", instance_id="b").record_names == ["MemberMetadata"]
    assert error_of(lambda: ctx.heartbeat("a1", 2, instance_id="a")) == "unknown_member_id"
    assert ctx.heartbeat("a1", 2, instance_id="b").records == ()


def test_standbys_come_back_as_well() -> None:
    settings = {"group.streams.num.standby.replicas": 1}
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings=settings)
    ctx.join("a1", instance_id="a", topology=STATEFUL)
    ctx.join("b1", instance_id="b", topology=STATEFUL)
    ctx.heartbeat("a1", 2, instance_id="a")
    ctx.heartbeat("a1", 2, instance_id="a", active={"0": (0,)}, standby={"0": (1,)})
    ctx.heartbeat("b1", 3, instance_id="b")
    away(ctx)
    outcome = ctx.join("a2", instance_id="a", topology=STATEFUL, process_id="p-a1")
    assert (outcome.active, outcome.standby, ctx.state()) == ({"0": (0,)}, {"0": (1,)}, "Stable")


def test_a_shutdown_is_asked_for_with_leaving_too() -> None:
    """Also by somebody who is not there, as in Kafka: the request comes before the look at the member."""
    for epoch, member_id in ((-1, "a1"), (-2, "a1"), (-1, "nobody")):
        ctx = two_static_members()
        instance_id = "a" if member_id == "a1" else None
        leaving = partial(ctx.heartbeat, member_id, epoch, instance_id=instance_id, shutdown=True)
        if member_id == "nobody":
            assert error_of(leaving) == "unknown_member_id"
        else:
            leaving()
        outcome = ctx.heartbeat("b1", 3, instance_id="b")
        assert outcome.statuses == [4]
        assert f"member {member_id} " in outcome.response.status[0].status_detail
