"""Settings of clients that groups ignore or bound."""

from __future__ import annotations

import logging

import pytest

from headrace.client import configuration
from headrace.client.configuration import ClientConfiguration
from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.errors import ConfigError


@pytest.fixture
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process: warnings come once in the life of one."""
    monkeypatch.setattr(configuration, "_warned", set())


def test_settings_of_the_group_are_named_as_such(nothing_warned: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="headrace.client"):
        ClientConfiguration({"rack.aware.assignment.tags": "zone", "key.serializer": "x"}, environment={})
    assert "set streams.rack.aware.assignment.tags" in caplog.text
    assert "Ignoring key.serializer" in caplog.text


@pytest.mark.parametrize("name", sorted(set(configuration.IGNORED_UNDER_STREAMS) - set(configuration.CLASSIC_ONLY)))
def test_every_setting_that_streams_groups_ignore_is_warned_about_once(
    nothing_warned: None, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The seed's list of ignored configurations (S16), and the two of the classic protocol."""
    for _ in range(3):
        assert dict(ClientConfiguration({name: "1"}, environment={})) == dict(ClientConfiguration(environment={}))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{name} is ignored for streams groups: ")
    replacement = configuration.IGNORED_UNDER_STREAMS[name]
    assert replacement is None or replacement in warning


def test_the_list_of_ignored_settings_is_kafkas() -> None:
    assert set(configuration.IGNORED_UNDER_STREAMS) >= {
        "acceptable.recovery.lag",
        "max.warmup.replicas",
        "num.standby.replicas",
        "probing.rebalance.interval.ms",
        "rack.aware.assignment.tags",
        "rack.aware.assignment.strategy",
        "rack.aware.assignment.traffic_cost",
        "rack.aware.assignment.non_overlap_cost",
        "task.assignor.class",
        "session.timeout.ms",
        "heartbeat.interval.ms",
    }


@pytest.mark.parametrize(("heartbeat_ms", "session_ms"), [(6_000, 6_000), (50_000, None), (None, 3_000)])
def test_a_heartbeat_interval_must_be_shorter_than_the_session(
    heartbeat_ms: int | None, session_ms: int | None
) -> None:
    given = {"heartbeat.interval.ms": heartbeat_ms, "session.timeout.ms": session_ms}
    with pytest.raises(ConfigError, match=r"expected less than session\.timeout\.ms") as caught:
        ConsumerConfiguration(given, environment={})
    assert caught.value.code == "bad-value"
    ConsumerConfiguration({"heartbeat.interval.ms": 5_999, "session.timeout.ms": 6_000}, environment={})


@pytest.mark.parametrize(
    ("protocol", "name", "value", "remedy"),
    [
        ("consumer", "session.timeout.ms", 30_000, "consumer.session.timeout.ms on the group"),
        ("consumer", "heartbeat.interval.ms", 1_000, "consumer.heartbeat.interval.ms on the group"),
        ("consumer", "partition.assignment.strategy", "range", "group.remote.assignor"),
        ("classic", "group.remote.assignor", "range", "partition.assignment.strategy"),
    ],
)
def test_a_setting_of_the_other_group_protocol_is_logged(
    caplog: pytest.LogCaptureFixture, protocol: str, name: str, value: object, remedy: str
) -> None:
    with caplog.at_level(logging.WARNING):
        ConsumerConfiguration({name: value}, environment={}, group_protocol=protocol)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{name} has no effect with group.protocol={protocol}")
    assert remedy in record.getMessage()
    caplog.clear()
    other = "classic" if protocol == "consumer" else "consumer"
    ConsumerConfiguration({name: value}, environment={}, group_protocol=other)
    ConsumerConfiguration({}, environment={}, group_protocol=protocol)
    assert caplog.records == []
