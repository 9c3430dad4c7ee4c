"""Metrics of clients (KIP-714): GetTelemetrySubscriptions, PushTelemetry, and the topic that takes the metrics.

Each data point becomes one record of the topic `__headrace_client_metrics`: the key is the client instance id,
the value a JSON object (`metric_rows`). Kafka passes the metrics to a plugin of the operator instead. The topic is made
with the first metrics of a subscribed client; its retention bounds it by time and size.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Mapping

from kio.static.primitive import i8, i32

from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_TOPIC
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.monitoring.client_metrics import ClientInstance, ClientMetrics, Push, TelemetryRefused
from headrace.broker.requests.partial_response import Api
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.compression import codec_name, decompress
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.otlp_metrics import MetricPoint, OtlpMalformed, decode_points
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import CorruptBatch, PlainRecord, encode_batch
from headrace.storage.checkpoint_files import format_topic_id
from headrace.storage.errors import StorageError

__all__ = ["APIS", "handle_get_telemetry_subscriptions", "handle_push_telemetry", "metric_rows"]

logger = logging.getLogger("headrace.broker")

# Kafka's SUPPORTED_COMPRESSION_TYPES, the one that it prefers first: zstd, lz4, gzip, snappy.
_ACCEPTED_CODECS = (i8(4), i8(3), i8(1), i8(2))
# A Java consumer has about 150 metrics, and 20 more for each partition. Metrics of a client compress to a tenth, so a
# push of telemetry.max.bytes may be ten times as long; what is longer, or has more points, is refused.
MOST_POINTS = 20_000
MOST_BYTES_FACTOR = 16
# Rows of a batch: 500 of 500 bytes are far below max.message.bytes.
_ROWS_A_BATCH = 500
_TOPIC_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "retention.bytes": str(256 << 20),
    "retention.ms": str(7 * 24 * 3_600_000),
    # Retention removes whole segments, so a segment is a small part of the bound.
    "segment.bytes": str(16 << 20),
}


def handle_get_telemetry_subscriptions(
    request: m.get_telemetry_subscriptions_request.GetTelemetrySubscriptionsRequest,
    context: RequestContext,
    broker: Services,
) -> m.get_telemetry_subscriptions_response.GetTelemetrySubscriptionsResponse:
    """GetTelemetrySubscriptions (API 71, KIP-714): the metrics that a client shall push, how often, and its id.

    Version notes: v0 only. Without a subscription that fits, the list of metrics is empty and the client asks again
    after five minutes. No access rule, as in Kafka.
    """
    r = m.get_telemetry_subscriptions_response
    try:
        instance = _client_metrics(broker).get_subscription(
            request.client_instance_id, _attributes(context), new_id=uuid.uuid4(), now_ms=broker.clock.now_ms()
        )
    except TelemetryRefused as refused:
        return r.GetTelemetrySubscriptionsResponse(
            throttle_time=NO_THROTTLE,
            error_code=refused.code,
            client_instance_id=None,
            subscription_id=i32(0),
            push_interval=NO_THROTTLE,
            telemetry_max_bytes=i32(0),
            delta_temporality=False,
        )
    return r.GetTelemetrySubscriptionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        client_instance_id=instance.instance_id,
        subscription_id=i32(instance.subscription_id),
        accepted_compression_types=_ACCEPTED_CODECS,
        push_interval=from_ms(instance.interval_ms),
        telemetry_max_bytes=i32(broker.configuration.integer("telemetry.max.bytes")),
        delta_temporality=True,
        requested_metrics=instance.metrics,
    )


def handle_push_telemetry(
    request: m.push_telemetry_request.PushTelemetryRequest, context: RequestContext, broker: Services
) -> m.push_telemetry_response.PushTelemetryResponse | Awaitable[m.push_telemetry_response.PushTelemetryResponse]:
    """PushTelemetry (API 72, KIP-714): metrics of a client, in OpenTelemetry's protobuf format.

    Version notes: v0 only. Metrics that cannot be decoded or stored are answered with INVALID_RECORD, as Kafka answers
    where its plugin fails. No access rule, as in Kafka; quotas of requests apply.
    """
    push = Push(
        instance_id=request.client_instance_id,
        subscription_id=request.subscription_id,
        is_terminating=request.terminating,
        compression=request.compression_type,
        size=len(request.metrics or b""),
    )
    max_bytes = broker.configuration.integer("telemetry.max.bytes")
    try:
        instance = _client_metrics(broker).accept_push(
            push, _attributes(context), max_bytes=max_bytes, now_ms=broker.clock.now_ms()
        )
    except TelemetryRefused as refused:
        return _push_response(refused.code)
    # Without a subscription nothing is decoded: a client does not decide what is kept.
    if not instance.metrics or not request.metrics:
        return _push_response(ErrorCode.none)
    return _store(request, instance, context, broker, max_bytes * MOST_BYTES_FACTOR)


def _push_response(code: ErrorCode) -> m.push_telemetry_response.PushTelemetryResponse:
    return m.push_telemetry_response.PushTelemetryResponse(throttle_time=NO_THROTTLE, error_code=code)


async def _store(
    request: m.push_telemetry_request.PushTelemetryRequest,
    instance: ClientInstance,
    context: RequestContext,
    broker: Services,
    most_bytes: int,
) -> m.push_telemetry_response.PushTelemetryResponse:
    client = {
        "client_instance_id": format_topic_id(instance.instance_id),
        **{name: instance.attributes[name] for name in _ROW_ATTRIBUTES},
        "terminating": request.terminating,
    }
    now_ms = broker.clock.wall_clock_ms()
    try:
        # In a thread: a push of a megabyte takes a tenth of a second, which other clients' heartbeats must not wait
        # for. The rows are appended on the loop, where all logs are written.
        batches = await asyncio.to_thread(
            _batches, request.metrics, codec_name(int(request.compression_type)), client, now_ms, most_bytes
        )
        topic = _topic(broker)
        partition = partition_for_key(str(client["client_instance_id"]).encode(), topic.partitions)
        for batch in batches:
            broker.logs.append(topic, partition, batch, origin="coordinator")
    except (CorruptBatch, OtlpMalformed, AppendRefused, StorageError, OSError) as error:
        instance.last_error = ErrorCode.invalid_record
        logger.warning(
            "Metrics of client %r at %s were not stored: %s", context.client_id, context.client_host[1:], error
        )
        return _push_response(ErrorCode.invalid_record)
    return _push_response(ErrorCode.none)


def _batches(metrics: bytes, codec: str, client: Mapping[str, object], now_ms: int, most_bytes: int) -> list[bytes]:
    payload = decompress(codec, metrics, most_bytes)
    key = str(client["client_instance_id"]).encode()
    rows = list(metric_rows(decode_points(payload, most_points=MOST_POINTS), client))
    return [
        encode_batch(
            [PlainRecord(key=key, value=row, timestamp_ms=now_ms) for row in rows[start : start + _ROWS_A_BATCH]],
            compression="zstd",
        )
        for start in range(0, len(rows), _ROWS_A_BATCH)
    ]


def metric_rows(points: Iterable[MetricPoint], client: Mapping[str, object]) -> Iterator[bytes]:
    """Yield one JSON object for each point: the fields of the client, then those of the point.

    `group_id` is the label of that name, which consumers and streams clients send. A value that is not finite is null,
    which JSON has no number for.
    """
    for point in points:
        row = {
            **client,
            "group_id": point.labels.get("group_id"),
            "metric": point.name,
            "kind": point.kind,
            "is_delta": point.is_delta,
            "labels": point.labels,
            "value": point.value if math.isfinite(point.value) else None,
            "start_time_ms": point.start_ns // 1_000_000,
            "time_ms": point.time_ns // 1_000_000,
        }
        yield json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def _topic(broker: Services) -> TopicDescription:
    topic = broker.metadata.topic(CLIENT_METRICS_TOPIC)
    return topic or broker.topics.add_topic(CLIENT_METRICS_TOPIC, 1, _TOPIC_CONFIGS)


# Attributes of a client that are part of its rows. The address has no port: it would make each connection another row.
_ROW_ATTRIBUTES = ("client_id", "client_software_name", "client_software_version", "client_source_address")


def _attributes(context: RequestContext) -> dict[str, str]:
    return {
        "client_id": context.client_id,
        "client_software_name": context.client_information.software_name,
        "client_software_version": context.client_information.software_version,
        "client_source_address": context.client_host.removeprefix("/"),
        "client_source_port": str(context.client_port),
    }


def _client_metrics(broker: Services) -> ClientMetrics:
    # Made with the first request of a client, as its module is imported with it.
    if broker.client_metrics is None:
        broker.client_metrics = ClientMetrics(lambda: broker.settings.client_metrics)
    return broker.client_metrics


APIS = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(handle_get_telemetry_subscriptions),
    ApiKey.PUSH_TELEMETRY: Api(handle_push_telemetry),
}
