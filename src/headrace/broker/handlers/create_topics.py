"""CreateTopics (API 19): new topics, each with its own answer.

Version notes: v1 validate_only; v4 makes -1 partitions and replicas the broker's default; v5 flexible, returns the
configuration; v7 the topic id. A name that is in a request twice is refused in both places, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32

from headrace.broker.config.config_sources import topic_setting
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS
from headrace.broker.metadata.topic_administration import TopicRefused, WantedTopic
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import render_value

TOPIC_CONFIG = i8(1)
# org.apache.kafka.controller.ReplicationControlManager: of all topics of one request together.
MOST_PARTITIONS = 10_000
_TOO_MANY = "Excessively large number of partitions per request."


def handle(
    request: m.create_topics_request.CreateTopicsRequest, _call: RequestContext, broker: Services
) -> m.create_topics_response.CreateTopicsResponse:
    """Answer one CreateTopics request."""
    named = Counter(topic.name for topic in request.topics)
    results = {name: _refused(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in named}
    once = [topic for topic in request.topics if named[topic.name] == 1]
    wanted = [_wanted(topic) for topic in once]
    default = broker.configuration.integer("num.partitions")
    most = broker.configuration.integer("headrace.request.max.created.topics")
    if len(wanted) > most:
        reason = f"Too many topics in one request: headrace.request.max.created.topics is {most}."
        results |= {topic.name: _refused(topic.name, ErrorCode.policy_violation, reason) for topic in once}
    elif sum(len(topic.assignments) or max(topic.partitions, 0) or default for topic in wanted) > MOST_PARTITIONS:
        results |= {topic.name: _refused(topic.name, ErrorCode.policy_violation, _TOO_MANY) for topic in once}
    else:
        shared = _Defaults(broker)
        outcomes = broker.topics.create_all(wanted, validate_only=request.validate_only)
        for topic, outcome in zip(wanted, outcomes, strict=True):
            name = TopicName(topic.name)
            if isinstance(outcome, TopicRefused):
                results[name] = _refused(name, outcome.code, outcome.message)
            else:
                results[name] = _created(topic, outcome, shared, broker)
    return m.create_topics_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))


def _wanted(topic: m.create_topics_request.CreatableTopic) -> WantedTopic:
    return WantedTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={assigned.partition_index: assigned.broker_ids for assigned in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


class _Defaults:
    """The form of settings that a new topic does not set itself: the same for all topics of a request."""

    def __init__(self, broker: Services) -> None:
        self._told = {name: _default(name, broker) for name in TOPIC_SETTINGS}
        self._all = tuple(self._told.values())

    def told(self, configs: Mapping[str, str | None]) -> tuple[m.create_topics_response.CreatableTopicConfigs, ...]:
        """All settings of a topic with these of its own."""
        if not configs:
            return self._all
        return tuple(_own(name, configs[name]) if name in configs else told for name, told in self._told.items())


def _created(
    wanted: WantedTopic, partitions: int, defaults: _Defaults, broker: Services
) -> m.create_topics_response.CreatableTopicResult:
    topic = broker.metadata.topic(wanted.name)
    return m.create_topics_response.CreatableTopicResult(
        name=TopicName(wanted.name),
        topic_id=topic.topic_id if topic is not None else None,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        configs=defaults.told(wanted.configs),
    )


def _own(name: str, value: str | None) -> m.create_topics_response.CreatableTopicConfigs:
    return m.create_topics_response.CreatableTopicConfigs(
        name=name, value=value, read_only=False, config_source=TOPIC_CONFIG, is_sensitive=False
    )


def _default(name: str, broker: Services) -> m.create_topics_response.CreatableTopicConfigs:
    described = topic_setting(name, {}, broker.configuration)
    return m.create_topics_response.CreatableTopicConfigs(
        name=name,
        value=render_value(described.value),
        read_only=False,
        config_source=i8(described.source),
        is_sensitive=False,
    )


def _refused(name: TopicName, code: ErrorCode, message: str) -> m.create_topics_response.CreatableTopicResult:
    return m.create_topics_response.CreatableTopicResult(
        name=name, topic_id=None, error_code=code, error_message=message, configs=()
    )
