"""StreamsGroupHeartbeat (API 88, KIP-1071): a member of a streams group joins, stays, acknowledges, leaves.

Version notes: v0 is Kafka 4.2's and 4.3's, v1 Kafka 4.4's; requests may say the same in both. Topic names in the
topology are checked here, at the door, as Kafka does; everything else is the coordinator's. Internal topics that the
group needs are created after the answer; why that failed is in the status of the next one, as in Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, cast

from kio.static.primitive import i32

from headrace.broker.coordinators import group_requests
from headrace.broker.metadata.cluster_metadata import INTERNAL_TOPICS
from headrace.broker.metadata.topic_administration import TopicAdministration, illegal_topic_name
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, STREAMS_GROUPS_OFF, Services
from headrace.coordinator.result import CoordinatorResult, Reply
from headrace.coordinator.streams.topics.topic_status import StatusCode
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms

_NAMED = 3
_INTERVALS = 2

if TYPE_CHECKING:
    Request = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest
    Response = m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse


def handle(request: Request, call: RequestContext, broker: Services) -> Response | Awaitable[Response]:
    """Answer one StreamsGroupHeartbeat request; the response is awaitable where it has to wait."""
    if not broker.serves_streams_groups:
        return refuse(ErrorCode.unsupported_version, STREAMS_GROUPS_OFF)
    if request.topology is not None:
        names = tuple(dict.fromkeys(_topic_names(request.topology)))
        internal = ",".join(name for name in names if name in INTERNAL_TOPICS)
        if internal:
            return refuse(
                ErrorCode.streams_invalid_topology,
                f"Use of Kafka internal topics {internal} in a Kafka Streams topology is prohibited.",
            )
        illegal = [name for name in names if illegal_topic_name(name) is not None]
        if illegal:
            return refuse(
                ErrorCode.streams_invalid_topology, f"Topic names {','.join(illegal)} are not valid topic names."
            )
        if not all(broker.authorizer.on_topic(call, Operation.DESCRIBE, name) for name in names):
            return refuse(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    return group_requests.write(
        broker,
        request.group_id,
        call,
        lambda shard, now_ms: _with_failures(
            _if_authorized(shard.streams_group_heartbeat(request, call.context, now_ms=now_ms), call, broker),
            broker.topics,
        ),
        refuse,
    )


def _topic_names(topology: m.streams_group_heartbeat_request.Topology) -> Iterator[str]:
    for subtopology in topology.subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _if_authorized(result: CoordinatorResult, call: RequestContext, broker: Services) -> CoordinatorResult:
    """Without CREATE of the cluster or of each missing topic, none is created, and the status names the reason, as in
    Kafka."""
    allow = broker.authorizer
    if not result.topics_to_create or allow.on_cluster(call, Operation.CREATE):
        return result
    missing = [t.name for t in result.topics_to_create if not allow.on_topic(call, Operation.CREATE, t.name)]
    if not missing:
        return result
    reason = f"; Unauthorized to CREATE on topics {', '.join(missing)}."
    replies = tuple(dataclasses.replace(reply, response=_explained(reply.response, reason)) for reply in result.replies)
    return dataclasses.replace(result, topics_to_create=(), replies=replies)


def _with_failures(result: CoordinatorResult, topics: TopicAdministration) -> CoordinatorResult:
    """MISSING_INTERNAL_TOPICS says why topics could not be created; of three of them. What failed within the last two
    heartbeat intervals is not tried again yet, as in Kafka."""
    if not result.topics_to_create:
        return result
    within_ms = _INTERVALS * max(to_ms(_response(reply).heartbeat_interval) for reply in result.replies)
    failures = {topic.name: topics.creation_failure(topic.name, within_ms) for topic in result.topics_to_create}
    failed = [f"{name} ({message})" for name, message in failures.items() if message is not None]
    if not failed:
        return result
    reason = "; Creation failed: " + ", ".join(failed[:_NAMED])
    if len(failed) > _NAMED:
        reason += f" and {len(failed) - _NAMED} more"
    return dataclasses.replace(
        result,
        topics_to_create=tuple(topic for topic in result.topics_to_create if failures[topic.name] is None),
        replies=tuple(
            dataclasses.replace(reply, response=_explained(reply.response, f"{reason}.")) for reply in result.replies
        ),
    )


def _response(reply: Reply) -> Response:
    return cast("Response", reply.response)


def _explained(response: Any, reason: str) -> Any:
    statuses = tuple(
        dataclasses.replace(status, status_detail=status.status_detail + reason)
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS
        else status
        for status in response.status or ()
    )
    return dataclasses.replace(response, status=statuses)


def refuse(code: ErrorCode, message: str) -> Response:
    """An error's answer carries the code and the message only."""
    return m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id="",
        member_epoch=i32(0),
        heartbeat_interval=NO_THROTTLE,
        task_offset_interval=NO_THROTTLE,
        status=(),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        endpoint_information_epoch=i32(0),
        partitions_by_user_endpoint=None,
    )
