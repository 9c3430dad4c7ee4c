"""May somebody commit offsets of a classic group? By its generation, not by partition: who has which is known to the
members alone."""

from __future__ import annotations

from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.member_checks import member_refusal
from headrace.coordinator.classic.membership import ClassicMembership
from headrace.coordinator.errors import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["check_classic_commit"]


def check_classic_commit(
    group: ClassicMembership, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
) -> None:
    """Raises CoordinatorError when the whole request is refused.

    Who names no generation may commit while there are no members; in a transaction always, as long as it names no
    member either: so did producers before KIP-447. While the group waits for its assignment nobody may, unless in a
    transaction: a member that has the new generation may still hold partitions of the old one.
    """
    if generation < 0 and group.is_empty:
        return
    if generation >= 0 or member_id or instance_id is not None:
        code = member_refusal(group, member_id, instance_id)
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
