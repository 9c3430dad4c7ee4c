"""OffsetFetch (API 9): committed positions of groups.

Version notes: v2 all topics by null; v6 flexible; v7 require_stable; v8 several groups; v9 member id and epoch of the
new groups (KIP-848); v10 topic ids: a topic that is gone has none, so it is left out of "all topics".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kio.schema.types import TopicName
from kio.static.primitive import i64

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Group = m.offset_fetch_request.OffsetFetchRequestGroup
    RequestTopic = m.offset_fetch_request.OffsetFetchRequestTopics
    ResponseGroup = m.offset_fetch_response.OffsetFetchResponseGroup
    ResponseTopic = m.offset_fetch_response.OffsetFetchResponseTopics


def handle(
    request: m.offset_fetch_request.OffsetFetchRequest, call: RequestContext, broker: Services
) -> m.offset_fetch_response.OffsetFetchResponse:
    """Answer one OffsetFetch request."""
    groups = tuple(_group(group, call, broker, require_stable=request.require_stable) for group in request.groups)
    return m.offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)


def _group(group: Group, call: RequestContext, broker: Services, *, require_stable: bool) -> ResponseGroup:
    by_id = call.api_version >= 10
    resolved, unknown = _resolve(group, broker) if by_id else (group, [])
    try:
        answer: ResponseGroup = broker.coordinator.shard_of(group.group_id).offset_fetch(
            resolved, call.context, require_stable=require_stable
        )
    except CoordinatorError as error:
        return m.offset_fetch_response.OffsetFetchResponseGroup(
            group_id=group.group_id, topics=(), error_code=error.code
        )
    if not answer.topics and not unknown:
        return answer
    return dataclasses.replace(answer, topics=(*_with_ids(answer.topics, broker, by_id=by_id), *unknown))


def _resolve(group: Group, broker: Services) -> tuple[Group, list[ResponseTopic]]:
    if group.topics is None:
        return group, []
    known: list[RequestTopic] = []
    unknown: list[ResponseTopic] = []
    for asked in group.topics:
        topic = broker.metadata.topic_by_id(asked.topic_id)
        if topic is None:
            unknown.append(_unknown(asked))
        else:
            known.append(dataclasses.replace(asked, name=TopicName(topic.name)))
    return dataclasses.replace(group, topics=tuple(known)), unknown


def _with_ids(topics: Iterable[ResponseTopic], broker: Services, *, by_id: bool) -> list[ResponseTopic]:
    result = []
    for topic in topics:
        described = broker.metadata.topic(topic.name)
        if described is not None:
            result.append(dataclasses.replace(topic, topic_id=described.topic_id))
        elif not by_id:
            result.append(topic)
    return result


def _unknown(asked: RequestTopic) -> ResponseTopic:
    return m.offset_fetch_response.OffsetFetchResponseTopics(
        topic_id=asked.topic_id,
        partitions=tuple(
            m.offset_fetch_response.OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=i64(-1),
                metadata="",
                error_code=ErrorCode.unknown_topic_id,
            )
            for partition in asked.partition_indexes
        ),
    )
