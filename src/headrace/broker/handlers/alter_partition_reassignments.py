"""AlterPartitionReassignments (API 45): a partition stays where it is, on this one broker.

Version notes: v1 `allow_replication_factor_change`. To ask for what is there already is fine, anything else names a
broker that does not exist; there is never a reassignment that could be cancelled. Words are Kafka's.
"""

from __future__ import annotations

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

_NONE_TO_CANCEL = "No partition reassignment is in progress."


def handle(
    request: m.alter_partition_reassignments_request.AlterPartitionReassignmentsRequest,
    _call: RequestContext,
    broker: Services,
) -> m.alter_partition_reassignments_response.AlterPartitionReassignmentsResponse:
    """Answer one AlterPartitionReassignments request."""
    r = m.alter_partition_reassignments_response
    return r.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            r.ReassignableTopicResponse(
                name=topic.name, partitions=tuple(_partition(topic.name, part, broker) for part in topic.partitions)
            )
            for topic in request.topics
        ),
    )


def _partition(
    name: str, part: m.alter_partition_reassignments_request.ReassignablePartition, broker: Services
) -> m.alter_partition_reassignments_response.ReassignablePartitionResponse:
    code, message = _outcome(name, part, broker)
    return m.alter_partition_reassignments_response.ReassignablePartitionResponse(
        partition_index=part.partition_index, error_code=code, error_message=message
    )


def _outcome(
    name: str, part: m.alter_partition_reassignments_request.ReassignablePartition, broker: Services
) -> tuple[ErrorCode, str | None]:
    topic = broker.metadata.topic(name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {name}."
    if not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find partition {name}:{part.partition_index}."
    if part.replicas is None:
        return ErrorCode.no_reassignment_in_progress, _NONE_TO_CANCEL
    if not part.replicas:
        return (
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        )
    if len(set(part.replicas)) < len(part.replicas):
        twice = next(replica for replica in part.replicas if part.replicas.count(replica) > 1)
        return (
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes the broker {twice} more than once.",
        )
    for replica in part.replicas:
        if replica != broker.node_id:
            return (
                ErrorCode.invalid_replica_assignment,
                f"The manual partition assignment includes broker {replica}, but no such broker is registered.",
            )
    return ErrorCode.none, None
