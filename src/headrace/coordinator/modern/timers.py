"""The names of a member's two timers, the same in streams and consumer groups, and whose they no longer are."""

from __future__ import annotations

from headrace.coordinator.result import CancelTimer, TimerKey

__all__ = ["cancel_replaced_member_timers", "rebalance_timer", "session_timer"]


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return TimerKey(kind="session", group_id=group_id, member_id=member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    return TimerKey(kind="rebalance", group_id=group_id, member_id=member_id)


def cancel_replaced_member_timers(group_id: str, replaced_id: str | None, member_id: str) -> list[CancelTimer]:
    """A static member took the place of `replaced_id` (None: nobody's). Nobody is under that id any more, and what its
    place had to revoke is revoked."""
    if replaced_id is None:
        return []
    return [
        CancelTimer(key=session_timer(group_id, replaced_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]
