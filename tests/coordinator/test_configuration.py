"""Settings change while a group lives: what counts at once, what counts from the next heartbeat on."""

from __future__ import annotations

from collections.abc import Iterable

from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext

from headrace.coordinator.result import CoordinatorRecord

STANDBY = {"streams.num.standby.replicas": "1"}


def two_stable_members(**settings: object) -> CoordinatorContext:
    """Both at epoch 3, one task each; stateful."""
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings=settings)
    ctx.join("m1", topology=STATEFUL)
    ctx.sleep(5_000)
    ctx.heartbeat("m1", 2)
    ctx.join("m2", topology=STATEFUL)
    ctx.sleep(5_000)
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0,)})
    ctx.heartbeat("m2", 3)
    assert ctx.state() == "Stable"
    return ctx


def names(records: Iterable[CoordinatorRecord]) -> list[str]:
    return [type(record.key).__name__.removeprefix("StreamsGroup").removesuffix("Key") for record in records]


def test_a_changed_assignment_setting_reassigns_without_a_heartbeat() -> None:
    ctx = two_stable_members()
    assert names(ctx.set_group_settings(STANDBY)) == [
        "Metadata",
        *["TargetAssignmentMember"] * 2,
        "TargetAssignmentMetadata",
    ]
    assert ctx.set_group_settings(STANDBY) == []
    assert (ctx.heartbeat("m1", 3).standby, ctx.heartbeat("m2", 3).standby) == ({"0": (1,)}, {"0": (0,)})


def test_the_assignment_interval_holds_the_target_back() -> None:
    ctx = two_stable_members(**{"group.streams.assignment.interval.ms": 1_000})
    ctx.set_group_settings({**STANDBY})
    assert names(ctx.set_group_settings({"streams.num.standby.replicas": "0"})) == ["Metadata"]
    answer = ctx.heartbeat("m1", 3)
    assert answer.statuses == [5]
    assert names(ctx.sleep(1_000))[-1] == "TargetAssignmentMetadata"


def test_another_length_of_the_interval_counts_for_who_waits_already() -> None:
    ctx = two_stable_members()
    interval = "streams.assignment.interval.ms"
    assert ctx.set_group_settings({interval: "15000"}) == []
    assert names(ctx.set_group_settings({interval: "15000", **STANDBY})) == ["Metadata"]
    assert ctx.set_group_settings({interval: "100", **STANDBY}) == []
    assert names(ctx.sleep(0))[-1] == "TargetAssignmentMetadata"
    assert names(ctx.set_group_settings({interval: "100"})) == ["Metadata"]
    assert ctx.set_group_settings({interval: "15000"}) == []
    assert ctx.sleep(14_999) == []
    assert names(ctx.sleep(1))[-1] == "TargetAssignmentMetadata"


def test_the_initial_delay_is_waited_for() -> None:
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings={"group.streams.initial.rebalance.delay.ms": 3_000})
    ctx.join("m1", topology=STATEFUL)
    assert names(ctx.set_group_settings(STANDBY)) == ["Metadata"]
    ctx.sleep(2_999)
    assert ctx.heartbeat("m1", 1).statuses == [5]
    assert names(ctx.sleep(1)) == ["TargetAssignmentMember", "TargetAssignmentMetadata"]
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1)}


def test_an_empty_group_is_left_alone_until_somebody_joins() -> None:
    ctx = two_stable_members()
    ctx.leave("m1")
    ctx.leave("m2")
    assert ctx.set_group_settings(STANDBY) == []
    ctx.join("m1", topology=STATEFUL)
    ctx.join("m2", topology=STATEFUL)
    assert [member.target_assignment.standby_tasks[0].partitions for member in ctx.describe().members] == [(1,), (0,)]


def test_other_settings_are_no_new_epoch() -> None:
    ctx = two_stable_members()
    settings = {"streams.session.timeout.ms": "60000", "streams.heartbeat.interval.ms": "6000"}
    assert ctx.set_group_settings(settings) == []
    assert ctx.heartbeat("m1", 3).response.heartbeat_interval.total_seconds() == 6
    ctx.sleep(45_000)
    assert {member.member_id for member in ctx.describe().members} == {"m1"}
    ctx.sleep(15_000)
    assert ctx.state() == "Empty"


def test_a_setting_of_one_group_is_nothing_to_another() -> None:
    ctx = two_stable_members()
    assert ctx.set_group_settings(STANDBY, group_id="other") == []
