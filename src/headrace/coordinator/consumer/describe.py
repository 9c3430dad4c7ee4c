"""ConsumerGroupDescribe (API 69; KIP-848): members, their subscriptions, assignments and targets.

Version 1 adds the protocol that each member speaks. A partition pending revocation is still assigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember, Partitions, merge_partitions, without_epochs
from headrace.coordinator.metadata_image import TopicImage
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import consumer_group_describe_response as m

__all__ = ["describe_error", "describe_group"]

_CLASSIC, _CONSUMER = 0, 1


def describe_group(
    group: ConsumerGroup, topics: Mapping[UUID, TopicImage], assignors: tuple[str, ...]
) -> m.DescribedGroup:
    """Return the description of a group. `topics` by id; partitions of deleted topics are left out."""
    return m.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=cast("GroupId", group.group_id),
        group_state=group.state().value,
        group_epoch=cast("i32", group.group_epoch),
        assignment_epoch=cast("i32", group.assignment_epoch),
        assignor_name=group.preferred_assignor(assignors) or assignors[0],
        members=tuple(_member(group, group.members[member_id], topics) for member_id in sorted(group.members)),
    )


def describe_error(group_id: str, code: ErrorCode, message: str) -> m.DescribedGroup:
    """Return a group with an error code."""
    return m.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state="",
        group_epoch=cast("i32", 0),
        assignment_epoch=cast("i32", 0),
        assignor_name="",
        members=(),
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, topics: Mapping[UUID, TopicImage]) -> m.Member:
    metadata = member.metadata
    return m.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=cast("i32", member.member_epoch),
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=cast("tuple[TopicName, ...]", metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_assignment(without_epochs(merge_partitions(member.assigned, member.pending_revocation)), topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=cast("i8", _CLASSIC if member.uses_classic_protocol else _CONSUMER),
    )


def _assignment(partitions: Partitions, topics: Mapping[UUID, TopicImage]) -> m.Assignment:
    return m.Assignment(
        topic_partitions=tuple(
            m.TopicPartitions(
                topic_id=topic_id,
                topic_name=cast("TopicName", topics[topic_id].name),
                partitions=cast("tuple[i32, ...]", of_topic),
            )
            for topic_id, of_topic in partitions.items()
            if topic_id in topics
        )
    )
