"""GroupContext: what a rule of a consumer group sees besides the group's state; and the timers that rules set.

Timers of a member: session, revocation, and those of a classic member. A member that speaks the classic protocol has a
session timeout of its own and two more timers: the time to rejoin once a heartbeat replied REBALANCE_IN_PROGRESS, and
the time to ask for its assignment once it joined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.coordinator.assignors.partition_assignors import PartitionAssignor
from headrace.coordinator.configuration import ConsumerGroupConfiguration
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.modern import rebalance_timer, revocation_timers, session_timer
from headrace.coordinator.result import CancelTimer, CoordinatorResult, SetTimer, TimerKey

__all__ = [
    "Downgrade",
    "GroupContext",
    "MayDescribe",
    "cancel_member_timers",
    "join_timer",
    "member_timers",
    "member_timers_after_load",
    "regexes_timer",
    "session",
    "sync_timer",
]


MayDescribe: TypeAlias = Callable[[str], bool]
"""Whether the client that sent a request may describe a topic, by name."""


class Downgrade(Protocol):
    """Decision whether a group becomes a classic one when members leave (`group_conversion.DowngradeRule`)."""

    def __call__(self, group: ConsumerGroup, leaving: Collection[str], *, now_ms: int) -> CoordinatorResult | None:
        """Return the conversion; None: it stays a consumer group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """`assignors` by name, the default first. `new_topics_version`: of the newest image that brought a topic.
    `regexes_timer_runs`: a look at the topics is under way. `may_describe` None: everything.
    `downgrade` None: groups do not move."""

    configuration: ConsumerGroupConfiguration
    image: MetadataImage
    new_topics_version: int
    assignors: Mapping[str, PartitionAssignor]
    now_ms: int
    regexes_timer_runs: bool = False
    may_describe: MayDescribe | None = None
    downgrade: Downgrade | None = None

    def assignor(self, name: str | None) -> PartitionAssignor:
        """Return the assignor of that name, or the default."""
        return self.assignors[next(iter(self.assignors)) if name is None else name]


def regexes_timer(group_id: str) -> TimerKey:
    """Return the timer that compares the next portion of topics with the group's regular expressions."""
    return TimerKey(kind="regexes", group_id=group_id)


def join_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a classic member's time to rejoin."""
    return TimerKey(kind="member-join", group_id=group_id, member_id=member_id)


def sync_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a classic member's time to ask for its assignment."""
    return TimerKey(kind="member-sync", group_id=group_id, member_id=member_id)


def cancel_member_timers(group_id: str, member_id: str) -> tuple[CancelTimer, ...]:
    """Cancel all timers of a member that left, or whose group changed its type."""
    keys = (session_timer, rebalance_timer, join_timer, sync_timer)
    return tuple(CancelTimer(key=key(group_id, member_id)) for key in keys)


def member_timers(
    group: ConsumerGroup, before: ConsumerGroupMember, after: ConsumerGroupMember, group_context: GroupContext
) -> list[SetTimer | CancelTimer]:
    """Return the timer changes of a heartbeat; those of the classic protocol are cancelled when a member left it."""
    # Every heartbeat starts the session anew, with the timeout that is configured now.
    timers: list[SetTimer | CancelTimer] = [session(group, after, group_context)]
    # A classic member's timers are cancelled whatever it is now: it has just shown that it lives, and a new
    # REBALANCE_IN_PROGRESS starts them again.
    if before.uses_classic_protocol:
        timers.extend(CancelTimer(key=each(group.group_id, after.member_id)) for each in (join_timer, sync_timer))
    timers.extend(
        revocation_timers(
            group.group_id,
            before,
            after,
            is_same_demand=before.pending_revocation == after.pending_revocation,
            rebalance_timeout_ms=after.metadata.rebalance_timeout_ms,
            now_ms=group_context.now_ms,
        )
    )
    return timers


def member_timers_after_load(group: ConsumerGroup, group_context: GroupContext) -> list[SetTimer | CancelTimer]:
    """Return the timers of all members after a load: sessions start anew, pending revocations continue."""
    timers: list[SetTimer | CancelTimer] = []
    for member_id in sorted(group.members):
        member = group.members[member_id]
        timers.append(session(group, member, group_context))
        # The time of a revocation starts anew after a load: how much of it had passed is not recorded.
        if member.is_revoking and not member.is_away:
            due_ms = group_context.now_ms + member.metadata.rebalance_timeout_ms
            key = join_timer if member.uses_classic_protocol else rebalance_timer
            timers.append(SetTimer(key=key(group.group_id, member_id), deadline_ms=due_ms))
    return timers


def session(group: ConsumerGroup, member: ConsumerGroupMember, group_context: GroupContext) -> SetTimer:
    """Return the session timer, started now: the group's timeout, or the classic member's own."""
    # A classic member brought its own timeout with JoinGroup (KIP-848, online migration).
    classic = member.metadata.classic_member_metadata
    timeout_ms = group_context.configuration.session_timeout_ms if classic is None else classic.session_timeout_ms
    key = session_timer(group.group_id, member.member_id)
    return SetTimer(key=key, deadline_ms=group_context.now_ms + timeout_ms)
