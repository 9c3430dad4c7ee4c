"""Fetch (API 1): whole record batches as they lie on the disk; waits for `min_bytes` at most `max_wait`.

Version notes: v5 log start offset; v7 fetch sessions (KIP-227): every answer here is a full one with session id 0,
which is legal, and a client that names a session is told that there is none; v9 leader epochs; v12 flexible; v13 topic
ids; v15 replica state in a tagged field; v16 leader hints. Limits (KIP-74): `max_bytes` and `partition_max_bytes`
bound the answer, but the first partition with data gets at least one batch, or the reader would stand still for ever.
There are no transactions yet, so the last stable offset is the high watermark.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kio.static.primitive import Records, i32, i64

from penstock.broker.call import Call
from penstock.broker.cluster_metadata import LEADER_EPOCH, TopicDescription
from penstock.broker.partition_logs import ReadRefused
from penstock.broker.services import NO_THROTTLE, Services
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.units import to_ms

READ_COMMITTED = 1

if TYPE_CHECKING:
    Request = m.fetch_request.FetchRequest
    Response = m.fetch_response.FetchResponse


def handle(request: Request, call: Call, broker: Services) -> Response | Awaitable[Response]:
    if request.session_id != 0 and request.session_epoch > 0:
        return _answer((), ErrorCode.fetch_session_id_not_found)
    reading = _Reading(request, call, broker)
    responses = reading.read()
    max_wait_ms = to_ms(request.max_wait)
    if reading.bytes >= request.min_bytes or reading.refused or max_wait_ms <= 0 or not reading.partitions:
        return _answer(responses)
    return _wait_and_read(request, call, broker, reading, max_wait_ms)


async def _wait_and_read(
    request: Request, call: Call, broker: Services, reading: _Reading, max_wait_ms: int
) -> Response:
    missing = request.min_bytes - reading.bytes
    await broker.delayed_fetches.wait(reading.partitions, missing_bytes=missing, timeout_ms=max_wait_ms)
    return _answer(_Reading(request, call, broker).read())


def _answer(
    responses: tuple[m.fetch_response.FetchableTopicResponse, ...], code: ErrorCode = ErrorCode.none
) -> Response:
    return m.fetch_response.FetchResponse(throttle_time=NO_THROTTLE, error_code=code, responses=responses)


class _Reading:
    """One pass over the request's partitions, with the bytes that are left to give out."""

    def __init__(self, request: Request, call: Call, broker: Services) -> None:
        self._request = request
        self._broker = broker
        self._left = min(request.max_bytes, broker.configuration.integer("fetch.max.bytes"))
        self._aborted = () if request.isolation_level == READ_COMMITTED else None
        self._by_id = call.api_version >= 13
        self.bytes = 0
        self.refused = False
        self.partitions: list[tuple[str, int]] = []

    def read(self) -> tuple[m.fetch_response.FetchableTopicResponse, ...]:
        return tuple(
            m.fetch_response.FetchableTopicResponse(
                topic=asked.topic,
                topic_id=asked.topic_id,
                partitions=self._topic(asked),
            )
            for asked in self._request.topics
        )

    def _topic(self, asked: m.fetch_request.FetchTopic) -> tuple[m.fetch_response.PartitionData, ...]:
        metadata = self._broker.metadata
        topic = metadata.topic_by_id(asked.topic_id) if self._by_id else metadata.topic(asked.topic)
        return tuple(self._partition(topic, part) for part in asked.partitions)

    def _partition(
        self, topic: TopicDescription | None, part: m.fetch_request.FetchPartition
    ) -> m.fetch_response.PartitionData:
        if topic is None:
            return self._refuse(
                part, ErrorCode.unknown_topic_id if self._by_id else ErrorCode.unknown_topic_or_partition
            )
        if not 0 <= part.partition < topic.partitions:
            return self._refuse(part, ErrorCode.unknown_topic_or_partition)
        if part.current_leader_epoch > LEADER_EPOCH:
            return self._refuse(part, ErrorCode.unknown_leader_epoch)
        log = self._broker.logs.view(topic, part.partition)
        limit = max(0, min(part.partition_max_bytes, self._left))
        try:
            records = log.read(part.fetch_offset, limit, min_one_batch=self.bytes == 0)
        except ReadRefused as refused:
            return self._refuse(part, refused.code, log.log_start_offset, log.high_watermark)
        self.bytes += len(records)
        self._left -= len(records)
        self.partitions.append((topic.name, part.partition))
        return m.fetch_response.PartitionData(
            partition_index=part.partition,
            error_code=ErrorCode.none,
            high_watermark=i64(log.high_watermark),
            last_stable_offset=i64(log.high_watermark),
            log_start_offset=i64(log.log_start_offset),
            aborted_transactions=self._aborted,
            records=Records(records),
        )

    def _refuse(
        self,
        part: m.fetch_request.FetchPartition,
        code: ErrorCode,
        log_start_offset: int = -1,
        high_watermark: int = -1,
    ) -> m.fetch_response.PartitionData:
        self.refused = True
        return m.fetch_response.PartitionData(
            partition_index=i32(part.partition),
            error_code=code,
            high_watermark=i64(high_watermark),
            log_start_offset=i64(log_start_offset),
            aborted_transactions=self._aborted,
            records=Records(b""),
        )
