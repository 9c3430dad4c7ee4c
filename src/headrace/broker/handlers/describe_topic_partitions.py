"""DescribeTopicPartitions (API 75): topics by name, page after page (KIP-966).

One page has `response_partition_limit` partitions, at most `max.request.partition.size.limit`; the cursor says where
the next one begins. No topics named means all. A cursor outside the named topics is refused for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS, TopicDescription
from headrace.broker.metadata.topic_administration import illegal_topic_name
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.security.authorized_operations import ON_TOPIC, UNKNOWN
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.describe_topic_partitions_request.DescribeTopicPartitionsRequest, call: RequestContext, broker: Services
) -> m.describe_topic_partitions_response.DescribeTopicPartitionsResponse:
    """Answer one DescribeTopicPartitions request."""
    r = m.describe_topic_partitions_response
    cursor = request.cursor
    first, first_partition = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    if cursor is not None and (
        first_partition < 0 or (request.topics and first not in {asked.name for asked in request.topics})
    ):
        refused = (_missing(asked.name, ErrorCode.invalid_request, UNKNOWN) for asked in request.topics)
        return r.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=tuple(refused))
    asked_for = {asked.name for asked in request.topics} or _listed(call, broker)
    names = [name for name in sorted(asked_for) if name >= first]
    limit = max(
        1, min(request.response_partition_limit, broker.configuration.integer("max.request.partition.size.limit"))
    )
    topics, cursor_after = _page(names, first if cursor is not None else None, first_partition, limit, broker)
    return r.DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=topics, next_cursor=cursor_after)


def _listed(call: RequestContext, broker: Services) -> set[TopicName]:
    """The topics that this client may see."""
    may_see = broker.authorizer.on_topic
    return {TopicName(t.name) for t in broker.metadata.topics() if may_see(call, Operation.DESCRIBE, t.name)}


def _page(
    names: Iterable[TopicName], first: str | None, first_partition: int, limit: int, broker: Services
) -> tuple[
    tuple[m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic, ...],
    m.describe_topic_partitions_response.Cursor | None,
]:
    topics: list[m.describe_topic_partitions_response.DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if not limit:
            return tuple(topics), _cursor(name, 0)
        topic = broker.metadata.topic(name)
        if topic is None:
            legal = illegal_topic_name(name) is None
            code = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
            topics.append(_missing(name, code))
            continue
        begin = first_partition if name == first else 0
        end = min(topic.partitions, begin + limit)
        topics.append(_found(topic, range(begin, end), broker))
        if end < topic.partitions:
            return tuple(topics), _cursor(name, end)
        limit -= max(0, end - begin)
    return tuple(topics), None


def _cursor(name: TopicName, partition: int) -> m.describe_topic_partitions_response.Cursor:
    return m.describe_topic_partitions_response.Cursor(topic_name=name, partition_index=i32(partition))


def _found(
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


def _missing(
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
