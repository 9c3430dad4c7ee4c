"""OffsetCommit (API 8): positions of a group, per partition.

Version notes: v6 leader epochs; v7 instance ids; v8 flexible; v9 member epochs of the new groups (KIP-848); v10 topic
ids. Topics and partitions that do not exist are refused here, each alone; the rest is the coordinator's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from kio.schema.types import TopicName

from headrace.broker.coordinators import group_requests
from headrace.broker.logs.requested_partitions import divided, merge_topics
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.offset_commit_request.OffsetCommitRequest
    RequestTopic = m.offset_commit_request.OffsetCommitRequestTopic
    Response = m.offset_commit_response.OffsetCommitResponse
    ResponseTopic = m.offset_commit_response.OffsetCommitResponseTopic


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one OffsetCommit request; the response is awaitable where it has to wait."""
    known: list[RequestTopic] = []
    unknown: list[ResponseTopic] = []
    for asked in request.topics:
        topic = (
            broker.metadata.topic_by_id(asked.topic_id) if call.api_version >= 10 else broker.metadata.topic(asked.name)
        )
        if topic is None:
            code = ErrorCode.unknown_topic_id if call.api_version >= 10 else ErrorCode.unknown_topic_or_partition
            unknown.append(_all_partitions(asked, code))
            continue
        named = _named(asked, topic)
        there, missing = divided(asked.partitions, topic.partitions)
        if there:
            known.append(dataclasses.replace(named, partitions=there))
        if missing:
            gone = dataclasses.replace(named, partitions=missing)
            unknown.append(_all_partitions(gone, ErrorCode.unknown_topic_or_partition))
    if not known:
        return _response(unknown)
    resolved = dataclasses.replace(request, topics=tuple(known))

    def refuse(code: ErrorCode, _message: str) -> Response:
        return _response([*(_all_partitions(asked, code) for asked in known)])

    answer = group_requests.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: shard.offset_commit(resolved, call.context, now_ms=now_ms),
        refuse,
    )
    if isinstance(answer, Awaitable):
        return _complete_later(answer, unknown, broker)
    return _completed(answer, unknown, broker)


async def _complete_later(answer: Awaitable[Response], unknown: list[ResponseTopic], broker: Services) -> Response:
    return _completed(await answer, unknown, broker)


def _completed(answer: Response, unknown: list[ResponseTopic], broker: Services) -> Response:
    """Names and ids on both, since the version decides which of them travels."""
    topics = []
    for topic in answer.topics:
        described = broker.metadata.topic(topic.name) or broker.metadata.topic_by_id(topic.topic_id)
        topics.append(
            m.offset_commit_response.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=described.topic_id if described is not None else topic.topic_id,
                partitions=topic.partitions,
            )
        )
    return _response([*topics, *unknown])


def _named(asked: RequestTopic, topic: TopicDescription) -> RequestTopic:
    return m.offset_commit_request.OffsetCommitRequestTopic(
        name=TopicName(topic.name), topic_id=topic.topic_id, partitions=asked.partitions
    )


def _all_partitions(asked: RequestTopic, code: ErrorCode) -> ResponseTopic:
    return m.offset_commit_response.OffsetCommitResponseTopic(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=tuple(
            m.offset_commit_response.OffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=code
            )
            for part in asked.partitions
        ),
    )


def _response(topics: Iterable[ResponseTopic]) -> Response:
    """Each topic once."""
    return m.offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=merge_topics(topics))
