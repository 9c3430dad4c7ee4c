"""Events of a heartbeat of a streams or consumer group: members that joined, epochs that rose."""

from __future__ import annotations

from headrace.coordinator.result import CoordinatorEvent

__all__ = ["heartbeat_events"]


def heartbeat_events(
    group_id: str,
    member_id: str,
    *,
    joined: bool,
    replaced_id: str | None,
    bumped_to: tuple[int, str] | None,
    computed_for: int | None,
) -> tuple[CoordinatorEvent, ...]:
    """`replaced_id`: whose place a static member took. `bumped_to`: the new group epoch and its reason,
    `computed_for`: the epoch of a new target assignment; None: there is none."""
    events = []
    if joined:
        events.append(_event("MemberJoined", group_id, member_id=member_id))
    if replaced_id is not None:
        events.append(_event("StaticMemberReplaced", group_id, member_id=member_id, replaced_id=replaced_id))
    if bumped_to is not None:
        events.append(_event("GroupEpochBumped", group_id, epoch=bumped_to[0], reason=bumped_to[1]))
    if computed_for is not None:
        events.append(_event("TargetAssignmentComputed", group_id, epoch=computed_for))
    return tuple(events)


def _event(name: str, group_id: str, **details: object) -> CoordinatorEvent:
    return CoordinatorEvent(
        name=name, group_id=group_id, details=tuple((key, str(value)) for key, value in sorted(details.items()))
    )
