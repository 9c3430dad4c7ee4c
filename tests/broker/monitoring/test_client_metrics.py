"""Rules of client metrics with time and ids as arguments: subscriptions, push intervals, refusals, bounds."""

from __future__ import annotations

import uuid

import pytest

from headrace.broker.monitoring import client_metrics
from headrace.broker.monitoring.client_metrics import ClientMetrics, Push, TelemetryRefused
from headrace.protocol.error_codes import ErrorCode

ID = uuid.UUID("8cfb2d2b-8f2f-4c3e-9d52-3c36f8a0b7d1")
CLIENT = {"client_id": "team-a.loader"}


class Subscriptions:
    """Mutable: settings that a test changes."""

    def __init__(self, **settings: dict[str, str]) -> None:
        self.settings: dict[str, dict[str, str]] = settings
        self.metrics = ClientMetrics(lambda: self.settings)

    def get(self, now_ms: int, instance_id: uuid.UUID | None = ID) -> client_metrics.ClientInstance:
        return self.metrics.get_subscription(instance_id, CLIENT, new_id=ID, now_ms=now_ms)

    def push(self, now_ms: int, subscription_id: int, **changes: int) -> ErrorCode:
        push = Push(
            instance_id=ID,
            subscription_id=subscription_id,
            is_terminating=bool(changes.get("terminating")),
            compression=changes.get("compression", 0),
            size=changes.get("size", 10),
        )
        try:
            self.metrics.accept_push(push, CLIENT, max_bytes=100, now_ms=now_ms)
        except TelemetryRefused as refused:
            return refused.code
        return ErrorCode.none


def code_of_get(subscriptions: Subscriptions, now_ms: int) -> ErrorCode:
    try:
        subscriptions.get(now_ms)
    except TelemetryRefused as refused:
        return refused.code
    return ErrorCode.none


def test_overlapping_subscriptions_give_all_prefixes_and_the_shortest_interval() -> None:
    subscriptions = Subscriptions(
        one={"metrics": "b.,a.", "interval.ms": "3600000"},
        two={"metrics": "b.,c.", "interval.ms": "2000", "match": "client_id=team-a.*"},
        other={"metrics": "*", "interval.ms": "100", "match": "client_id=team-b.*"},
    )
    instance = subscriptions.get(0, None)
    assert (instance.instance_id, instance.metrics, instance.interval_ms) == (ID, ("a.", "b.", "c."), 2_000)
    subscriptions.settings = {**subscriptions.settings, "three": {"metrics": "*"}}
    assert subscriptions.get(0).metrics == ("*",)
    # As in Kafka the interval of a subscription is never longer than the default.
    subscriptions.settings = {"one": {"metrics": "a.", "interval.ms": "3600000"}}
    assert subscriptions.get(0).interval_ms == 300_000


def test_the_subscription_id_is_kafkas() -> None:
    # Crc32C.compute("[*]1000") ^ Uuid.hashCode() of kafka-clients 4.3.1.
    instance = Subscriptions(all={"metrics": "*", "interval.ms": "1000"}).get(0)
    assert instance.subscription_id == 1420646475
    other = Subscriptions(all={"metrics": "*", "interval.ms": "1001"}).get(0)
    assert instance.subscription_id != other.subscription_id


def test_requests_before_the_interval_are_throttled() -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "1000"})
    number = subscriptions.get(0).subscription_id
    assert code_of_get(subscriptions, 999) is ErrorCode.throttling_quota_exceeded
    # The first push follows its subscription at once; the next ones wait.
    assert subscriptions.push(10, number) is ErrorCode.none
    assert subscriptions.push(1_009, number) is ErrorCode.throttling_quota_exceeded
    assert subscriptions.push(1_010, number) is ErrorCode.none
    assert code_of_get(subscriptions, 2_009) is ErrorCode.throttling_quota_exceeded
    assert code_of_get(subscriptions, 2_010) is ErrorCode.none


def test_a_changed_subscription_is_asked_for_at_once() -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "1000"})
    number = subscriptions.get(0).subscription_id
    assert subscriptions.push(1, number) is ErrorCode.none
    subscriptions.settings = {"all": {"metrics": "a.", "interval.ms": "1000"}}
    assert subscriptions.push(1_001, number) is ErrorCode.unknown_subscription_id
    instance = subscriptions.get(1_002)
    assert instance.metrics == ("a.",)
    # Kafka's rule as well: the refused push counts, so the next one comes an interval later.
    assert subscriptions.push(2_000, instance.subscription_id) is ErrorCode.throttling_quota_exceeded
    assert subscriptions.push(2_001, instance.subscription_id) is ErrorCode.none


@pytest.mark.parametrize("count", [5, -1, 99])
def test_after_an_unknown_codec_the_subscription_is_asked_for_at_once(count: int) -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "1000"})
    number = subscriptions.get(0).subscription_id
    assert subscriptions.push(1, number, compression=count) is ErrorCode.unsupported_compression_type
    assert code_of_get(subscriptions, 2) is ErrorCode.none
    assert code_of_get(subscriptions, 3) is ErrorCode.throttling_quota_exceeded


def test_sizes_and_reserved_ids() -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "1000"})
    number = subscriptions.get(0).subscription_id
    assert subscriptions.push(1, number, size=101) is ErrorCode.telemetry_too_large
    assert subscriptions.push(1_001, number, size=100) is ErrorCode.none
    for reserved in (None, uuid.UUID(int=0), uuid.UUID(int=1)):
        push = Push(instance_id=reserved, subscription_id=number, is_terminating=False, compression=0, size=1)
        with pytest.raises(TelemetryRefused) as refused:
            subscriptions.metrics.accept_push(push, CLIENT, max_bytes=100, now_ms=5_000)
        assert refused.value.code is ErrorCode.invalid_request


def test_the_terminating_push_is_early_and_the_last() -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "1000"})
    number = subscriptions.get(0).subscription_id
    assert subscriptions.push(1, number) is ErrorCode.none
    assert subscriptions.push(2, number, terminating=1) is ErrorCode.none
    assert subscriptions.push(5_000, number) is ErrorCode.invalid_request


@pytest.mark.parametrize(("now_ms", "code"), [(299_999, ErrorCode.invalid_request), (300_000, ErrorCode.none)])
def test_a_silent_client_is_forgotten_after_three_intervals(now_ms: int, code: ErrorCode) -> None:
    subscriptions = Subscriptions(all={"metrics": "*", "interval.ms": "100000"})
    number = subscriptions.get(0).subscription_id
    subscriptions.push(0, number, terminating=1)
    assert subscriptions.push(now_ms, number) is code


def test_the_number_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "MOST_INSTANCES", 3)
    metrics = ClientMetrics(dict)
    for number in range(10):
        metrics.get_subscription(uuid.UUID(int=number + 2), CLIENT, new_id=ID, now_ms=number)
    assert len(metrics) == 3
