"""WriteTxnMarkers (API 27): markers by hand, which end transactions that hang.

Version notes: v1 flexible; v2 tells the transaction version. `kafka-transactions.sh abort` sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from kio.static.primitive import i32

from headrace.broker.coordinators.transaction_markers import TransactionMarker
from headrace.broker.logs.flusher import FlushFailed
from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

r = m.write_txn_markers_response
Response = r.WriteTxnMarkersResponse
Written = list[tuple[TopicDescription, int]]


def handle(
    request: m.write_txn_markers_request.WriteTxnMarkersRequest, _call: RequestContext, broker: Services
) -> Response | Awaitable[Response]:
    """Answer one WriteTxnMarkers request; the response is awaitable where it has to wait."""
    written: Written = []
    response = Response(markers=tuple(_marker(each, broker, written) for each in request.markers))
    waiting = [(topic, partition) for topic, partition in written if broker.logs.wait_for_flush(topic, partition)]
    return _when_flushed(response, waiting, broker) if waiting else response


async def _when_flushed(response: Response, waiting: Written, broker: Services) -> Response:
    """A marker whose fate on the disk is not known is not told: the operator's tool sends it again."""
    try:
        await asyncio.gather(*(broker.logs.flushed(topic, partition) for topic, partition in waiting))
    except FlushFailed:
        return Response(markers=())
    return response


def _marker(
    asked: m.write_txn_markers_request.WritableTxnMarker, broker: Services, written: Written
) -> r.WritableTxnMarkerResult:
    marker = TransactionMarker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        transaction_version=asked.transaction_version,
    )

    def write(name: str, partition: int) -> ErrorCode:
        topic = broker.metadata.topic(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return ErrorCode.unknown_topic_or_partition
        code = broker.markers.write_marker(topic, partition, marker)
        if code is ErrorCode.none:
            written.append((topic, partition))
        return code

    return r.WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=tuple(
            r.WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    r.WritableTxnMarkerPartitionResult(
                        partition_index=i32(partition), error_code=write(topic.name, partition)
                    )
                    for partition in topic.partition_indexes
                ),
            )
            for topic in asked.topics
        ),
    )
