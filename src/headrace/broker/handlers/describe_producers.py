"""DescribeProducers (API 61, KIP-664): who has written to a partition, and who has a transaction open there.

Version notes: v0 only. `kafka-transactions.sh find-hanging` and `describe-producers` send it.
"""

from __future__ import annotations

from kio.schema.types import ProducerId
from kio.static.primitive import i32, i64

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.errors import StorageError

r = m.describe_producers_response


def handle(
    request: m.describe_producers_request.DescribeProducersRequest, _call: RequestContext, broker: Services
) -> r.DescribeProducersResponse:
    """Answer one DescribeProducers request."""
    return r.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            r.TopicResponse(
                name=topic.name,
                partitions=tuple(_partition(topic.name, index, broker) for index in topic.partition_indexes),
            )
            for topic in request.topics
        ),
    )


def _partition(name: str, partition: int, broker: Services) -> r.PartitionResponse:
    topic = broker.metadata.topic(name)
    if topic is None or not 0 <= partition < topic.partitions:
        return _response(partition, ErrorCode.unknown_topic_or_partition)
    try:
        log = broker.logs.log(topic, partition)
    except StorageError:
        return _response(partition, ErrorCode.kafka_storage_error)
    if log is None:
        return _response(partition, ErrorCode.none)
    return _response(
        partition,
        ErrorCode.none,
        tuple(
            r.ProducerState(
                producer_id=ProducerId(producer.producer_id),
                producer_epoch=i32(producer.producer_epoch),
                last_sequence=i32(producer.last_sequence),
                last_timestamp=i64(producer.last_timestamp_ms),
                coordinator_epoch=i32(producer.coordinator_epoch),
                current_txn_start_offset=i64(producer.transaction_start_offset),
            )
            for producer in log.producers.describe()
        ),
    )


def _response(partition: int, code: ErrorCode, producers: tuple[r.ProducerState, ...] = ()) -> r.PartitionResponse:
    return r.PartitionResponse(
        partition_index=i32(partition), error_code=code, error_message=None, active_producers=producers
    )
