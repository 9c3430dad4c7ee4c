"""May somebody commit or fetch offsets in a consumer group? KIP-848, KIP-1251; Kafka 4.3's rules.

With its current epoch a member may commit anything, also what it is not assigned; with an older one, only partitions
that it has, or has still to give up, since that epoch. One partition that it may not commit refuses the whole request.
A member that speaks the classic protocol names its epoch as a generation.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.protocol.error_codes import ErrorCode

__all__ = ["check_consumer_commit", "check_consumer_fetch"]

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
    """`partitions` by topic name. Raises CoordinatorError: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, STALE_MEMBER_EPOCH,
    ILLEGAL_GENERATION (to classic members and in transactions)."""
    if epoch < 0 and group.is_empty:
        return
    if transactional and epoch == _NO_EPOCH and not member_id and instance_id is None:
        return
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
    """Raises CoordinatorError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION (to classic members)."""
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
