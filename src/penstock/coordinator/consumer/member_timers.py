"""The two timers of a member: its session, which each heartbeat begins anew, and its time to revoke partitions."""

from __future__ import annotations

from penstock.coordinator.consumer.circumstances import Circumstances
from penstock.coordinator.consumer.group import ConsumerGroup
from penstock.coordinator.consumer.member import ConsumerGroupMember, MemberState
from penstock.coordinator.member_timer_keys import rebalance_timer, session_timer
from penstock.coordinator.result import CancelTimer, SetTimer, TimerKey

__all__ = ["loaded_member_timers", "member_timers", "regexes_timer"]


def regexes_timer(group_id: str) -> TimerKey:
    """The next portion of topics to compare with the group's regular expressions."""
    return TimerKey(kind="regexes", group_id=group_id)


def member_timers(
    group: ConsumerGroup, before: ConsumerGroupMember, after: ConsumerGroupMember, circumstances: Circumstances
) -> list[SetTimer | CancelTimer]:
    """The session anew with each heartbeat; the rebalance timeout from each new demand to revoke until it is met."""
    timers: list[SetTimer | CancelTimer] = [_session(group, after, circumstances)]
    key = rebalance_timer(group.group_id, after.member_id)
    if after.state is MemberState.UNREVOKED_PARTITIONS:
        told_before = before.state is MemberState.UNREVOKED_PARTITIONS and before.member_epoch == after.member_epoch
        if not (told_before and before.pending_revocation == after.pending_revocation):
            due_ms = circumstances.now_ms + after.metadata.rebalance_timeout_ms
            timers.append(SetTimer(key=key, deadline_ms=due_ms))
    elif before.state is MemberState.UNREVOKED_PARTITIONS:
        timers.append(CancelTimer(key=key))
    return timers


def loaded_member_timers(group: ConsumerGroup, circumstances: Circumstances) -> list[SetTimer | CancelTimer]:
    """After a replay: sessions start anew, open revocations are taken up."""
    timers: list[SetTimer | CancelTimer] = []
    for member_id in sorted(group.members):
        member = group.members[member_id]
        timers.append(_session(group, member, circumstances))
        if member.state is MemberState.UNREVOKED_PARTITIONS and not member.is_away:
            due_ms = circumstances.now_ms + member.metadata.rebalance_timeout_ms
            timers.append(SetTimer(key=rebalance_timer(group.group_id, member_id), deadline_ms=due_ms))
    return timers


def _session(group: ConsumerGroup, member: ConsumerGroupMember, circumstances: Circumstances) -> SetTimer:
    deadline_ms = circumstances.now_ms + circumstances.configuration.session_timeout_ms
    return SetTimer(key=session_timer(group.group_id, member.member_id), deadline_ms=deadline_ms)
