"""StreamsGroupHeartbeat (API 88, KIP-1071): a member of a streams group joins, stays, acknowledges, leaves.

Version notes: v0 is Kafka 4.2's and 4.3's. Topic names in the topology are checked here, at the door, as Kafka does;
everything else is the coordinator's. Internal topics the group needs are created after the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

from kio.static.primitive import i32

from penstock.broker import group_calls
from penstock.broker.call import Call
from penstock.broker.cluster_metadata import INTERNAL_TOPICS
from penstock.broker.services import NO_THROTTLE, Services
from penstock.broker.topic_administration import illegal_topic_name
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    Request = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest
    Response = m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse


def handle(request: Request, call: Call, broker: Services) -> Response | Awaitable[Response]:
    if request.topology is not None:
        for name in _topic_names(request.topology):
            if name in INTERNAL_TOPICS:
                return _refuse(
                    ErrorCode.streams_invalid_topology, f"Use of Kafka internal topics is prohibited: {name}"
                )
            if illegal_topic_name(name) is not None:
                return _refuse(ErrorCode.streams_invalid_topology, f"Topic name {name} is invalid.")
    return group_calls.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: shard.streams_group_heartbeat(request, call.context, now_ms=now_ms),
        _refuse,
    )


def _topic_names(topology: m.streams_group_heartbeat_request.Topology) -> Iterator[str]:
    for subtopology in topology.subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _refuse(code: ErrorCode, message: str) -> Response:
    """An error's answer carries the code and the message only."""
    return m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id="",
        member_epoch=i32(0),
        heartbeat_interval=NO_THROTTLE,
        acceptable_recovery_lag=i32(0),
        task_offset_interval=NO_THROTTLE,
        status=None,
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        endpoint_information_epoch=i32(0),
        partitions_by_user_endpoint=None,
    )
