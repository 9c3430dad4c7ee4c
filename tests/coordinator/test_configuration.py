"""Settings change while a group lives: what counts at once, what counts from the next heartbeat on."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext

from headrace.coordinator.configuration import GroupCoordinatorConfiguration, checked_group_settings
from headrace.coordinator.result import CoordinatorRecord
from headrace.errors import ConfigError

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


@pytest.mark.parametrize(
    ("given", "setting", "message"),
    [
        ({"group.coordinator.rebalance.protocols": "consumer"}, "group.coordinator.rebalance.protocols", "'classic'"),
        ({"group.coordinator.rebalance.protocols": "classic,share"}, "group.coordinator.rebalance.protocols", "Share"),
        (
            {"group.streams.session.timeout.ms": 70_000},
            "group.streams.session.timeout.ms",
            "must be less than or equal to group.streams.max.session.timeout.ms",
        ),
        (
            {"group.consumer.session.timeout.ms": 1_000},
            "group.consumer.session.timeout.ms",
            "must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            {
                "group.consumer.heartbeat.interval.ms": 15_000,
                "group.consumer.session.timeout.ms": 10_000,
                "group.consumer.min.session.timeout.ms": 10_000,
            },
            "group.consumer.heartbeat.interval.ms",
            "must be less than group.consumer.session.timeout.ms",
        ),
        ({"group.streams.num.standby.replicas": 3}, "group.streams.num.standby.replicas", "less than or equal to"),
        (
            {"group.streams.task.offset.interval.ms": 1},
            "group.streams.task.offset.interval.ms",
            "greater than or equal to group.streams.min.task.offset.interval.ms",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, object], setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refusal:
        GroupCoordinatorConfiguration.from_settings(given)
    assert f"Change `{setting}`" in refusal.value.fix


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"streams.num.standby.replica": "1"}, "Unknown group config name: streams.num.standby.replica"),
        ({"nonsense": "1"}, "Unknown group config name: nonsense"),
        ({"streams.session.timeout.ms": "1"}, "streams.session.timeout.ms must be greater than or equal to"),
        ({"streams.session.timeout.ms": "90000"}, "streams.session.timeout.ms must be less than or equal to"),
        ({"streams.num.standby.replicas": "3"}, "streams.num.standby.replicas must be less than or equal to"),
        ({"streams.assignor.name": "greedy"}, "'greedy' is not a registered task assignor"),
        ({"streams.rack.aware.assignment.tags": "zone,zone"}, "must not contain duplicate tag keys"),
    ],
)
def test_a_group_setting_out_of_bounds_is_refused(own: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked_group_settings(own, {})


def test_the_near_name_of_an_unknown_group_setting_is_the_fix() -> None:
    with pytest.raises(ConfigError) as refusal:
        checked_group_settings({"streams.num.standby.replica": "1"}, {})
    assert refusal.value.fix == "Did you mean `streams.num.standby.replicas`?"


def test_group_settings_are_kept_in_one_spelling() -> None:
    kept = checked_group_settings({"streams.num.standby.replicas": " 1 ", "consumer.session.timeout.ms": "50000"}, {})
    assert kept == {"consumer.session.timeout.ms": "50000", "streams.num.standby.replicas": "1"}


def test_a_heartbeat_interval_must_be_below_the_session_timeout_of_the_group() -> None:
    broker = {"group.consumer.max.heartbeat.interval.ms": 60_000}
    with pytest.raises(ConfigError, match=re.escape("session.timeout.ms must be greater than consumer.heartbeat")):
        checked_group_settings({"consumer.heartbeat.interval.ms": "46000"}, broker)
