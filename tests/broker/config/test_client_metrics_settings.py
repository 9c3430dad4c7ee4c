"""Settings of client metrics subscriptions: what is refused with Kafka's codes and words, and who matches."""

from __future__ import annotations

import pytest

from headrace.broker.config.client_metrics_settings import ClientMetricsSubscription, SubscriptionInvalid
from headrace.protocol.error_codes import ErrorCode

_REQUEST, _CONFIG = ErrorCode.invalid_request, ErrorCode.invalid_config
_INTERVAL = "interval must be between 100 and 3600000"


@pytest.mark.parametrize(
    ("name", "settings", "code", "message"),
    [
        ("", {"metrics": "*"}, _REQUEST, "Subscription name can't be empty"),
        ("s", {"metric": "*"}, _REQUEST, "Unknown client metrics configuration: metric"),
        ("s", {"interval.ms": "99"}, _REQUEST, f"Invalid value 99 for interval.ms, {_INTERVAL}"),
        ("s", {"interval.ms": "3600001"}, _REQUEST, _INTERVAL),
        ("s", {"interval.ms": "soon"}, _CONFIG, "Invalid value soon for configuration interval.ms"),
        ("s", {"match": "client_id"}, _CONFIG, "Illegal client matching pattern: client_id"),
        ("s", {"match": "rack=a"}, _CONFIG, "Illegal client matching pattern: rack=a"),
        ("s", {"match": "client_id=["}, _CONFIG, r"Illegal client matching pattern: client_id=\["),
        ("s", {"match": "client_id=a=b"}, _CONFIG, "Illegal client matching pattern: client_id=a=b"),
    ],
)
def test_invalid_settings(name: str, settings: dict[str, str], code: ErrorCode, message: str) -> None:
    with pytest.raises(SubscriptionInvalid, match=message) as refused:
        ClientMetricsSubscription.from_settings(name, settings)
    assert refused.value.code is code


def test_defaults_are_kafkas() -> None:
    subscription = ClientMetricsSubscription.from_settings("s", {})
    assert (subscription.metrics, subscription.interval_ms) == ((), 300_000)
    assert subscription.matches({})


def test_all_patterns_have_to_match_the_whole_value() -> None:
    settings = {"match": "client_id=team-a\\..*, client_software_name=(apache|rd).*"}
    subscription = ClientMetricsSubscription.from_settings("s", settings)
    ours = {"client_id": "team-a.loader", "client_software_name": "apache-kafka-java"}
    assert subscription.matches(ours)
    assert not subscription.matches({**ours, "client_id": "x-team-a.loader"})
    assert not subscription.matches({**ours, "client_software_name": "kafka-python"})
    assert not subscription.matches({"client_id": "team-a.loader"})
