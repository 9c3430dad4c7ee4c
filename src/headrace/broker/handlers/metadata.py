"""Metadata (API 3): brokers, topics, leaders.

Version notes: v0 asks for all topics by an empty list, v1+ by null; v4 may forbid auto-creation; v9 flexible; v10 adds
topic ids, v12 lets a client ask by id; v8-v10 may ask for authorized operations of the cluster too, which stay unknown;
v13 adds the top-level error.
"""

from __future__ import annotations

import dataclasses
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.authorized_operations import ON_TOPIC
from headrace.broker.call import Call
from headrace.broker.cluster_metadata import INTERNAL_TOPICS, TopicDescription
from headrace.broker.services import NO_THROTTLE, Services
from headrace.broker.topic_administration import TopicRefused, illegal_topic_name
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.metadata_request.MetadataRequest, call: Call, broker: Services
) -> m.metadata_response.MetadataResponse:
    r = m.metadata_response
    host, port = broker.address(call)
    if request.topics is None or (call.api_version == 0 and not request.topics):
        topics = tuple(_found(topic, broker) for topic in broker.metadata.topics())
    else:
        may_create = request.allow_auto_topic_creation or call.api_version < 4
        topics = tuple(_asked_for(asked, broker, may_create) for asked in request.topics)
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


def _asked_for(
    asked: m.metadata_request.MetadataRequestTopic, broker: Services, may_create: bool
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
    if not may_create or not broker.configuration.flag("auto.create.topics.enable") or asked.name in INTERNAL_TOPICS:
        return _missing(asked.name, ErrorCode.unknown_topic_or_partition)
    try:
        topic, _ = broker.topics.create(asked.name)
    except TopicRefused as refusal:
        return _missing(asked.name, refusal.code)
    return _found(topic, broker) if topic is not None else _missing(asked.name, ErrorCode.unknown_topic_or_partition)


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
