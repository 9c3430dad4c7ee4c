"""Settings of topics and the settings of the broker that they fall back to."""

from __future__ import annotations

from tests.broker.config.configurations import configured

from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, effective_value


def test_a_topic_falls_back_to_the_broker_and_then_to_kafka() -> None:
    configuration = configured(log_retention_ms=5000, log_segment_bytes=4096)
    assert effective_value("retention.ms", {"retention.ms": "7"}, configuration) == 7
    assert effective_value("retention.ms", {}, configuration) == 5000
    assert effective_value("segment.bytes", {}, configuration) == 4096
    assert effective_value("max.message.bytes", {}, configuration) == 1048588


def test_every_topic_setting_falls_back_to_a_broker_setting() -> None:
    for setting in TOPIC_SETTINGS.values():
        assert setting.synonym is None or setting.synonym in BROKER_SETTINGS
