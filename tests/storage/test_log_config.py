"""Kafka's names and defaults, and wrong values named."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.storage.log_config import NO_LIMIT, LogConfig


def test_defaults_are_kafkas() -> None:
    config = LogConfig()
    assert (config.segment_bytes, config.segment_ms, config.index_interval_bytes) == (2**30, 604_800_000, 4096)
    assert (config.retention_ms, config.retention_bytes, config.max_message_bytes) == (604_800_000, -1, 1_048_588)
    assert (config.flush_ms, config.fsync) == (NO_LIMIT, "never")


def test_a_topics_settings_lie_over_the_brokers() -> None:
    broker = LogConfig(retention_ms=5, segment_bytes=7)
    topic = {"segment.bytes": 9, "cleanup.policy": "compact, delete", "compression.type": "zstd"}
    config = LogConfig.from_kafka(topic, broker)
    assert (config.retention_ms, config.segment_bytes) == (5, 9)
    assert config.cleanup_policy == {"compact", "delete"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "0"),
        ("retention.ms", "-2"),
        ("flush.messages", "0"),
        ("max.message.bytes", "big"),
        ("cleanup.policy", "burn"),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_wrong_values_are_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        LogConfig.from_kafka({name: value})
    assert raised.value.facts == {"name": name, "value": value}
    assert name in str(raised.value)


@pytest.mark.parametrize("policy", ["never", "interval", "always"])
def test_fsync_by_name(policy: str) -> None:
    assert LogConfig().with_fsync(policy).fsync == policy  # type: ignore[arg-type]
    assert LogConfig.from_kafka({"flush.messages": "1"}).fsync == "always"
    assert LogConfig.from_kafka({"flush.ms": "50"}).fsync == "interval"
