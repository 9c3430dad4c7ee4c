"""Topics and their leaders: Metadata, DescribeTopicPartitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS, TopicDescription
from headrace.broker.metadata.topic_administration import TopicRefused, WantedTopic, illegal_topic_name
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    map_response,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.authorizer import ON_TOPIC, UNKNOWN
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "handle_describe_topic_partitions", "handle_metadata"]

_Described = TypeVar(
    "_Described",
    "m.metadata_response.MetadataResponseTopic",
    "m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic",
)


def handle_metadata(
    request: m.metadata_request.MetadataRequest, context: RequestContext, broker: Services
) -> m.metadata_response.MetadataResponse:
    """Metadata (API 3): brokers, topics, leaders.

    Version notes: v0 asks for all topics by an empty list, v1+ by null; v4 may forbid auto-creation; v9 flexible; v10
    adds topic ids, v12 lets a client ask by id; v8-v10 may ask for authorized operations of the cluster too, which
    stay unknown; v13 adds the top-level error.
    """
    r = m.metadata_response
    host, port = broker.address_of(context)
    # Version 0 has no null: an empty list asks for all topics.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        topics = tuple(_topic(topic, broker) for topic in broker.metadata.topics())
    else:
        # Before version 4 a client could not forbid the creation of topics.
        may_create = request.allow_auto_topic_creation or context.api_version < 4
        if may_create and broker.configuration.flag("auto.create.topics.enable"):
            refused = _create_missing(request.topics, broker)
        else:
            refused = {}
        topics = tuple(_requested_topic(asked, broker, refused) for asked in request.topics)
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
        # Admin clients send changes to the controller: this broker is its own.
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
    # Clients retry unknown topics, so a bound on creations delays them and refuses none.
    wanted = missing[: broker.configuration.integer("headrace.request.max.created.topics")]
    outcomes = zip(wanted, broker.topics.create_all(wanted), strict=True)
    return {topic.name: outcome.code for topic, outcome in outcomes if isinstance(outcome, TopicRefused)}


def _requested_topic(
    asked: m.metadata_request.MetadataRequestTopic, broker: Services, refused: Mapping[str, ErrorCode]
) -> m.metadata_response.MetadataResponseTopic:
    if asked.topic_id is not None:
        topic = broker.metadata.topic_by_id(asked.topic_id)
        if topic is None:
            return _missing_topic(None, ErrorCode.unknown_topic_id, asked.topic_id)
        return _topic(topic, broker)
    if asked.name is None:
        return _missing_topic(None, ErrorCode.invalid_request)
    topic = broker.metadata.topic(asked.name)
    if topic is not None:
        return _topic(topic, broker)
    if illegal_topic_name(asked.name) is not None:
        return _missing_topic(asked.name, ErrorCode.invalid_topic_exception)
    return _missing_topic(asked.name, refused.get(asked.name, ErrorCode.unknown_topic_or_partition))


def _topic(topic: TopicDescription, broker: Services) -> m.metadata_response.MetadataResponseTopic:
    r = m.metadata_response
    node_id, leader_epoch = broker.node_id, i32(broker.metadata.leader_epoch)
    # One tuple for all partitions: a response for 1,000 topics of 100 partitions would otherwise hold 200,000 of them.
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


def _missing_topic(
    name: TopicName | None, code: ErrorCode, topic_id: UUID | None = None
) -> m.metadata_response.MetadataResponseTopic:
    return m.metadata_response.MetadataResponseTopic(
        error_code=code, name=name if name is not None else None, topic_id=topic_id, partitions=()
    )


def handle_describe_topic_partitions(
    request: m.describe_topic_partitions_request.DescribeTopicPartitionsRequest,
    context: RequestContext,
    broker: Services,
) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponse:
    """DescribeTopicPartitions (API 75): topics by name, page after page (KIP-966).

    One page has `response_partition_limit` partitions, at most `max.request.partition.size.limit`; the cursor says
    where the next one begins. No topics named means all. A cursor outside the named topics is refused for each of
    them.
    """
    r = m.describe_topic_partitions_response
    cursor = request.cursor
    first, first_partition = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    if cursor is not None and (
        first_partition < 0 or (request.topics and first not in {asked.name for asked in request.topics})
    ):
        refused = (_refused_topic(asked.name, ErrorCode.invalid_request, UNKNOWN) for asked in request.topics)
        return r.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=tuple(refused))
    asked_for = {asked.name for asked in request.topics} or _visible_topics(context, broker)
    # Sorted, so that a page can begin where the last one ended although topics were created or deleted in between.
    names = [name for name in sorted(asked_for) if name >= first]
    limit = max(
        1, min(request.response_partition_limit, broker.configuration.integer("max.request.partition.size.limit"))
    )
    topics, cursor_after = _page(names, first if cursor is not None else None, first_partition, limit, broker)
    return r.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=topics, next_cursor=cursor_after)


def _visible_topics(context: RequestContext, broker: Services) -> set[TopicName]:
    """The topics that this client may see."""
    may_see = broker.authorizer.on_topic
    return {TopicName(t.name) for t in broker.metadata.topics() if may_see(context, Operation.DESCRIBE, t.name)}


def _page(
    names: Iterable[TopicName], first: str | None, first_partition: int, limit: int, broker: Services
) -> tuple[
    tuple[m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic, ...],
    m.describe_topic_partitions_response.Cursor | None,
]:
    topics: list[m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic] = []
    # The cursor names the first partition of the next page, so a page may end within a topic.
    for name in names:
        if not limit:
            return tuple(topics), _cursor(name, 0)
        topic = broker.metadata.topic(name)
        if topic is None:
            legal = illegal_topic_name(name) is None
            code = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
            topics.append(_refused_topic(name, code))
            continue
        # Only the first topic of a page continues; the others begin at their first partition.
        begin = first_partition if name == first else 0
        end = min(topic.partitions, begin + limit)
        topics.append(_described_topic(topic, range(begin, end), broker))
        if end < topic.partitions:
            return tuple(topics), _cursor(name, end)
        limit -= max(0, end - begin)
    return tuple(topics), None


def _cursor(name: TopicName, partition: int) -> m.describe_topic_partitions_response.Cursor:
    return m.describe_topic_partitions_response.Cursor(topic_name=name, partition_index=i32(partition))


def _described_topic(
    topic: TopicDescription, partitions: range, broker: Services
) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic:
    r = m.describe_topic_partitions_response
    alone, leader_epoch = (broker.node_id,), i32(broker.metadata.leader_epoch)
    return r.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            r.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(partition),
                leader_id=broker.node_id,
                leader_epoch=leader_epoch,
                replica_nodes=alone,
                isr_nodes=alone,
                eligible_leader_replicas=(),
                last_known_elr=(),
            )
            for partition in partitions
        ),
        topic_authorized_operations=ON_TOPIC,
    )


def _refused_topic(
    name: TopicName, code: ErrorCode, operations: i32 = ON_TOPIC
) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic:
    return m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic(
        error_code=code,
        name=name,
        topic_id=None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=operations,
    )


# --- access rules ---


def authorize_metadata(guarded: GuardedRequest) -> object:
    """List what may be seen; refuse named topics, also those that do not exist, to reveal nothing."""
    request, context, allow = guarded.request, guarded.context, guarded.allow
    everything = request.topics is None or (context.api_version == 0 and not request.topics)

    def finished(answer: m.metadata_response.MetadataResponse) -> m.metadata_response.MetadataResponse:
        topics = [
            _with_operations(guarded, topic) if request.include_topic_authorized_operations else topic
            for topic in answer.topics
            if not everything or allow.on_topic(context, Operation.DESCRIBE, str(topic.name))
        ]
        return dataclasses.replace(answer, topics=(*topics, *denied.values()))

    denied: dict[m.metadata_request.MetadataRequestTopic, m.metadata_response.MetadataResponseTopic] = {}
    if everything:
        return map_response(guarded.handle(), finished)
    # A refused topic and a missing one look alike to a client without DESCRIBE, so that names cannot be probed.
    denied = {item: _metadata_refusal(item) for item in request.topics if not _may_see(guarded, item)}
    # Nothing is left of a list that means "none", not "all", in all versions that get here.
    rest = tuple(item for item in request.topics if item not in denied)
    if not rest and context.api_version == 0:
        rest_answer = guarded.handle(topics=None)
        return map_response(rest_answer, lambda answer: dataclasses.replace(answer, topics=tuple(denied.values())))
    return map_response(guarded.handle(topics=rest), finished)


def _may_see(guarded: GuardedRequest, item: m.metadata_request.MetadataRequestTopic) -> bool:
    name = guarded.topic_name(item.name, item.topic_id)
    if name is None:
        return True  # the handler answers that it is unknown
    if not guarded.allow.on_topic(guarded.context, Operation.DESCRIBE, name):
        return False
    request, broker = guarded.request, guarded.broker
    # A name that the request would create needs CREATE as well, or the refusal would come from the handler, which knows
    # no access rules.
    creates = (
        broker.metadata.topic(name) is None
        and (request.allow_auto_topic_creation or guarded.context.api_version < 4)
        and broker.configuration.flag("auto.create.topics.enable")
    )
    return not creates or guarded.may_create_topic(name)


def _metadata_refusal(
    item: m.metadata_request.MetadataRequestTopic,
) -> m.metadata_response.MetadataResponseTopic:
    """Refuse without the name when the request names an id."""
    return m.metadata_response.MetadataResponseTopic(
        error_code=ErrorCode.topic_authorization_failed,
        name=item.name if item.topic_id is None else None,
        topic_id=item.topic_id,
        is_internal=item.topic_id is None and item.name in INTERNAL_TOPICS,
        partitions=(),
    )


def authorize_describe_topic_partitions(guarded: GuardedRequest) -> object:
    """Refuse named topics that may not be seen; topics listed without names are filtered by the handler."""
    r = m.describe_topic_partitions_response

    def refuse(
        item: m.describe_topic_partitions_request.TopicRequest,
    ) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic:
        return r.DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.topic_authorization_failed,
            name=item.name,
            topic_id=None,
            is_internal=False,
            partitions=(),
        )

    def permitted(item: m.describe_topic_partitions_request.TopicRequest) -> bool:
        return guarded.allow.on_topic(guarded.context, Operation.DESCRIBE, item.name)

    def finished(
        answer: m.describe_topic_partitions_response.DescribeTopicPartitionsResponse,
    ) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponse:
        return dataclasses.replace(answer, topics=tuple(_with_operations(guarded, topic) for topic in answer.topics))

    return map_response(
        guarded.split("topics", "topics", permitted, ErrorCode.topic_authorization_failed, refuse), finished
    )


def _with_operations(guarded: GuardedRequest, topic: _Described) -> _Described:
    if topic.error_code is not ErrorCode.none:
        return topic
    bits = guarded.allow.operations(guarded.context, ResourceType.TOPIC, str(topic.name))
    return dataclasses.replace(topic, topic_authorized_operations=bits)


APIS = {
    ApiKey.METADATA: Api(handle_metadata, authorize_metadata),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(handle_describe_topic_partitions, authorize_describe_topic_partitions),
}
