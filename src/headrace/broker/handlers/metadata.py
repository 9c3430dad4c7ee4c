"""Metadata (API 3): brokers, topics, leaders.

Version notes: v0 asks for all topics by an empty list, v1+ by null; v4 may forbid auto-creation; v9 flexible; v10 adds
topic ids, v12 lets a client ask by id; v8-v10 may ask for authorized operations of the cluster too, which stay unknown;
v13 adds the top-level error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS, TopicDescription
from headrace.broker.metadata.topic_administration import TopicRefused, WantedTopic, illegal_topic_name
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorized_operations import ON_TOPIC
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.metadata_request.MetadataRequest, call: RequestContext, broker: Services
) -> m.metadata_response.MetadataResponse:
    """Answer one Metadata request."""
    r = m.metadata_response
    host, port = broker.address_of(call)
    if request.topics is None or (call.api_version == 0 and not request.topics):
        topics = tuple(_found(topic, broker) for topic in broker.metadata.topics())
    else:
        may_create = request.allow_auto_topic_creation or call.api_version < 4
        if may_create and broker.configuration.flag("auto.create.topics.enable"):
            refused = _create_missing(request.topics, broker)
        else:
            refused = {}
        topics = tuple(_asked_for(asked, broker, refused) for asked in request.topics)
    if request.include_topic_authorized_operations:
        topics = tuple(
            dataclasses.replace(topic, topic_authorized_operations=ON_TOPIC)
            if topic.error_code is ErrorCode.none
            else topic
            for topic in topics
        )
    return r.MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(r.MetadataResponseBroker(node_id=broker.node_id, host=host, port=i32(port)),),
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        error_code=ErrorCode.none,
    )


def _create_missing(named: Iterable[m.metadata_request.MetadataRequestTopic], broker: Services) -> dict[str, ErrorCode]:
    """Create what does not exist, with one write of the catalog. Returns what was refused.

    Topics beyond `headrace.request.max.created.topics` are unknown for now: clients ask again for those, and the next
    request creates as many more.
    """
    missing = [
        WantedTopic(name=asked.name)
        for asked in named
        if asked.topic_id is None
        and asked.name is not None
        and broker.metadata.topic(asked.name) is None
        and asked.name not in INTERNAL_TOPICS
        and illegal_topic_name(asked.name) is None
    ]
    if not missing:
        return {}
    wanted = missing[: broker.configuration.integer("headrace.request.max.created.topics")]
    outcomes = zip(wanted, broker.topics.create_all(wanted), strict=True)
    return {topic.name: outcome.code for topic, outcome in outcomes if isinstance(outcome, TopicRefused)}


def _asked_for(
    asked: m.metadata_request.MetadataRequestTopic, broker: Services, refused: Mapping[str, ErrorCode]
) -> m.metadata_response.MetadataResponseTopic:
    if asked.topic_id is not None:
        topic = broker.metadata.topic_by_id(asked.topic_id)
        if topic is None:
            return _missing(None, ErrorCode.unknown_topic_id, asked.topic_id)
        return _found(topic, broker)
    if asked.name is None:
        return _missing(None, ErrorCode.invalid_request)
    topic = broker.metadata.topic(asked.name)
    if topic is not None:
        return _found(topic, broker)
    if illegal_topic_name(asked.name) is not None:
        return _missing(asked.name, ErrorCode.invalid_topic_exception)
    return _missing(asked.name, refused.get(asked.name, ErrorCode.unknown_topic_or_partition))


def _found(topic: TopicDescription, broker: Services) -> m.metadata_response.MetadataResponseTopic:
    r = m.metadata_response
    node_id, leader_epoch = broker.node_id, i32(broker.metadata.leader_epoch)
    alone = (node_id,)
    return r.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            r.MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(partition),
                leader_id=node_id,
                leader_epoch=leader_epoch,
                replica_nodes=alone,
                isr_nodes=alone,
            )
            for partition in range(topic.partitions)
        ),
    )


def _missing(
    name: TopicName | None, code: ErrorCode, topic_id: UUID | None = None
) -> m.metadata_response.MetadataResponseTopic:
    return m.metadata_response.MetadataResponseTopic(
        error_code=code, name=name if name is not None else None, topic_id=topic_id, partitions=()
    )
