"""The short way of nearly every Produce request: read by hand, judged by its headers, appended, answered by hand.

Nothing is appended before all of the request is known to be eligible (`fast_path`,
`batch_fast_path.is_candidate`), to
go to topics that are there, and to be permitted; else the handler of Produce has it, with all rules and all errors.
What is found wrong later, in a batch itself, is judged by the log as ever, and answered for its partition alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kio.schema.types import TopicName

from headrace.broker.handlers import produce
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import fast_path
from headrace.protocol import messages as m
from headrace.protocol.fast_path import ProduceFrame
from headrace.protocol.request_codec import RequestHeader
from headrace.storage.batch_fast_path import is_candidate
from headrace.storage.partition_log import AppendResult

__all__ = ["NO_ANSWER", "append_fast_path"]

NO_ANSWER = b""
_ACKS = (-1, 0, 1)
# Requests with more batches are the handler's, which lets others have their turn in between.
_MOST_BATCHES = 128
_COUNTED_FROM_BYTES = 8 * 1024

Outcome = tuple[int, AppendResult | AppendRefused]


def append_fast_path(
    request: ProduceFrame, frame: bytes, context: Callable[[RequestHeader], RequestContext], broker: Services
) -> bytes | m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse] | None:
    """Return None, without side effects, if the request is not eligible for the fast path. Else the response: the bytes
    of its frame when all went well and no flush has to be awaited (`NO_ANSWER` for acks=0), or the handler's response.

    `context` makes the request context, which is needed only where access is checked.
    """
    topics = _known(request, frame, broker)
    if topics is None or (broker.authorizer.enabled and not _permitted(topics, context(request.header), broker)):
        return None
    logs, all_is_well = broker.logs, True
    appended, told = [], []
    for asked, topic in zip(request.topics, topics, strict=True):
        outcomes: list[Outcome] = []
        offsets: list[tuple[int, int, int]] = []
        for partition, start, end in asked.batches:
            try:
                result = logs.append_fast_path(topic, partition, frame, start, end)
                if result is None:
                    result = logs.append(topic, partition, frame[start:end])
                    all_is_well = all_is_well and result.log_append_time_ms < 0
                outcomes.append((partition, result))
                offsets.append((partition, result.base_offset, result.log_start_offset))
            except AppendRefused as refused:
                outcomes.append((partition, refused))
                all_is_well = False
        appended.append(outcomes)
        told.append((asked.key, offsets))
    if not request.acks:
        return NO_ANSWER
    if all_is_well and not (logs.some_wait and _waiting(topics, appended, broker)):
        return fast_path.produced(request.correlation_id, told)
    return _answer(request, topics, appended, broker)


def _known(request: ProduceFrame, frame: bytes, broker: Services) -> list[TopicDescription] | None:
    if request.acks not in _ACKS:
        return None
    if len(frame) > _COUNTED_FROM_BYTES and sum(len(asked.batches) for asked in request.topics) > _MOST_BATCHES:
        return None
    topics = []
    for asked in request.topics:
        topic = broker.metadata.topic_by_key(asked.key) if request.by_id else broker.metadata.topic(asked.name)
        if topic is None or topic.is_internal:
            return None
        for partition, start, end in asked.batches:
            if not 0 <= partition < topic.partitions or not is_candidate(frame, start, end):
                return None
        topics.append(topic)
    return topics


def _permitted(topics: list[TopicDescription], context: RequestContext, broker: Services) -> bool:
    return all(broker.authorizer.on_topic(context, Operation.WRITE, topic.name) for topic in topics)


def _answer(
    request: ProduceFrame, topics: list[TopicDescription], appended: list[list[Outcome]], broker: Services
) -> m.produce_response.ProduceResponse | Awaitable[m.produce_response.ProduceResponse]:
    """The response that the handler would return."""
    response = m.produce_response.ProduceResponse(
        responses=tuple(
            m.produce_response.TopicProduceResponse(
                name=TopicName("" if request.by_id else topic.name),
                topic_id=topic.topic_id if request.by_id else None,
                partition_responses=tuple(
                    produce.refused_part(partition, outcome)
                    if isinstance(outcome, AppendRefused)
                    else produce.appended_part(partition, outcome)
                    for partition, outcome in outcomes
                ),
            )
            for topic, outcomes in zip(topics, appended, strict=True)
        ),
        throttle_time=NO_THROTTLE,
    )
    waiting = _waiting(topics, appended, broker)
    return produce.when_flushed(response, waiting, broker) if waiting else response


def _waiting(
    topics: list[TopicDescription], appended: list[list[Outcome]], broker: Services
) -> list[tuple[TopicDescription, int]]:
    """The partitions whose answer has to wait for the disk."""
    return [
        (topic, partition)
        for topic, outcomes in zip(topics, appended, strict=True)
        for partition, outcome in outcomes
        if isinstance(outcome, AppendResult) and broker.logs.wait_for_flush(topic, partition)
    ]
