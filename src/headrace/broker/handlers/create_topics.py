"""CreateTopics (API 19): new topics, each with its own answer.

Version notes: v1 validate_only; v4 makes -1 partitions and replicas the broker's default; v5 flexible, returns the
configuration; v7 the topic id. A name that is in a request twice is refused in both places, as in Kafka.
"""

from __future__ import annotations

from collections import Counter

from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from headrace.broker.call import Call
from headrace.broker.config_sources import topic_setting
from headrace.broker.services import NO_THROTTLE, Services
from headrace.broker.topic_administration import TopicRefused
from headrace.broker.topic_configuration import TOPIC_SETTINGS
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import render_value

TOPIC_CONFIG = i8(1)


def handle(
    request: m.create_topics_request.CreateTopicsRequest, _call: Call, broker: Services
) -> m.create_topics_response.CreateTopicsResponse:
    named = Counter(topic.name for topic in request.topics)
    results: dict[str, m.create_topics_response.CreatableTopicResult] = {}
    for wanted in request.topics:
        if named[wanted.name] > 1:
            results[wanted.name] = _refused(wanted.name, ErrorCode.invalid_request, "Duplicate topic name.")
        else:
            results[wanted.name] = _create(wanted, broker, validate_only=request.validate_only)
    broker.topics.announce()
    return m.create_topics_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))


def _create(
    wanted: m.create_topics_request.CreatableTopic, broker: Services, *, validate_only: bool
) -> m.create_topics_response.CreatableTopicResult:
    configs = {config.name: config.value for config in wanted.configs}
    try:
        topic, partitions = broker.topics.create(
            wanted.name,
            partitions=wanted.num_partitions,
            replication_factor=wanted.replication_factor,
            assignments={assigned.partition_index: assigned.broker_ids for assigned in wanted.assignments},
            configs=configs,
            validate_only=validate_only,
            announce=False,
        )
    except TopicRefused as refusal:
        return _refused(wanted.name, refusal.code, refusal.message)
    return m.create_topics_response.CreatableTopicResult(
        name=wanted.name,
        topic_id=topic.topic_id if topic is not None else None,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        configs=tuple(_config(name, configs, broker) for name in TOPIC_SETTINGS),
    )


def _config(
    name: str, configs: dict[str, str | None], broker: Services
) -> m.create_topics_response.CreatableTopicConfigs:
    described = topic_setting(name, {}, broker.configuration)
    return m.create_topics_response.CreatableTopicConfigs(
        name=name,
        value=configs[name] if name in configs else render_value(described.value),
        read_only=False,
        config_source=TOPIC_CONFIG if name in configs else i8(described.source),
        is_sensitive=False,
    )


def _refused(name: TopicName, code: ErrorCode, message: str) -> m.create_topics_response.CreatableTopicResult:
    return m.create_topics_response.CreatableTopicResult(
        name=name, topic_id=None, error_code=code, error_message=message, configs=()
    )
