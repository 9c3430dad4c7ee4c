"""Settings of the consumer: Kafka's names, durations."""

from __future__ import annotations

import pytest

from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.client.consumer.consumer_types import OffsetReset
from headrace.errors import ConfigError


def test_settings_have_kafkas_names() -> None:
    made = ConsumerConfiguration({"fetch.min.bytes": "7", "key.deserializer": "x"}, environment={}, group_id="g")
    assert (made["fetch.min.bytes"], made["group.id"], made.source("group.id")) == (7, "g", "argument")
    assert (made["isolation.level"], made["group.protocol"]) == ("read_committed", "consumer")
    with pytest.raises(ConfigError, match="which is not a setting"):
        ConsumerConfiguration({"fetch.min.byte": 1}, environment={})
    from_environment = ConsumerConfiguration(environment={"HEADRACE_MAX_POLL_RECORDS": "5"})
    assert from_environment["max.poll.records"] == 5


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("by_duration:PT1H", 3_600_000), ("by_duration:P1DT2M", 86_520_000), ("BY_DURATION:pt0.5s", 500)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert OffsetReset.parsed(text) == OffsetReset("by_duration", duration_ms)


@pytest.mark.parametrize("text", ["", "early", "by_duration:", "by_duration:P", "by_duration:-PT1H", "by_duration:1h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ConfigError):
        OffsetReset.parsed(text)
