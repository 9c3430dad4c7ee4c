"""The broker's settings: Kafka's names and defaults, typed, and helpful when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.config.configurations import configured

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.logs.partition_logs import default_log_config
from headrace.errors import ConfigError


def test_defaults_are_kafkas_and_the_host_is_the_loopback() -> None:
    configuration = configured()
    assert configuration.integer("num.partitions") == 1
    assert configuration.flag("auto.create.topics.enable") is True
    assert configuration.integer("message.max.bytes") == 1048588
    assert configuration.integer("socket.request.max.bytes") == 104857600
    assert configuration.integer("offsets.topic.num.partitions") == 50
    assert configuration.retention_ms() == 7 * 24 * 3600 * 1000
    assert (configuration.host, configuration.port) == ("127.0.0.1", 9092)
    assert configuration.flush_policy == "never"


def test_text_becomes_the_settings_type() -> None:
    configuration = configured(num_partitions="3", auto_create_topics_enable="FALSE", log_retention_hours=1)
    assert configuration.integer("num.partitions") == 3
    assert configuration.flag("auto.create.topics.enable") is False
    assert configuration.retention_ms() == 3600_000


def test_listeners_and_log_dirs_stand_in_for_what_is_not_given() -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:19092", "log.dirs": "/tmp/elsewhere"}
    configuration = BrokerConfiguration.from_settings(settings=settings)
    assert (configuration.host, configuration.port) == ("127.0.0.1", 19092)
    assert configuration.data_dir == Path("/tmp/elsewhere")
    assert BrokerConfiguration.from_settings("/tmp/x", port=0, settings=settings).port == 0


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        configured(num_partition=3)
    assert raised.value.code == "unknown-setting"
    assert "num.partitions" in raised.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "many"),
        ("num.partitions", 0),
        ("num.partitions", 2**31),
        ("auto.create.topics.enable", "maybe"),
        ("headrace.flush.policy", "sometimes"),
        ("log.cleanup.policy", "delete,burn"),
    ],
)
def test_bad_value_names_setting_and_value(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfiguration.from_settings("/tmp/x", settings={name: value})
    assert raised.value.code == "bad-value"
    assert name in raised.value.message
    assert str(value).removeprefix("delete,") in raised.value.message


@pytest.mark.parametrize(
    "text", ["CLIENTS://h:1", "PLAINTEXT://h", "h:9092", "PLAINTEXT://a:1,PLAINTEXT://b:2", "PLAINTEXT://a:70000", ""]
)
def test_listeners_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        configured(listeners=text)


def test_the_disk_gets_the_brokers_defaults_and_its_flush_policy() -> None:
    config = default_log_config(configured(log_segment_bytes=4096, headrace_flush_policy="always"))
    assert config.segment_bytes == 4096
    assert config.fsync == "always"
    assert default_log_config(configured()).fsync == "never"


def test_share_groups_are_refused_where_protocols_are_listed() -> None:
    with pytest.raises(ConfigError, match="Share groups are not served") as caught:
        configured(group_coordinator_rebalance_protocols="classic,consumer,share,streams")
    assert (caught.value.code, caught.value.facts["setting"]) == (
        "bad-value",
        "group.coordinator.rebalance.protocols",
    )
