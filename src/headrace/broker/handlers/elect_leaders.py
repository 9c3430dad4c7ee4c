"""ElectLeaders (API 43): the only replica of a partition is its leader already.

Version notes: v1 election type; v2 flexible. Without topics all are meant, and those that need no election are left
out of the answer, as in Kafka.
"""

from __future__ import annotations

from kio.schema.types import TopicName
from kio.static.primitive import i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def handle(
    request: m.elect_leaders_request.ElectLeadersRequest, _call: RequestContext, broker: Services
) -> m.elect_leaders_response.ElectLeadersResponse:
    """Answer one ElectLeaders request."""
    r = m.elect_leaders_response
    if request.topic_partitions is None:
        results = tuple(
            r.ReplicaElectionResult(topic=TopicName(topic.name), partition_result=())
            for topic in broker.metadata.topics()
        )
    else:
        results = tuple(
            r.ReplicaElectionResult(
                topic=asked.topic,
                partition_result=tuple(_partition(asked.topic, partition, broker) for partition in asked.partitions),
            )
            for asked in request.topic_partitions
        )
    return r.ElectLeadersResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, replica_election_results=results
    )


def _partition(name: str, partition: i32, broker: Services) -> m.elect_leaders_response.PartitionResult:
    topic = broker.metadata.topic(name)
    code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    if topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such topic as {name}"
    elif not 0 <= partition < topic.partitions:
        code, message = ErrorCode.unknown_topic_or_partition, f"No such partition as {name}-{partition}"
    return m.elect_leaders_response.PartitionResult(partition_id=partition, error_code=code, error_message=message)
