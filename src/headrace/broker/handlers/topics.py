"""Topics are created, deleted and grown: CreateTopics, DeleteTopics, CreatePartitions.

All three count against the quota `controller_mutation_rate` (KIP-599).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from headrace.broker.config.topic_configuration import TOPIC_SETTINGS, topic_setting
from headrace.broker.metadata.topic_administration import TopicRefused, WantedTopic
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    Message,
    map_response,
    require_topics,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.settings import render_value

__all__ = ["APIS", "handle_create_partitions", "handle_create_topics", "handle_delete_topics"]

# From this version on a client understands THROTTLING_QUOTA_EXCEEDED; older ones are let through, and wait.
_STRICT_SINCE = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
_RESULT_FIELDS = {
    ApiKey.CREATE_TOPICS: "topics",
    ApiKey.DELETE_TOPICS: "responses",
    ApiKey.CREATE_PARTITIONS: "results",
}
_QUOTA_EXCEEDED = "The throttling quota has been exceeded."
TOPIC_CONFIG = i8(1)
# org.apache.kafka.controller.ReplicationControlManager: of all topics of one request together.
MOST_PARTITIONS = 10_000
_TOO_MANY = "Excessively large number of partitions per request."


def handle_create_topics(
    request: m.create_topics_request.CreateTopicsRequest, context: RequestContext, broker: Services
) -> m.create_topics_response.CreateTopicsResponse:
    """CreateTopics (API 19): new topics, each with its own answer.

    Version notes: v1 validate_only; v4 makes -1 partitions and replicas the broker's default; v5 flexible, returns the
    configuration; v7 the topic id. A name that is in a request twice is refused in both places, as in Kafka.
    """
    # A name that stands twice is refused in both places, as in Kafka (`ReplicationControlManager.createTopics`): which
    # of the two was meant cannot be known.
    named = Counter(topic.name for topic in request.topics)
    results = {name: _refused_topic(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in named}
    once = [topic for topic in request.topics if named[topic.name] == 1]
    wanted = [_wanted_topic(topic, context, broker) for topic in once]
    # Two bounds on one request, both refused as a whole before anything is created: ours on topics, Kafka's on
    # partitions.
    default = broker.configuration.integer("num.partitions")
    most = broker.configuration.integer("headrace.request.max.created.topics")
    if len(wanted) > most:
        reason = f"Too many topics in one request: headrace.request.max.created.topics is {most}."
        results |= {topic.name: _refused_topic(topic.name, ErrorCode.policy_violation, reason) for topic in once}
    elif sum(len(topic.assignments) or max(topic.partitions, 0) or default for topic in wanted) > MOST_PARTITIONS:
        results |= {topic.name: _refused_topic(topic.name, ErrorCode.policy_violation, _TOO_MANY) for topic in once}
    else:
        # Nearly all topics of a request have the same settings; describing them once makes 1,000 topics cheap.
        shared = _DefaultConfigs(broker)
        outcomes = broker.topics.create_all(wanted, validate_only=request.validate_only)
        for topic, outcome in zip(wanted, outcomes, strict=True):
            name = TopicName(topic.name)
            if isinstance(outcome, TopicRefused):
                results[name] = _refused_topic(name, outcome.code, outcome.message)
            else:
                results[name] = _created_topic(topic, outcome, shared, broker)
    return m.create_topics_response.CreateTopicsResponse(throttle_time=NO_THROTTLE, topics=tuple(results.values()))


def _wanted_topic(
    topic: m.create_topics_request.CreatableTopic, context: RequestContext, broker: Services
) -> WantedTopic:
    return WantedTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={assigned.partition_index: assigned.broker_ids for assigned in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
        may_be_internal=broker.may_write_internal(context, topic.name),
    )


class _DefaultConfigs:
    """The form of settings that a new topic does not set itself: the same for all topics of a request."""

    def __init__(self, broker: Services) -> None:
        self._defaults = {name: _default_config(name, broker) for name in TOPIC_SETTINGS}
        self._all = tuple(self._defaults.values())

    def effective(
        self, configs: Mapping[str, str | None]
    ) -> tuple[m.create_topics_response.CreatableTopicConfigs, ...]:
        """Return all settings of a topic with these of its own."""
        if not configs:
            return self._all
        return tuple(
            _own_config(name, configs[name]) if name in configs else default for name, default in self._defaults.items()
        )


def _created_topic(
    wanted: WantedTopic, partitions: int, defaults: _DefaultConfigs, broker: Services
) -> m.create_topics_response.CreatableTopicResult:
    topic = broker.metadata.topic(wanted.name)
    return m.create_topics_response.CreatableTopicResult(
        name=TopicName(wanted.name),
        topic_id=topic.topic_id if topic is not None else None,
        error_code=ErrorCode.none,
        error_message=None,
        num_partitions=i32(partitions),
        replication_factor=i16(1),
        configs=defaults.effective(wanted.configs),
    )


def _own_config(name: str, value: str | None) -> m.create_topics_response.CreatableTopicConfigs:
    return m.create_topics_response.CreatableTopicConfigs(
        name=name, value=value, read_only=False, config_source=TOPIC_CONFIG, is_sensitive=False
    )


def _default_config(name: str, broker: Services) -> m.create_topics_response.CreatableTopicConfigs:
    described = topic_setting(name, {}, broker.configuration)
    return m.create_topics_response.CreatableTopicConfigs(
        name=name,
        value=render_value(described.value),
        read_only=False,
        config_source=i8(described.source),
        is_sensitive=False,
    )


def _refused_topic(name: TopicName, code: ErrorCode, message: str) -> m.create_topics_response.CreatableTopicResult:
    return m.create_topics_response.CreatableTopicResult(
        name=name, topic_id=None, error_code=code, error_message=message, configs=()
    )


def handle_delete_topics(
    request: m.delete_topics_request.DeleteTopicsRequest, _context: RequestContext, broker: Services
) -> m.delete_topics_response.DeleteTopicsResponse:
    """DeleteTopics (API 20): by name, or by id.

    Version notes: v4 flexible; v5 error message; v6 topics by name or id.
    """
    results = tuple(_delete_topic(asked, broker) for asked in request.topics)
    return m.delete_topics_response.DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=results)


def _delete_topic(
    asked: m.delete_topics_request.DeleteTopicState, broker: Services
) -> m.delete_topics_response.DeletableTopicResult:
    # Exactly one of name and id (v6). Both would be ambiguous if they name different topics.
    if asked.topic_id is not None:
        if asked.name is not None:
            return _deletion(
                asked.name,
                asked.topic_id,
                ErrorCode.invalid_request,
                "You may not specify both topic name and topic id.",
            )
        topic, missing = broker.metadata.topic_by_id(asked.topic_id), ErrorCode.unknown_topic_id
    elif asked.name is not None:
        topic, missing = broker.metadata.topic(asked.name), ErrorCode.unknown_topic_or_partition
    else:
        return _deletion(None, None, ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    if topic is None:
        return _deletion(asked.name, asked.topic_id, missing, None)
    try:
        broker.topics.delete(topic)
    except TopicRefused as refusal:
        return _deletion(asked.name, asked.topic_id, refusal.code, refusal.message)
    return _deletion(TopicName(topic.name), topic.topic_id, ErrorCode.none, None)


def _deletion(
    name: TopicName | None, topic_id: UUID | None, code: ErrorCode, message: str | None
) -> m.delete_topics_response.DeletableTopicResult:
    return m.delete_topics_response.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=code, error_message=message
    )


def handle_create_partitions(
    request: m.create_partitions_request.CreatePartitionsRequest, _context: RequestContext, broker: Services
) -> m.create_partitions_response.CreatePartitionsResponse:
    """CreatePartitions (API 37): a topic grows.

    Version notes: v2 flexible. `count` is the new total.
    """
    results = []
    for asked in request.topics:
        code, message = _create_partitions(asked, broker, validate_only=request.validate_only)
        results.append(
            m.create_partitions_response.CreatePartitionsTopicResult(
                name=TopicName(asked.name), error_code=code, error_message=message
            )
        )
    return m.create_partitions_response.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results))


def _create_partitions(
    asked: m.create_partitions_request.CreatePartitionsTopic, broker: Services, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    topic = broker.metadata.topic(asked.name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"The topic '{asked.name}' does not exist."
    # Only the number of listed partitions counts: there is one broker to place them on.
    listed = len(asked.assignments) if asked.assignments is not None else None
    try:
        broker.topics.grow(topic, asked.count, listed, validate_only=validate_only)
    except TopicRefused as refusal:
        return refusal.code, refusal.message
    return ErrorCode.none, None


# --- access rules ---


def authorize_create_topics(guarded: GuardedRequest) -> object:
    """Check CREATE of each topic. The configuration of a new topic is returned with DESCRIBE_CONFIGS only."""
    r = m.create_topics_response

    def refuse(item: m.create_topics_request.CreatableTopic) -> m.create_topics_response.CreatableTopicResult:
        return r.CreatableTopicResult(
            name=item.name,
            topic_id=None,
            error_code=ErrorCode.topic_authorization_failed,
            error_message="Authorization failed.",
            configs=(),
        )

    def shown(
        topic: m.create_topics_response.CreatableTopicResult,
    ) -> m.create_topics_response.CreatableTopicResult:
        if topic.error_code is not ErrorCode.none or guarded.allow.on_topic(
            guarded.context, Operation.DESCRIBE_CONFIGS, topic.name
        ):
            return topic
        return dataclasses.replace(
            topic,
            topic_config_error_code=i16(ErrorCode.topic_authorization_failed.value),
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            configs=(),
        )

    return map_response(
        guarded.split(
            "topics",
            "topics",
            lambda item: guarded.may_create_topic(item.name),
            ErrorCode.topic_authorization_failed,
            refuse,
        ),
        lambda answer: dataclasses.replace(answer, topics=tuple(map(shown, answer.topics))),
    )


def authorize_delete_topics(guarded: GuardedRequest) -> object:
    """Check DELETE of each topic; DELETE of the cluster is enough for all.

    Who asks by id without DESCRIBE does not learn the name.
    """
    r, allow, context = m.delete_topics_response, guarded.allow, guarded.context

    def permitted(item: m.delete_topics_request.DeleteTopicState) -> bool:
        name = guarded.topic_name(item.name, item.topic_id)
        if name is None or allow.on_cluster(context, Operation.DELETE):
            return True
        if guarded.broker.metadata.topic(name) is None and allow.on_topic(context, Operation.DESCRIBE, name):
            return True  # it may know that there is none
        return allow.on_topic(context, Operation.DELETE, name)

    def refuse(item: m.delete_topics_request.DeleteTopicState) -> m.delete_topics_response.DeletableTopicResult:
        name = guarded.topic_name(item.name, item.topic_id)
        seen = name is not None and (item.topic_id is None or allow.on_topic(context, Operation.DESCRIBE, name))
        return r.DeletableTopicResult(
            name=TopicName(name) if seen and name is not None else None,
            topic_id=item.topic_id,
            error_code=ErrorCode.topic_authorization_failed,
            error_message="Topic authorization failed.",
        )

    return guarded.split("topics", "responses", permitted, ErrorCode.topic_authorization_failed, refuse)


# --- the quota of topic changes ---


def _with_mutation_quota(key: ApiKey, handle: Callable[..., object]) -> Callable[..., object]:
    """Return the handler behind `controller_mutation_rate` (KIP-599)."""

    def handle_metered(request: Message, context: RequestContext, broker: Services) -> object:
        if not broker.quotas.active or getattr(request, "validate_only", False):
            return handle(request, context, broker)
        return _limit_mutations(key, request, context, partial(handle, broker=broker), broker)

    return handle_metered


def _limit_mutations(
    key: ApiKey,
    request: Message,
    context: RequestContext,
    handle: Callable[[Message, RequestContext], object],
    broker: Services,
) -> object:
    waited = 0

    # The quota is asked topic by topic: those that fit into the burst are made, the rest is refused with
    # THROTTLING_QUOTA_EXCEEDED.
    def permitted(item: Message) -> bool:
        nonlocal waited
        count = _partition_count(key, item, broker)
        now_ms = broker.clock.now_ms()
        waiting_ms = broker.quotas.mutation_throttle_ms(context.principal.name, context.client_id, count, now_ms)
        waited = max(waited, waiting_ms)
        return not waiting_ms or context.api_version < _STRICT_SINCE[key]

    def with_throttle_time(answer: Message) -> object:
        refused = (
            dataclasses.replace(item, error_message=_QUOTA_EXCEEDED)
            if item.error_code is ErrorCode.throttling_quota_exceeded
            else item
            for item in getattr(answer, _RESULT_FIELDS[key])
        )
        wait: i32Timedelta = from_ms(waited)
        return dataclasses.replace(answer, throttle_time=wait, **{_RESULT_FIELDS[key]: tuple(refused)})

    guarded = GuardedRequest(key, request, context, broker, handle)
    answer = guarded.split("topics", _RESULT_FIELDS[key], permitted, ErrorCode.throttling_quota_exceeded)
    return map_response(answer, with_throttle_time) if waited else answer


def _partition_count(key: ApiKey, item: Message, broker: Services) -> int:
    """Return the number of partitions that the request creates or deletes."""
    if key is ApiKey.CREATE_TOPICS:
        default = broker.configuration.integer("num.partitions")
        return len(item.assignments) or (item.num_partitions if item.num_partitions > 0 else default)
    metadata = broker.metadata
    by_id = getattr(item, "topic_id", None)
    topic = metadata.topic_by_id(by_id) if by_id is not None else metadata.topic(item.name)
    if topic is None:
        return 0
    return topic.partitions if key is ApiKey.DELETE_TOPICS else max(0, item.count - topic.partitions)


APIS = {
    ApiKey.CREATE_TOPICS: Api(
        _with_mutation_quota(ApiKey.CREATE_TOPICS, handle_create_topics), authorize_create_topics
    ),
    ApiKey.DELETE_TOPICS: Api(
        _with_mutation_quota(ApiKey.DELETE_TOPICS, handle_delete_topics), authorize_delete_topics
    ),
    ApiKey.CREATE_PARTITIONS: Api(
        _with_mutation_quota(ApiKey.CREATE_PARTITIONS, handle_create_partitions),
        require_topics(Operation.ALTER, answered="results"),
    ),
}
