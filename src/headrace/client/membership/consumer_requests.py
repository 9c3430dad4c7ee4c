"""The heartbeats of a consumer group's member (KIP-848), and what an answer assigns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from headrace.client.membership.group_events import GroupIdentity
from headrace.client.membership.subscription import SubscribedTopics
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_FOR_A_WHILE_EPOCH",
    "HeartbeatSettings",
    "TopicIdPartition",
    "assigned_in",
    "leave_request",
    "names_request",
    "state_request",
]

TopicIdPartition = tuple[UUID, int]
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2

Request = m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
Reply = m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """What stays the same for the life of a member. `server_assignor` None: the group's choice."""

    group_id: str
    rebalance_timeout_ms: int
    rack_id: str | None = None
    server_assignor: str | None = None


def state_request(
    settings: HeartbeatSettings,
    identity: GroupIdentity,
    *,
    member_epoch: int,
    wanted: SubscribedTopics | None,
    owned: Iterable[TopicIdPartition] | None,
    full: bool,
    forget_regex: bool = False,
) -> Request:
    """A heartbeat; `wanted` and `owned` None: as before. `full`: everything, as after an answer that never came.

    A regular expression is only named where there is or was one: version 0 has no field for it.
    """
    regex = None if wanted is None else wanted.broker_regex
    if wanted is not None and regex is None and forget_regex:
        regex = ""
    return Request(
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


def leave_request(settings: HeartbeatSettings, identity: GroupIdentity, *, for_a_while: bool) -> Request:
    """Out of the group; a static member's partitions may wait for its return."""
    return Request(
        group_id=GroupId(settings.group_id),
        member_id=identity.member_id,
        member_epoch=i32(LEAVE_FOR_A_WHILE_EPOCH if for_a_while else LEAVE_EPOCH),
        instance_id=identity.instance_id,
        topic_partitions=None,
    )


def names_request(topic_ids: Iterable[UUID]) -> object:
    """Metadata of topics by id: assignments carry no names."""
    request = m.metadata_request
    return request.MetadataRequest(
        topics=tuple(request.MetadataRequestTopic(topic_id=each, name=None) for each in sorted(topic_ids)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def assigned_in(reply: Reply) -> frozenset[TopicIdPartition] | None:
    """What the coordinator assigns; None: as before."""
    if reply.assignment is None:
        return None
    return frozenset(
        (topic.topic_id, int(partition))
        for topic in reply.assignment.topic_partitions
        if topic.topic_id is not None
        for partition in topic.partitions
    )


def _by_topic(owned: Iterable[TopicIdPartition]) -> tuple[m.consumer_group_heartbeat_request.TopicPartitions, ...]:
    grouped: dict[UUID, list[i32]] = {}
    for topic_id, partition in sorted(owned):
        grouped.setdefault(topic_id, []).append(i32(partition))
    one = m.consumer_group_heartbeat_request.TopicPartitions
    return tuple(one(topic_id=topic_id, partitions=tuple(numbers)) for topic_id, numbers in grouped.items())


def names_in(response: m.metadata_response.MetadataResponse) -> Mapping[UUID, str]:
    """Of topics by id."""
    return {topic.topic_id: str(topic.name) for topic in response.topics if topic.topic_id is not None and topic.name}
