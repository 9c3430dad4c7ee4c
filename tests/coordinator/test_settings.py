"""Settings of groups: Kafka's names, bounds, and settings of single groups."""

from __future__ import annotations

import re

import pytest

from headrace.coordinator.configuration import GroupCoordinatorConfiguration, checked_group_settings
from headrace.errors import ConfigError


def test_broker_settings_have_kafkas_names() -> None:
    configuration = GroupCoordinatorConfiguration.from_settings(
        {
            "group.streams.max.session.timeout.ms": "90000",
            "group.streams.session.timeout.ms": "70000",
            "group.streams.num.standby.replicas": 1,
            "log.dirs": "/tmp",
        }
    )
    group = configuration.for_streams_group("g")
    assert (group.session_timeout_ms, group.num_standby_replicas) == (70_000, 1)
    assert (group.heartbeat_interval_ms, group.assignment_interval_ms) == (5_000, 1_000)
    assert group.assignment_configs == (("num.standby.replicas", "1"),)
    with pytest.raises(ValueError, match=r"group\.streams\.max\.size: Value must be at least 1"):
        GroupCoordinatorConfiguration.from_settings({"group.streams.max.size": 0})
    with pytest.raises(ValueError, match=r"Not a number of type INT"):
        GroupCoordinatorConfiguration.from_settings({"group.streams.max.size": "many"})


def test_a_group_has_its_own_settings() -> None:
    configuration = GroupCoordinatorConfiguration().with_group_settings("g", {"streams.num.standby.replicas": "2"})
    assert configuration.for_streams_group("g").num_standby_replicas == 2
    assert configuration.for_streams_group("h").num_standby_replicas == 0


def test_a_stored_group_setting_out_of_bounds_is_clamped() -> None:
    configuration = GroupCoordinatorConfiguration(groups={"g": {"streams.heartbeat.interval.ms": "1", "x": "y"}})
    assert configuration.for_streams_group("g").heartbeat_interval_ms == 5_000


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


def test_heartbeat_interval_must_be_below_the_session_timeout() -> None:
    broker = {"group.consumer.max.heartbeat.interval.ms": 60_000}
    with pytest.raises(ConfigError, match=re.escape("session.timeout.ms must be greater than consumer.heartbeat")):
        checked_group_settings({"consumer.heartbeat.interval.ms": "46000"}, broker)
