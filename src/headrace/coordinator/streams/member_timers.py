"""The two timers of a member: its session, which each heartbeat begins anew, and its time to revoke tasks. KIP-1071."""

from __future__ import annotations

from headrace.coordinator.member_timer_keys import rebalance_timer, session_timer
from headrace.coordinator.result import CancelTimer, SetTimer
from headrace.coordinator.streams.circumstances import Circumstances
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.member import MemberState, StreamsGroupMember

__all__ = ["member_timers"]


def member_timers(
    group: StreamsGroup, before: StreamsGroupMember, after: StreamsGroupMember, circumstances: Circumstances
) -> list[SetTimer | CancelTimer]:
    """The session anew with each heartbeat; the rebalance timeout from each new demand to revoke until it is met."""
    now_ms = circumstances.now_ms
    session_ms = circumstances.configuration.session_timeout_ms
    timers: list[SetTimer | CancelTimer] = [
        SetTimer(key=session_timer(group.group_id, after.member_id), deadline_ms=now_ms + session_ms)
    ]
    key = rebalance_timer(group.group_id, after.member_id)
    if after.state is MemberState.UNREVOKED_TASKS:
        told_before = before.state is MemberState.UNREVOKED_TASKS and before.member_epoch == after.member_epoch
        if not (told_before and before.pending_revocation == after.pending_revocation):
            timers.append(SetTimer(key=key, deadline_ms=now_ms + after.metadata.rebalance_timeout_ms))
    elif before.state is MemberState.UNREVOKED_TASKS:
        timers.append(CancelTimer(key=key))
    return timers
