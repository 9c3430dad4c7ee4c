"""OffsetDelete (API 47, KIP-496): committed positions of single partitions are forgotten.

Version notes: v0 only. Topics and partitions that do not exist are refused here; the rest is the coordinator's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.broker.coordinators import group_requests
from headrace.broker.logs.requested_partitions import divided, merge_topics
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.offset_delete_request.OffsetDeleteRequest
    RequestTopic = m.offset_delete_request.OffsetDeleteRequestTopic
    Response = m.offset_delete_response.OffsetDeleteResponse
    ResponseTopic = m.offset_delete_response.OffsetDeleteResponseTopic


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one OffsetDelete request; the response is awaitable where it has to wait."""
    known: list[RequestTopic] = []
    unknown: list[ResponseTopic] = []
    for asked in request.topics:
        topic = broker.metadata.topic(asked.name)
        count = topic.partitions if topic is not None else 0
        there, missing = divided(asked.partitions, count)
        if topic is not None:
            known.append(dataclasses.replace(asked, partitions=there))
        if missing:
            unknown.append(_unknown(dataclasses.replace(asked, partitions=missing)))
    resolved = dataclasses.replace(request, topics=tuple(known))

    def refuse(code: ErrorCode, _message: str) -> Response:
        return m.offset_delete_response.OffsetDeleteResponse(error_code=code, throttle_time=NO_THROTTLE, topics=())

    answer = group_requests.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: shard.offset_delete(resolved, call.context, now_ms=now_ms),
        refuse,
    )
    if isinstance(answer, Awaitable):
        return _complete_later(answer, unknown)
    return _completed(answer, unknown)


async def _complete_later(answer: Awaitable[Response], unknown: list[ResponseTopic]) -> Response:
    return _completed(await answer, unknown)


def _completed(answer: Response, unknown: list[ResponseTopic]) -> Response:
    """Each topic once."""
    if answer.error_code is not ErrorCode.none:
        return answer
    return dataclasses.replace(answer, topics=merge_topics((*answer.topics, *unknown)))


def _unknown(asked: RequestTopic) -> ResponseTopic:
    r = m.offset_delete_response
    return r.OffsetDeleteResponseTopic(
        name=asked.name,
        partitions=tuple(
            r.OffsetDeleteResponsePartition(
                partition_index=part.partition_index, error_code=ErrorCode.unknown_topic_or_partition
            )
            for part in asked.partitions
        ),
    )
