"""Timers of a member of a consumer or streams group: its session, and its time to revoke.

Each heartbeat starts the session anew. The rebalance timeout runs from each new demand to revoke until the member has
revoked (KIP-848, KIP-1071).
"""

from __future__ import annotations

from headrace.coordinator.modern.member import ModernGroupMember
from headrace.coordinator.result import CancelTimer, SetTimer, TimerKey

__all__ = ["cancel_replaced_member_timers", "rebalance_timer", "revocation_timers", "session_timer"]


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's session timer."""
    return TimerKey(kind="session", group_id=group_id, member_id=member_id)


def rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's rebalance timer."""
    return TimerKey(kind="rebalance", group_id=group_id, member_id=member_id)


def revocation_timers(
    group_id: str,
    before: ModernGroupMember,
    after: ModernGroupMember,
    *,
    is_same_demand: bool,
    rebalance_timeout_ms: int,
    now_ms: int,
) -> list[SetTimer | CancelTimer]:
    """Return the changes of the rebalance timer from one heartbeat to the next.

    `is_same_demand`: the member had to revoke the same before. The timer then runs on: a member must not gain time by
    sending more heartbeats.
    """
    key = rebalance_timer(group_id, after.member_id)
    if after.is_revoking:
        runs_on = before.is_revoking and before.member_epoch == after.member_epoch and is_same_demand
        return [] if runs_on else [SetTimer(key=key, deadline_ms=now_ms + rebalance_timeout_ms)]
    return [CancelTimer(key=key)] if before.is_revoking else []


def cancel_replaced_member_timers(group_id: str, replaced_id: str | None, member_id: str) -> list[CancelTimer]:
    """Cancel the session of a replaced static member and the rebalance timer of its replacement.

    The replaced id is not a member any more, and what its place had to revoke is revoked. `replaced_id` None: no member
    was replaced.
    """
    if replaced_id is None:
        return []
    return [
        CancelTimer(key=session_timer(group_id, replaced_id)),
        CancelTimer(key=rebalance_timer(group_id, member_id)),
    ]
