"""DescribeQuorum (API 55): this broker is its own controller, a quorum of one.

Version notes: v1 times of the replicas; v2 directory ids, error messages, the controllers' addresses. There is no
metadata log; what stands for its end is the number of changes of the topics since the broker started, which is always
caught up. The epoch is that of the broker's starts.
"""

from __future__ import annotations

from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64, u16

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.services import Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

METADATA_TOPIC = "__cluster_metadata"


def handle(
    request: m.describe_quorum_request.DescribeQuorumRequest, call: RequestContext, broker: Services
) -> m.describe_quorum_response.DescribeQuorumResponse:
    """Answer one DescribeQuorum request."""
    r = m.describe_quorum_response
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        topics = tuple(
            r.TopicData(
                topic_name=topic.topic_name, partitions=tuple(_unknown(p.partition_index) for p in topic.partitions)
            )
            for topic in request.topics
        )
        return r.DescribeQuorumResponse(error_code=ErrorCode.none, error_message=None, topics=topics, nodes=())
    host, port = broker.address_of(call)
    end, now_ms = i64(broker.metadata.version), i64(broker.logs.now_ms())
    voter = r.ReplicaState(
        replica_id=broker.node_id,
        replica_directory_id=None,
        log_end_offset=end,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = r.PartitionData(
        partition_index=i32(0),
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=broker.node_id,
        leader_epoch=i32(broker.metadata.leader_epoch + 1),
        high_watermark=end,
        current_voters=(voter,),
        observers=(),
    )
    listener = r.Listener(name=call.listener_name, host=host, port=u16(port))
    return r.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=(r.TopicData(topic_name=request.topics[0].topic_name, partitions=(partition,)),),
        nodes=(r.Node(node_id=broker.node_id, listeners=(listener,)),),
    )


def _unknown(partition: i32) -> m.describe_quorum_response.PartitionData:
    return m.describe_quorum_response.PartitionData(
        partition_index=partition,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message=None,
        leader_id=BrokerId(0),
        leader_epoch=i32(0),
        high_watermark=i64(0),
        current_voters=(),
        observers=(),
    )
