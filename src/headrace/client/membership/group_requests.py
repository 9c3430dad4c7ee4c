"""Requests of members of classic groups and of consumer groups (KIP-848), and the parsing of assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from headrace.client.membership.group_events import GroupIdentity, SubscribedTopics
from headrace.protocol import messages as m
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_FOR_A_WHILE_EPOCH",
    "PROTOCOL_TYPE",
    "HeartbeatSettings",
    "TopicIdPartition",
    "assigned_partitions",
    "classic_heartbeat_request",
    "consumer_heartbeat_request",
    "consumer_leave_request",
    "join_group_request",
    "leave_group_request",
    "sync_group_request",
    "topic_names_request",
]

PROTOCOL_TYPE = "consumer"


def join_group_request(
    group_id: str,
    identity: GroupIdentity,
    protocols: Iterable[tuple[str, bytes]],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str,
) -> RequestMessage:
    """Return a JoinGroup request.

    Args:
        group_id: The group.
        identity: The member; its id is empty for the first join.
        protocols: (assignor name, encoded subscription) in order of preference.
        session_timeout_ms: `session.timeout.ms`.
        rebalance_timeout_ms: How long the coordinator waits for members to join again.
        reason: The reason for the join, for the broker's log (KIP-800).
    """
    request = m.join_group_request
    return request.JoinGroupRequest(
        group_id=GroupId(group_id),
        session_timeout=from_ms(session_timeout_ms),
        rebalance_timeout=from_ms(rebalance_timeout_ms),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        # The coordinator refuses a member whose protocol type differs from the group's, or that has no protocol in
        # common with all others (INCONSISTENT_GROUP_PROTOCOL).
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(request.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols),
        reason=reason,
    )


def sync_group_request(
    group_id: str, identity: GroupIdentity, protocol_name: str, assignments: Mapping[str, bytes]
) -> RequestMessage:
    """Return a SyncGroup request; `assignments` holds those of all members if sent by the leader, else none."""
    request = m.sync_group_request
    return request.SyncGroupRequest(
        group_id=GroupId(group_id),
        generation_id=i32(identity.generation),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        # Since SyncGroup v5 type and name must be those of the generation (KIP-559).
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=tuple(
            request.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ),
    )


def classic_heartbeat_request(group_id: str, identity: GroupIdentity) -> RequestMessage:
    """Return a Heartbeat request."""
    return m.heartbeat_request.HeartbeatRequest(
        group_id=GroupId(group_id),
        generation_id=i32(identity.generation),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
    )


def leave_group_request(group_id: str, identity: GroupIdentity, reason: str) -> RequestMessage:
    """Return a LeaveGroup request for one member."""
    request = m.leave_group_request
    member = request.MemberIdentity(member_id=identity.member_id, group_instance_id=identity.instance_id, reason=reason)
    return request.LeaveGroupRequest(group_id=GroupId(group_id), members=(member,))


TopicIdPartition = tuple[UUID, int]
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2

ConsumerHeartbeat = m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
ConsumerHeartbeatResponse = m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """Settings of a consumer group's member that never change. `server_assignor` None: the group's default."""

    group_id: str
    rebalance_timeout_ms: int
    rack_id: str | None = None
    server_assignor: str | None = None


def consumer_heartbeat_request(
    settings: HeartbeatSettings,
    identity: GroupIdentity,
    *,
    member_epoch: int,
    wanted: SubscribedTopics | None,
    owned: Iterable[TopicIdPartition] | None,
    full: bool,
    forget_regex: bool = False,
) -> ConsumerHeartbeat:
    """Return a ConsumerGroupHeartbeat request.

    Args:
        settings: The member's settings.
        identity: The member.
        member_epoch: Its epoch, or `JOIN_EPOCH`.
        wanted: The subscription; None: unchanged.
        owned: The owned partitions; None: unchanged.
        full: Send every field, as after an unanswered request.
        forget_regex: Reset a regular expression that was sent before.
    """
    # An empty string resets the expression. It is sent only if one was sent before: version 0 has no such field, and
    # the encoder refuses a value that it would drop.
    regex = None if wanted is None else wanted.broker_regex
    if wanted is not None and regex is None and forget_regex:
        regex = ""
    # Null and -1 are "unchanged" (KIP-848). A request with subscription, rebalance timeout and owned partitions counts
    # as a full one, and its answer has the assignment even if that did not change.
    return ConsumerHeartbeat(
        group_id=GroupId(settings.group_id),
        member_id=identity.member_id,
        member_epoch=i32(member_epoch),
        instance_id=identity.instance_id,
        rack_id=settings.rack_id if full else None,
        rebalance_timeout=from_ms(settings.rebalance_timeout_ms if full else -1),
        subscribed_topic_names=None if wanted is None else tuple(TopicName(name) for name in wanted.names),
        subscribed_topic_regex=regex,
        server_assignor=settings.server_assignor if full else None,
        topic_partitions=None if owned is None else _by_topic(owned),
    )


def consumer_leave_request(
    settings: HeartbeatSettings, identity: GroupIdentity, *, for_a_while: bool
) -> ConsumerHeartbeat:
    """Return the heartbeat that leaves the group.

    `for_a_while`: a static member's partitions wait for its return.
    """
    return ConsumerHeartbeat(
        group_id=GroupId(settings.group_id),
        member_id=identity.member_id,
        # -2 keeps a static member's partitions until its session ends; a dynamic member that sends it gets
        # INVALID_REQUEST.
        member_epoch=i32(LEAVE_FOR_A_WHILE_EPOCH if for_a_while else LEAVE_EPOCH),
        instance_id=identity.instance_id,
        topic_partitions=None,
    )


def topic_names_request(topic_ids: Iterable[UUID]) -> RequestMessage:
    """Return a Metadata request for topics by id: assignments of consumer groups carry no names."""
    request = m.metadata_request
    return request.MetadataRequest(
        topics=tuple(request.MetadataRequestTopic(topic_id=each, name=None) for each in sorted(topic_ids)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def assigned_partitions(reply: ConsumerHeartbeatResponse) -> frozenset[TopicIdPartition] | None:
    """Return the partitions that an answer assigns; None: unchanged."""
    if reply.assignment is None:
        return None
    return frozenset(
        (topic.topic_id, int(partition))
        for topic in reply.assignment.topic_partitions
        # kio reads the zero id as None; no topic has it.
        if topic.topic_id is not None
        for partition in topic.partitions
    )


def _by_topic(owned: Iterable[TopicIdPartition]) -> tuple[m.consumer_group_heartbeat_request.TopicPartitions, ...]:
    grouped: dict[UUID, list[i32]] = {}
    for topic_id, partition in sorted(owned):
        grouped.setdefault(topic_id, []).append(i32(partition))
    one = m.consumer_group_heartbeat_request.TopicPartitions
    return tuple(one(topic_id=topic_id, partitions=tuple(numbers)) for topic_id, numbers in grouped.items())


def topic_names(response: m.metadata_response.MetadataResponse) -> Mapping[UUID, str]:
    """Return topic id → name of a Metadata answer."""
    return {topic.topic_id: str(topic.name) for topic in response.topics if topic.topic_id is not None and topic.name}
