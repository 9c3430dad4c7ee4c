"""Checks of the APIs about topics and the cluster: what is refused, hidden, and told of the caller's own rights."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.partial_response import Checked, then
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["create_topics", "delete_topics", "describe_cluster", "describe_topic_partitions", "metadata", "name_of"]

_FAILED = ErrorCode.topic_authorization_failed


def name_of(checked: Checked, name: str | None, topic_id: UUID | None) -> str | None:
    """The name of a topic that is asked for by name or by id; None for an unknown id."""
    if topic_id is None:
        return name
    topic = checked.broker.metadata.topic_by_id(topic_id)
    return topic.name if topic is not None else None


def metadata(checked: Checked) -> Any:
    """Without a name: what may be seen. By name: a refusal, also for what does not exist, to reveal nothing."""
    request, call, allow = checked.request, checked.call, checked.allow
    everything = request.topics is None or (call.api_version == 0 and not request.topics)

    def finished(answer: Any) -> Any:
        topics = [
            _with_operations(checked, topic) if request.include_topic_authorized_operations else topic
            for topic in answer.topics
            if not everything or allow.on_topic(call, Operation.DESCRIBE, topic.name)
        ]
        return dataclasses.replace(answer, topics=(*topics, *denied.values()))

    denied: dict[Any, Any] = {}
    if everything:
        return then(checked.handled(), finished)
    denied = {item: _metadata_refusal(item) for item in request.topics if not _may_see(checked, item)}
    # Nothing is left of a list that means "none", not "all", in all versions that get here.
    rest = tuple(item for item in request.topics if item not in denied)
    if not rest and call.api_version == 0:
        rest_answer = checked.handled(topics=None)
        return then(rest_answer, lambda answer: dataclasses.replace(answer, topics=tuple(denied.values())))
    return then(checked.handled(topics=rest), finished)


def _may_see(checked: Checked, item: Any) -> bool:
    name = name_of(checked, item.name, item.topic_id)
    if name is None:
        return True  # the handler answers that it is unknown
    if not checked.allow.on_topic(checked.call, Operation.DESCRIBE, name):
        return False
    request, broker = checked.request, checked.broker
    creates = (
        broker.metadata.topic(name) is None
        and (request.allow_auto_topic_creation or checked.call.api_version < 4)
        and broker.configuration.flag("auto.create.topics.enable")
    )
    return not creates or _may_create(checked, name)


def _may_create(checked: Checked, name: str) -> bool:
    allow, call = checked.allow, checked.call
    return allow.on_cluster(call, Operation.CREATE) or allow.on_topic(call, Operation.CREATE, name)


def _metadata_refusal(item: Any) -> Any:
    """Refuse without the name when the request names an id."""
    return m.metadata_response.MetadataResponseTopic(
        error_code=_FAILED,
        name=item.name if item.topic_id is None else None,
        topic_id=item.topic_id,
        is_internal=item.topic_id is None and item.name in INTERNAL_TOPICS,
        partitions=(),
    )


def _with_operations(checked: Checked, topic: Any) -> Any:
    if topic.error_code is not ErrorCode.none:
        return topic
    bits = checked.allow.operations(checked.call, ResourceType.TOPIC, topic.name)
    return dataclasses.replace(topic, topic_authorized_operations=bits)


def describe_cluster(checked: Checked) -> Any:
    """Needs no right; the bits are 0 without DESCRIBE."""
    if not checked.request.include_cluster_authorized_operations:
        return checked.handled()
    allow, call = checked.allow, checked.call
    seen = allow.on_cluster(call, Operation.DESCRIBE)
    bits = allow.operations(call, ResourceType.CLUSTER) if seen else i32(0)
    return then(checked.handled(), lambda answer: dataclasses.replace(answer, cluster_authorized_operations=bits))


def describe_topic_partitions(checked: Checked) -> Any:
    """Refuse named topics that may not be seen; topics listed without names are filtered by the handler."""
    r = m.describe_topic_partitions_response

    def refuse(item: Any) -> Any:
        return r.DescribeTopicPartitionsResponseTopic(
            error_code=_FAILED, name=item.name, topic_id=None, is_internal=False, partitions=()
        )

    def permitted(item: Any) -> bool:
        return checked.allow.on_topic(checked.call, Operation.DESCRIBE, item.name)

    def finished(answer: Any) -> Any:
        return dataclasses.replace(answer, topics=tuple(_with_operations(checked, topic) for topic in answer.topics))

    return then(checked.split("topics", "topics", permitted, _FAILED, refuse), finished)


def create_topics(checked: Checked) -> Any:
    """The configuration of a new topic is returned with DESCRIBE_CONFIGS only."""
    r = m.create_topics_response

    def refuse(item: Any) -> Any:
        return r.CreatableTopicResult(
            name=item.name, topic_id=None, error_code=_FAILED, error_message="Authorization failed.", configs=()
        )

    def shown(topic: Any) -> Any:
        if topic.error_code is not ErrorCode.none or checked.allow.on_topic(
            checked.call, Operation.DESCRIBE_CONFIGS, topic.name
        ):
            return topic
        return dataclasses.replace(
            topic,
            topic_config_error_code=i16(_FAILED.value),
            num_partitions=i32(-1),
            replication_factor=i16(-1),
            configs=(),
        )

    return then(
        checked.split("topics", "topics", lambda item: _may_create(checked, item.name), _FAILED, refuse),
        lambda answer: dataclasses.replace(answer, topics=tuple(map(shown, answer.topics))),
    )


def delete_topics(checked: Checked) -> Any:
    """DELETE of the cluster is enough for all. Who asks by id without DESCRIBE does not learn the name."""
    r, allow, call = m.delete_topics_response, checked.allow, checked.call

    def permitted(item: Any) -> bool:
        name = name_of(checked, item.name, item.topic_id)
        if name is None or allow.on_cluster(call, Operation.DELETE):
            return True
        if checked.broker.metadata.topic(name) is None and allow.on_topic(call, Operation.DESCRIBE, name):
            return True  # it may know that there is none
        return allow.on_topic(call, Operation.DELETE, name)

    def refuse(item: Any) -> Any:
        name = name_of(checked, item.name, item.topic_id)
        seen = name is not None and (item.topic_id is None or allow.on_topic(call, Operation.DESCRIBE, name))
        return r.DeletableTopicResult(
            name=TopicName(name) if seen and name is not None else None,
            topic_id=item.topic_id,
            error_code=_FAILED,
            error_message="Topic authorization failed.",
        )

    return checked.split("topics", "responses", permitted, _FAILED, refuse)
