"""Validation of members that commit or fetch offsets, for each type of group.

Classic groups validate by generation, not by partition: only the members know who owns which partition.

Consumer groups (KIP-848, KIP-1251, Kafka 4.3): with its current epoch a member may commit any partition, also an
unassigned one. With an older epoch it may commit only partitions that it has had, or has been revoking, since that
epoch. One partition that it may not commit refuses the whole request. A classic member sends its epoch as generation.

Streams groups (KIP-1071) are stricter than in Kafka, which checks ownership only for epochs older than the member's own
and so lets a member commit another member's partition. Here a partition of the topology must be active at the member,
assigned or being revoked, and must not have been assigned after the epoch of the request. Partitions outside the
topology have no owner: the current epoch may commit them. A foreign partition fails alone; in Kafka the request fails.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.classic.group import ClassicGroupState, ClassicMembership, identity_error
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records.schemas import StreamsGroupTopologyValue
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.error_codes import ErrorCode

__all__ = ["check_classic_commit", "check_consumer_commit", "check_consumer_fetch", "may_commit", "subscribed_topics"]


def check_classic_commit(
    group: ClassicMembership, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
) -> None:
    """Check the sender of a commit to a classic group.

    Without a generation it may commit if the group has no members; in a transaction always, if it names no member
    either, as producers did before KIP-447. While the group waits for its assignment only transactions may commit: a
    member of the new generation may still process partitions of the old one. Raises CoordinatorError.
    """
    # In the order of Kafka's ClassicGroup.validateOffsetCommit: the order decides which error a client with two faults
    # gets, and clients act on it (rejoin, stop, or retry).
    if generation < 0 and group.is_empty:
        return
    if generation >= 0 or member_id or instance_id is not None:
        code = identity_error(group, member_id, instance_id)
        if code is ErrorCode.fenced_instance_id:
            raise CoordinatorError(code, f"Another member has taken the place of instance {instance_id}.")
        if code is not ErrorCode.none:
            raise CoordinatorError(code, f"Member {member_id} is not a member of group {group.group_id}.")
        if generation != group.generation:
            message = f"Generation {generation} is not that of group {group.group_id}, {group.generation}."
            raise CoordinatorError(ErrorCode.illegal_generation, message)
    elif not transactional:
        message = f"Group {group.group_id} has members; only they may commit."
        raise CoordinatorError(ErrorCode.unknown_member_id, message)
    if not transactional and group.state is ClassicGroupState.COMPLETING_REBALANCE:
        message = f"Group {group.group_id} waits for the assignment of generation {group.generation}."
        raise CoordinatorError(ErrorCode.rebalance_in_progress, message)


_MEMBER_EPOCHS_SINCE = 9
_NO_EPOCH = -1


def check_consumer_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[tuple[str, int]],
    *,
    image: MetadataImage,
    api_version: int,
    transactional: bool = False,
) -> None:
    """Check that a member of a consumer group may commit offsets of these partitions.

    Args:
        group: the group, with its state before the request.
        member_id: of the request.
        instance_id: of the request; None for a dynamic member.
        epoch: member epoch of the request, or the generation of a member that speaks the classic protocol.
        partitions: (topic name, partition).
        image: resolves topic names to ids.
        api_version: of the request. OffsetCommit below version 9 is refused for members of the consumer protocol.
        transactional: the request is TxnOffsetCommit.

    Raises:
        CoordinatorError: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION (to classic
            members and in transactions).
    """
    # 1. No members: admin clients and consumers without a group may commit.
    if epoch < 0 and group.is_empty:
        return
    # 2. A producer before KIP-447 names no member, also while there are some.
    if transactional and epoch == _NO_EPOCH and not member_id and instance_id is None:
        return
    # 3. From here on the sender must be a member, with an epoch not above its own (KIP-848, "OffsetCommit").
    member = _member(group, member_id)
    if not transactional and not member.uses_classic_protocol and api_version < _MEMBER_EPOCHS_SINCE:
        raise CoordinatorError(
            ErrorCode.unsupported_version,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    if epoch == member.member_epoch:
        return
    is_generation = transactional or member.uses_classic_protocol
    if epoch > member.member_epoch:
        raise _stale(f"is newer than current member epoch {member.member_epoch}", epoch, is_generation)
    # 4. An older epoch is accepted for partitions that the member had in that epoch: work that was planned before a
    #    rebalance which left these partitions alone may still be committed (KIP-1251). The epoch that counts is the one
    #    at which the partition was assigned, also while it is being revoked.
    for name, partition in partitions:
        topic = image.topics.get(name)
        assigned = None
        if topic is not None:
            pending = member.pending_revocation.get(topic.topic_id, {}).get(partition)
            assigned = member.assigned.get(topic.topic_id, {}).get(partition, pending)
        if assigned is None:
            raise _stale(
                f"is old, and partition {name}-{partition} is not assigned to the member", epoch, is_generation
            )
        if epoch < assigned:
            since = f"is older than assignment epoch {assigned} for partition {name}-{partition}"
            raise _stale(since, epoch, is_generation)


def check_consumer_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Check the member of an OffsetFetch.

    Raises CoordinatorError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION (to classic members).
    """
    # Admin clients, and all requests before version 9: they name no member, and to read offsets needs no ownership.
    if member_id is None and epoch < 0:
        return
    member = _member(group, member_id or "")
    if epoch != member.member_epoch:
        what = f"does not match the expected member epoch {member.member_epoch}"
        raise _stale(what, epoch, is_generation=member.uses_classic_protocol)


def _member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    member = group.members.get(member_id)
    if member is None:
        message = f"Member {member_id} is not a member of group {group.group_id}."
        raise CoordinatorError(ErrorCode.unknown_member_id, message)
    return member


def _stale(what: str, epoch: int, is_generation: bool) -> CoordinatorError:
    if is_generation:
        return CoordinatorError(ErrorCode.illegal_generation, f"The received generation id {epoch} {what}.")
    return CoordinatorError(ErrorCode.stale_member_epoch, f"The received member epoch {epoch} {what}.")


def may_commit(group: StreamsGroup, member: StreamsGroupMember, epoch: int, topic: str, partition: int) -> bool:
    """Whether a member may commit the position of a partition with this epoch, at most its own."""
    # A topic outside the topology has no owner (a global table, a sink that stores its own position): the present epoch
    # may commit it. Inside, the task must be this member's, and must not have come after the work was planned: between,
    # another member may have processed the same records.
    subtopologies = _reading_subtopologies(group.topology, topic)
    if not subtopologies:
        return epoch == member.member_epoch
    for subtopology_id in subtopologies:
        task = (subtopology_id, partition)
        assigned_at = member.assigned.active.get(task, member.pending_revocation.active.get(task))
        if assigned_at is not None and assigned_at <= epoch:
            return True
    return False


def subscribed_topics(topology: StreamsGroupTopologyValue | None) -> frozenset[str]:
    """Return the external and repartition source topics."""
    if topology is None:
        return frozenset()
    sources = {topic for each in topology.subtopologies for topic in each.source_topics}
    return frozenset(
        sources | {topic.name for each in topology.subtopologies for topic in each.repartition_source_topics}
    )


def _reading_subtopologies(topology: StreamsGroupTopologyValue | None, topic: str) -> list[str]:
    if topology is None:
        return []
    return [
        each.subtopology_id
        for each in topology.subtopologies
        if topic in each.source_topics or any(source.name == topic for source in each.repartition_source_topics)
    ]
