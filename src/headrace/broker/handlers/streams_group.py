"""Streams groups (KIP-1071): StreamsGroupHeartbeat, StreamsGroupDescribe."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator
from typing import cast

from kio.static.primitive import i32

from headrace.broker.handlers.groups import authorize_described_groups, hide_group
from headrace.broker.metadata.cluster_metadata import KAFKA_INTERNAL_TOPICS
from headrace.broker.metadata.topic_administration import TopicAdministration, illegal_topic_name
from headrace.broker.requests.partial_response import (
    MESSAGES,
    Api,
    GuardedRequest,
    map_response,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.security.authorizer import ON_GROUP
from headrace.broker.services import NO_THROTTLE, STREAMS_GROUPS_OFF, Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorResult, Reply
from headrace.coordinator.streams.internal_topics import StatusCode
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms

__all__ = ["APIS", "handle_streams_group_describe", "handle_streams_group_heartbeat"]

# Kafka 4.4 names up to three topics in a status, so that a topology of hundreds does not fill every heartbeat.
_MOST_NAMED_FAILURES = 3
_FAILURE_INTERVALS = 2


def handle_streams_group_heartbeat(
    request: m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest, context: RequestContext, broker: Services
) -> (
    m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse
    | Awaitable[m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse]
):
    """StreamsGroupHeartbeat (API 88, KIP-1071): a member of a streams group joins, stays, acknowledges, leaves.

    Version notes: v0 is Kafka 4.2's and 4.3's, v1 Kafka 4.4's; requests may say the same in both. Topic names in the
    topology are checked here, at the door, as Kafka does; everything else is the coordinator's. Internal topics that
    the group needs are created after the answer; why that failed is in the status of the next one, as in Kafka.
    """
    if not broker.features.serves_streams_groups:
        return refuse_heartbeat(ErrorCode.unsupported_version, STREAMS_GROUPS_OFF)
    if request.topology is not None:
        names = tuple(dict.fromkeys(_topic_names(request.topology)))
        # Kafka checks these in KafkaApis, before the coordinator: the order decides which error a wrong topology gets.
        internal = ",".join(name for name in names if name in KAFKA_INTERNAL_TOPICS)
        if internal:
            return refuse_heartbeat(
                ErrorCode.streams_invalid_topology,
                f"Use of Kafka internal topics {internal} in a Kafka Streams topology is prohibited.",
            )
        illegal = [name for name in names if illegal_topic_name(name) is not None]
        if illegal:
            return refuse_heartbeat(
                ErrorCode.streams_invalid_topology, f"Topic names {','.join(illegal)} are not valid topic names."
            )
        if not all(broker.authorizer.on_topic(context, Operation.DESCRIBE, name) for name in names):
            return refuse_heartbeat(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    return broker.coordinator.answer(
        request.group_id,
        context,
        lambda shard, now_ms: _with_creation_failures(
            _without_unauthorized_topics(
                shard.streams_group_heartbeat(request, context.coordinator, now_ms=now_ms), context, broker
            ),
            broker.topics,
        ),
        refuse_heartbeat,
    )


def _topic_names(
    topology: m.streams_group_heartbeat_request.Topology | m.streams_group_describe_response.Topology,
) -> Iterator[str]:
    for subtopology in topology.subtopologies or ():
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _without_unauthorized_topics(
    result: CoordinatorResult, context: RequestContext, broker: Services
) -> CoordinatorResult:
    """Remove internal topics that the client may not create, and name the reason in the status, as in Kafka.

    Required is CREATE of the cluster or of each missing topic.
    """
    allow = broker.authorizer
    # CREATE on the cluster covers every topic; otherwise each missing one is asked.
    if not result.topics_to_create or allow.on_cluster(context, Operation.CREATE):
        return result
    missing = [t.name for t in result.topics_to_create if not allow.on_topic(context, Operation.CREATE, t.name)]
    if not missing:
        return result
    reason = f"; Unauthorized to CREATE on topics {', '.join(missing)}."
    # All or none: a group with half of its internal topics cannot run either.
    replies = tuple(
        dataclasses.replace(reply, response=_with_reason(_response(reply), reason)) for reply in result.replies
    )
    return dataclasses.replace(result, topics_to_create=(), replies=replies)


def _with_creation_failures(result: CoordinatorResult, topics: TopicAdministration) -> CoordinatorResult:
    """MISSING_INTERNAL_TOPICS says why topics could not be created; of three of them. What failed within the last two
    heartbeat intervals is not tried again yet, as in Kafka."""
    if not result.topics_to_create:
        return result
    # A failure is reported for two heartbeat intervals, so that each member sees it at least once; then creation is
    # tried again.
    within_ms = _FAILURE_INTERVALS * max(to_ms(_response(reply).heartbeat_interval) for reply in result.replies)
    failures = {topic.name: topics.creation_failure(topic.name, within_ms) for topic in result.topics_to_create}
    failed = [f"{name} ({message})" for name, message in failures.items() if message is not None]
    if not failed:
        return result
    reason = "; Creation failed: " + ", ".join(failed[:_MOST_NAMED_FAILURES])
    if len(failed) > _MOST_NAMED_FAILURES:
        reason += f" and {len(failed) - _MOST_NAMED_FAILURES} more"
    return dataclasses.replace(
        result,
        topics_to_create=tuple(topic for topic in result.topics_to_create if failures[topic.name] is None),
        replies=tuple(
            dataclasses.replace(reply, response=_with_reason(_response(reply), f"{reason}."))
            for reply in result.replies
        ),
    )


def _response(reply: Reply) -> m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse:
    return cast("m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse", reply.response)


def _with_reason(
    response: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse, reason: str
) -> m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse:
    statuses = tuple(
        dataclasses.replace(status, status_detail=status.status_detail + reason)
        if int(status.status_code) == StatusCode.MISSING_INTERNAL_TOPICS
        else status
        for status in response.status or ()
    )
    return dataclasses.replace(response, status=statuses)


def refuse_heartbeat(code: ErrorCode, message: str) -> m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse:
    """Return the response of an error: its code and message only."""
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


def handle_streams_group_describe(
    request: m.streams_group_describe_request.StreamsGroupDescribeRequest, context: RequestContext, broker: Services
) -> m.streams_group_describe_response.StreamsGroupDescribeResponse:
    """StreamsGroupDescribe (API 89, KIP-1071): topology, members, assignments and targets of streams groups.

    Version notes: v0 is Kafka 4.2's and 4.3's, v1 Kafka 4.4's.
    """
    groups: list[m.streams_group_describe_response.DescribedGroup] = []
    for group_id in request.group_ids:
        try:
            if not broker.features.serves_streams_groups:
                raise CoordinatorError(ErrorCode.unsupported_version, STREAMS_GROUPS_OFF)
            shard = broker.coordinator.shard_of(group_id)
            groups += shard.streams_group_describe(
                (group_id,), context.coordinator, wants_description=request.include_topology_description
            )
        except CoordinatorError as error:
            groups.append(
                m.streams_group_describe_response.DescribedGroup(
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="",
                    group_epoch=i32(0),
                    assignment_epoch=i32(0),
                    members=(),
                )
            )
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.streams_group_describe_response.StreamsGroupDescribeResponse(
        throttle_time=NO_THROTTLE, groups=tuple(groups)
    )


# --- access rules ---


def authorize_streams_group_heartbeat(guarded: GuardedRequest) -> object:
    """Check READ of the group.

    The handler asks for DESCRIBE of every topic in the topology, once that is known to be legal, and for CREATE of the
    internal topics that are missing.
    """
    if guarded.allow.on_group(guarded.context, Operation.READ, guarded.request.group_id):
        return guarded.handle()
    return refuse_heartbeat(ErrorCode.group_authorization_failed, MESSAGES[ErrorCode.group_authorization_failed])


def authorize_streams_group_describe(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the group and of the topics of its topology. One hidden topic hides the group."""

    def shown(
        group: m.streams_group_describe_response.DescribedGroup,
    ) -> m.streams_group_describe_response.DescribedGroup:
        names = _topic_names(group.topology) if group.topology is not None else iter(())
        # One hidden topic hides the whole group, as in Kafka: the topology would reveal its name.
        if all(guarded.allow.on_topic(guarded.context, Operation.DESCRIBE, name) for name in names):
            return group
        hidden = hide_group(group, "The described group uses topics that the client is not authorized to describe.")
        return dataclasses.replace(hidden, topology=None)

    return map_response(
        authorize_described_groups(guarded, "group_ids"),
        lambda answer: dataclasses.replace(answer, groups=tuple(map(shown, answer.groups))),
    )


APIS = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: Api(handle_streams_group_heartbeat, authorize_streams_group_heartbeat),
    ApiKey.STREAMS_GROUP_DESCRIBE: Api(handle_streams_group_describe, authorize_streams_group_describe),
}
