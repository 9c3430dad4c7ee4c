"""OffsetDelete (API 47, KIP-496): committed positions of single partitions are forgotten.

Version notes: v0 only. Topics that do not exist are refused here, as in Kafka; the rest is the coordinator's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker import group_calls
from penstock.broker.call import Call
from penstock.broker.services import NO_THROTTLE, Services
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.offset_delete_request.OffsetDeleteRequest
    Response = m.offset_delete_response.OffsetDeleteResponse
    ResponseTopic = m.offset_delete_response.OffsetDeleteResponseTopic


def handle(request: Request, call: Call, broker: Services) -> Response | Awaitable[Response]:
    known = tuple(asked for asked in request.topics if broker.metadata.topic(asked.name) is not None)
    unknown = tuple(_unknown(asked) for asked in request.topics if broker.metadata.topic(asked.name) is None)
    resolved = dataclasses.replace(request, topics=known)

    def refuse(code: ErrorCode, _message: str) -> Response:
        return m.offset_delete_response.OffsetDeleteResponse(error_code=code, throttle_time=NO_THROTTLE, topics=())

    answer = group_calls.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: shard.offset_delete(resolved, call.context, now_ms=now_ms),
        refuse,
    )
    if isinstance(answer, Awaitable):
        return _complete_later(answer, unknown)
    return _completed(answer, unknown)


async def _complete_later(answer: Awaitable[Response], unknown: tuple[ResponseTopic, ...]) -> Response:
    return _completed(await answer, unknown)


def _completed(answer: Response, unknown: tuple[ResponseTopic, ...]) -> Response:
    if answer.error_code is not ErrorCode.none:
        return answer
    return dataclasses.replace(answer, topics=(*answer.topics, *unknown))


def _unknown(asked: m.offset_delete_request.OffsetDeleteRequestTopic) -> ResponseTopic:
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
