"""DescribeCluster (API 60): this one broker.

Version notes: v1 endpoint type (1 brokers, 2 controllers: there is none to ask separately); v2 fenced brokers.
"""

from __future__ import annotations

from kio.static.primitive import i8, i32

from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.authorized_operations import ON_CLUSTER, UNKNOWN
from headrace.broker.services import NO_THROTTLE, Services
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

BROKERS = 1


def handle(
    request: m.describe_cluster_request.DescribeClusterRequest, call: RequestContext, broker: Services
) -> m.describe_cluster_response.DescribeClusterResponse:
    """Answer one DescribeCluster request."""
    r = m.describe_cluster_response
    host, port = broker.address_of(call)
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
