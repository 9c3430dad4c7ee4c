"""The cluster of one broker: DescribeCluster, DescribeQuorum, UpdateFeatures."""

from __future__ import annotations

import dataclasses

from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32, i64, u16

from headrace.broker.config.dynamic_settings import SettingsRefused
from headrace.broker.metadata.features import FeatureUpdate
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    map_response,
    require_cluster,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.authorizer import ON_CLUSTER, UNKNOWN
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["APIS", "handle_describe_cluster", "handle_describe_quorum", "handle_update_features"]

BROKERS = 1
METADATA_TOPIC = "__cluster_metadata"


def handle_describe_cluster(
    request: m.describe_cluster_request.DescribeClusterRequest, context: RequestContext, broker: Services
) -> m.describe_cluster_response.DescribeClusterResponse:
    """DescribeCluster (API 60): this one broker.

    Version notes: v1 endpoint type (1 brokers, 2 controllers: there is none to ask separately); v2 fenced brokers.
    """
    r = m.describe_cluster_response
    host, port = broker.address_of(context)
    # Controllers have no endpoint of their own here, so asking for them is a mismatch (KIP-919).
    wrong = request.endpoint_type != BROKERS
    return r.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.mismatched_endpoint_type if wrong else ErrorCode.none,
        error_message="The request was sent to an endpoint of the wrong type: this is a broker." if wrong else None,
        endpoint_type=i8(BROKERS),
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.node_id,
        brokers=()
        if wrong
        else (r.DescribeClusterBroker(broker_id=broker.node_id, host=host, port=i32(port), is_fenced=False),),
        cluster_authorized_operations=ON_CLUSTER if request.include_cluster_authorized_operations else UNKNOWN,
    )


def handle_describe_quorum(
    request: m.describe_quorum_request.DescribeQuorumRequest, context: RequestContext, broker: Services
) -> m.describe_quorum_response.DescribeQuorumResponse:
    """DescribeQuorum (API 55): this broker is its own controller, a quorum of one.

    Version notes: v1 times of the replicas; v2 directory ids, error messages, the controllers' addresses. There is no
    metadata log; what stands for its end is the number of changes of the topics since the broker started, which is
    always caught up. The epoch is that of the broker's starts.
    """
    r = m.describe_quorum_response
    # One partition exists: `__cluster_metadata-0`. Every other question has the answer that it does not.
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        topics = tuple(
            r.TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(_unknown_partition(p.partition_index) for p in topic.partitions),
            )
            for topic in request.topics
        )
        return r.DescribeQuorumResponse(error_code=ErrorCode.none, error_message=None, topics=topics, nodes=())
    host, port = broker.address_of(context)
    # Tools compute a lag from these: the one voter is its own leader and never behind.
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
    listener = r.Listener(name=context.listener_name, host=host, port=u16(port))
    return r.DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=(r.TopicData(topic_name=request.topics[0].topic_name, partitions=(partition,)),),
        nodes=(r.Node(node_id=broker.node_id, listeners=(listener,)),),
    )


def _unknown_partition(partition: i32) -> m.describe_quorum_response.PartitionData:
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


def handle_update_features(
    request: m.update_features_request.UpdateFeaturesRequest, _context: RequestContext, broker: Services
) -> m.update_features_response.UpdateFeaturesResponse:
    """UpdateFeatures (API 57, KIP-584, KIP-778): finalised levels of features go up or down, all or none.

    Version notes: v0 knows no validate_only and only "a downgrade is allowed" (a safe one); v2 has one outcome for
    all.
    """
    code, message = ErrorCode.none, None
    updates = [
        FeatureUpdate(name=each.feature, level=int(each.max_version_level), upgrade_type=int(each.upgrade_type))
        for each in request.feature_updates
    ]
    # All or nothing, with one code for the request (version 2); older versions repeat it for each feature.
    try:
        broker.features.update(updates, validate_only=request.validate_only)
    except SettingsRefused as refusal:
        code, message = refusal.code, refusal.message
    return m.update_features_response.UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE, error_code=code, error_message=message
    )


# --- access rules ---


def authorize_describe_cluster(guarded: GuardedRequest) -> object:
    """Require no right; the bits are 0 without DESCRIBE."""
    if not guarded.request.include_cluster_authorized_operations:
        return guarded.handle()
    allow, context = guarded.allow, guarded.context
    seen = allow.on_cluster(context, Operation.DESCRIBE)
    bits = allow.operations(context, ResourceType.CLUSTER) if seen else i32(0)
    return map_response(
        guarded.handle(), lambda answer: dataclasses.replace(answer, cluster_authorized_operations=bits)
    )


APIS = {
    ApiKey.DESCRIBE_CLUSTER: Api(handle_describe_cluster, authorize_describe_cluster),
    ApiKey.DESCRIBE_QUORUM: Api(handle_describe_quorum, require_cluster(Operation.DESCRIBE)),
    ApiKey.UPDATE_FEATURES: Api(handle_update_features, require_cluster(Operation.ALTER)),
}
