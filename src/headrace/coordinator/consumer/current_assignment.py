"""Reconciliation of a member of a consumer group with its target. KIP-848, "Reconciliation"; the rules of Kafka 4.3.

A partition is revoked before another member gets it: it stays in its holder's `pending_revocation` until that member's
list of owned partitions shows that it let go. So no partition ever has two holders.
"""

from __future__ import annotations

from collections.abc import Container
from uuid import UUID

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import (
    NO_PARTITIONS,
    ConsumerGroupMember,
    MemberState,
    PartitionEpochs,
    Partitions,
    contains_any,
    merge_partitions,
    with_epochs,
)
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["reconcile"]


def reconcile(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    *,
    target: Partitions,
    target_epoch: int,
    readable: Container[UUID],
    subscription_changed: bool,
    owned: Partitions | None,
) -> ConsumerGroupMember:
    """Move a member one step closer to its target: first it revokes, then it is assigned what others have released.

    Args:
        group: current holders of all partitions.
        member: the member with its recorded assignment.
        target: partitions that it should have.
        target_epoch: epoch of the target.
        readable: ids of the topics that it subscribes to. Partitions of other topics are revoked at once, before
            there is a new target.
        subscription_changed: whether this request changed the subscription.
        owned: partitions that the member reports; None if it did not report any.

    Returns:
        The changed member; the same object when nothing may change.

    Raises:
        CoordinatorError: FENCED_MEMBER_EPOCH for a member whose recorded state is unknown and that still owns
            partitions.
    """
    # 1. Nothing to do towards the target. A changed subscription still takes partitions away at once: the client has
    #    dropped those topics already and would never confirm a later revocation of them.
    if member.is_reconciled_to(target_epoch):
        return _without_unreadable(member, readable, owned) if subscription_changed else member
    # 2. It was asked to revoke and has not confirmed it. As in streams groups, no newer target is looked at before it
    #    has.
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.pending_revocation):
        return _without_unreadable(member, readable, owned) if subscription_changed else member
    # 3. A state that this broker does not know was written by a newer one. The member can only continue if it holds
    #    nothing.
    epoch = member.member_epoch
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise CoordinatorError(
                ErrorCode.fenced_member_epoch,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                "rejoin.",
            )
        epoch = target_epoch
    # 4. The target may still name topics that the member unsubscribed from with this very heartbeat (the assignor runs
    #    at most once per interval). They are left out, or the member would be given what it no longer reads.
    wanted = {topic_id: of_topic for topic_id, of_topic in target.items() if topic_id in readable}
    return _next(group, member, wanted, target_epoch, owned, epoch=epoch)


def _next(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    *,
    epoch: int,
) -> ConsumerGroupMember:
    """Drop what is not in the target; once that is confirmed, take what has no holder."""
    # 1. Revoke first: what the target lacks stays pending until the member's own list no longer contains it.
    kept, revoked = _split(member.assigned, target)
    if revoked and _owns_any(owned, revoked):
        moved = member.with_assignment(
            epoch=epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked
        )
        return member if moved == member else moved
    # 2. Then assign partitions without another holder; the epoch of the target counts even if some are missing.
    granted, is_waiting = _grantable(group, member, kept, target)
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    assigned = merge_partitions(kept, with_epochs(granted, target_epoch))
    moved = member.with_assignment(epoch=target_epoch, state=state, assigned=assigned)
    return member if moved == member else moved


def _split(assigned: PartitionEpochs, target: Partitions) -> tuple[PartitionEpochs, PartitionEpochs]:
    """(kept, to revoke)."""
    kept: dict[UUID, dict[int, int]] = {}
    revoked: dict[UUID, dict[int, int]] = {}
    for topic_id, of_topic in assigned.items():
        wanted = set(target.get(topic_id, ()))
        for partition, epoch in of_topic.items():
            (kept if partition in wanted else revoked).setdefault(topic_id, {})[partition] = epoch
    return kept, revoked


def _grantable(
    group: ConsumerGroup, member: ConsumerGroupMember, kept: PartitionEpochs, target: Partitions
) -> tuple[Partitions, bool]:
    """The missing partitions that are free, and whether some are not. Its own are: it gives them up to itself."""
    granted: dict[UUID, tuple[int, ...]] = {}
    is_waiting = False
    for topic_id, of_topic in target.items():
        had, holders = kept.get(topic_id, {}), group.holders.of_topic(topic_id)
        missing = [partition for partition in of_topic if partition not in had]
        free = [each for each in missing if holders.get(each, member.member_id) == member.member_id]
        is_waiting = is_waiting or len(free) < len(missing)
        if free:
            granted[topic_id] = tuple(free)
    return granted, is_waiting


def _without_unreadable(
    member: ConsumerGroupMember, readable: Container[UUID], owned: Partitions | None
) -> ConsumerGroupMember:
    """Topics that are no longer subscribed to go; all else stays as it is until there is a new target."""
    # Kafka: CurrentAssignmentBuilder.updateCurrentAssignment. The epoch stays, because the member still has the target
    # of that epoch; only topics without a subscription leave it.
    kept = {topic_id: of_topic for topic_id, of_topic in member.assigned.items() if topic_id in readable}
    if len(kept) == len(member.assigned):
        return member
    gone = {topic_id: of_topic for topic_id, of_topic in member.assigned.items() if topic_id not in kept}
    revoked = merge_partitions(member.pending_revocation, gone)
    if _owns_any(owned, revoked):
        return member.with_assignment(
            epoch=member.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    return member.with_assignment(
        epoch=member.member_epoch,
        state=member.state,
        assigned=kept,
        pending_revocation=member.pending_revocation,
    )


def _owns_any(owned: Partitions | None, revoked: PartitionEpochs) -> bool:
    """A member that says nothing owns them still."""
    return owned is None or contains_any(revoked, owned or NO_PARTITIONS)
