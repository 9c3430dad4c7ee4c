"""Client metrics: librdkafka pushes, refusals on the wire, and what the topic holds."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from kio.static.primitive import i8, i32
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from tests.harness.polling import wait_until

from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_TOPIC
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.compression import CODECS, compress
from headrace.protocol.error_codes import ErrorCode


@pytest.fixture
def subscribe(broker: EmbeddedBroker) -> Callable[..., None]:
    def change(name: str, **settings: str | None) -> None:
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_configs("client-metrics", name, {key.replace("_", "."): settings[key] for key in settings})

    return change


def subscription(client: Any, instance_id: uuid.UUID | None = None) -> Any:
    request = m.get_telemetry_subscriptions_request.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, request)


def push(client: Any, answer: Any, metrics: bytes, codec: str = "none", *, terminating: bool = False) -> ErrorCode:
    request = m.push_telemetry_request.PushTelemetryRequest(
        client_instance_id=answer.client_instance_id,
        subscription_id=i32(answer.subscription_id),
        terminating=terminating,
        compression_type=i8(CODECS.index(codec)),
        metrics=metrics,
    )
    code: ErrorCode = client.call(ApiKey.PUSH_TELEMETRY, request).error_code
    return code


def payload(points: int = 1) -> bytes:
    data = MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="lag")
    for number in range(points):
        metric.gauge.data_points.add(as_int=number, time_unix_nano=1_700_000_000_000_000_000)
    return data.SerializeToString()


def rows(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in broker.records(CLIENT_METRICS_TOPIC)]


def test_without_a_subscription_nothing_is_asked_for_and_nothing_kept(client: Any, broker: EmbeddedBroker) -> None:
    answer = subscription(client)
    assert answer.error_code is ErrorCode.none
    assert (answer.requested_metrics, answer.accepted_compression_types) == ((), (4, 3, 1, 2))
    assert (answer.push_interval.total_seconds(), answer.telemetry_max_bytes) == (300, 1048576)
    assert push(client, answer, payload()) is ErrorCode.none
    with Admin(broker.bootstrap_servers) as admin:
        assert CLIENT_METRICS_TOPIC not in admin.list_topics(include_internal=True)


@pytest.mark.parametrize("codec", CODECS)
def test_metrics_become_rows(codec: str, client: Any, broker: EmbeddedBroker, subscribe: Callable[..., None]) -> None:
    subscribe("all", metrics="*", interval_ms="100")
    answer = subscription(client)
    assert answer.requested_metrics == ("*",)
    assert push(client, answer, compress(codec, payload(1_200)), codec) is ErrorCode.none
    kept = rows(broker)
    assert [row["value"] for row in kept] == list(range(1_200))
    assert {key: kept[0][key] for key in ("client_id", "metric", "kind", "time_ms", "group_id", "terminating")} == {
        "client_id": "test-client",
        "metric": "lag",
        "kind": "gauge",
        "time_ms": 1_700_000_000_000,
        "group_id": None,
        "terminating": False,
    }


@pytest.mark.parametrize("bad", [b"\xff" * 20, b"\x0a\x7f"])
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_metrics_that_cannot_be_decoded(
    bad: bytes, codec: str, client: Any, broker: EmbeddedBroker, subscribe: Callable[..., None]
) -> None:
    subscribe("all", metrics="*", interval_ms="100")
    answer = subscription(client)
    assert push(client, answer, bad, codec) is ErrorCode.invalid_record
    assert push(client, answer, payload(), terminating=True) is ErrorCode.none
    assert [(row["metric"], row["terminating"]) for row in rows(broker)] == [("lag", True)]


def test_metrics_that_are_too_large_or_grow_too_much(
    client: Any, broker: EmbeddedBroker, subscribe: Callable[..., None]
) -> None:
    subscribe("all", metrics="*", interval_ms="100")
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("broker", "1", {"telemetry.max.bytes": "1000"})
    answer = subscription(client)
    assert answer.telemetry_max_bytes == 1_000
    assert push(client, answer, payload(500)) is ErrorCode.telemetry_too_large
    # 100 kB of the same bytes are 100 bytes of zstd; 16 times the bound is the most that is decompressed.
    assert push(client, answer, compress("zstd", bytes(100_000)), "zstd", terminating=True) is ErrorCode.invalid_record
    with Admin(broker.bootstrap_servers) as admin:
        assert CLIENT_METRICS_TOPIC not in admin.list_topics(include_internal=True)


def test_subscriptions_are_listed_described_and_removed(broker: EmbeddedBroker, subscribe: Callable[..., None]) -> None:
    subscribe("a", metrics="org.apache.kafka.consumer.", match="client_id=x.*")
    subscribe("b", metrics="*")
    subscribe("b", metrics=None)
    with Admin(broker.bootstrap_servers) as admin:
        assert admin.list_config_resources(["client-metrics"]) == (("client-metrics", "a"),)
        described = admin.describe_configs([("client-metrics", "a")])["client-metrics", "a"]
        assert {name: (entry.value, entry.source) for name, entry in described.items()} == {
            "metrics": ("org.apache.kafka.consumer.", 7),
            "match": ("client_id=x.*", 7),
            "interval.ms": ("300000", 5),
        }


@pytest.mark.foreign
def test_librdkafka_pushes_by_itself(broker: EmbeddedBroker, subscribe: Callable[..., None]) -> None:
    subscribe("consumers", metrics="*", interval_ms="200", match="client_software_name=confluent-kafka-python")
    broker.create_topics({"t": 1})
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "client.id": "team-a.c", "group.id": "g", "log_level": 3}
    )
    consumer.subscribe(["t"])

    def is_pushed() -> bool:
        consumer.poll(0.05)
        with Admin(broker.bootstrap_servers) as admin:
            return CLIENT_METRICS_TOPIC in admin.list_topics(include_internal=True) and len(rows(broker)) > 0

    wait_until(is_pushed)
    consumer.close()
    wait_until(lambda: any(row["terminating"] for row in rows(broker)))
    row = rows(broker)[0]
    assert (row["client_id"], row["group_id"]) == ("team-a.c", "g")
    assert row["client_software_name"] == "confluent-kafka-python"
    assert "org.apache.kafka.consumer.poll.idle.ratio.avg" in {row["metric"] for row in rows(broker)}
