"""Broken rules for the simulator to notice: each breaks one in the code under simulation, and says what must be told.

`hint`: a seed that notices it as things are; others are tried when it does not any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headrace.assignors.assignor import Assignment
from headrace.assignors.kafka_assignors import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from headrace.client.membership import member_core
from headrace.client.membership.classic_membership import ClassicMembership as ClassicMember
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_member import GroupMember, GroupMemberState
from headrace.coordinator.classic import requests as classic_requests
from headrace.coordinator.classic import transition as turn
from headrace.coordinator.classic.group import ClassicMembership
from headrace.coordinator.consumer import group as consumer_group
from headrace.coordinator.consumer import group as partition_holders
from headrace.coordinator.consumer import group_context as member_timers
from headrace.coordinator.consumer import heartbeat as leave_and_fence
from headrace.coordinator.consumer import heartbeat_step as consumer_step
from headrace.coordinator.offsets import offset_commit
from headrace.coordinator.streams import group as streams_group
from headrace.coordinator.streams import group as task_holders
from headrace.coordinator.streams import heartbeat as streams_group_heartbeat
from headrace.protocol.error_codes import ErrorCode

__all__ = ["MUTATIONS", "Mutation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`owner.name` becomes what `broken` makes of it; `told`: what is reported then, any of these."""

    text: str
    groups: str
    owner: Any
    name: str
    broken: Callable[[Any], Any]
    told: tuple[str, ...]
    hint: int = 0


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _forgetful(every: int) -> Callable[[Any], Any]:
    def broken(replay: Any) -> Any:
        calls = iter(range(10**9))
        return lambda *arguments: replay(*arguments) if next(calls) % every else None

    return broken


def _without_records(decide: Any) -> Any:
    def broken(*arguments: Any, **named: Any) -> Any:
        target = decide(*arguments, **named)
        return replace(target, records=()) if target.records else target

    return broken


def _late_epoch(removed: Any) -> Any:
    """The record of the group's epoch says less than was."""

    def broken(*arguments: Any, **named: Any) -> Any:
        result = removed(*arguments, **named)
        records = tuple(
            replace(each, value=replace(each.value, epoch=1)) if hasattr(each.value, "epoch") else each
            for each in result.records
        )
        return replace(result, records=records)

    return broken


def _prepare_at_once(_: Any) -> Any:
    def broken(self: Any, now_ms: int) -> None:
        self._rejoin = False
        self._retry_ms = now_ms
        self._enter(GroupMemberState.JOINING)

    return broken


def _hands_out_at_once(_: Any) -> Any:
    """A cooperative assignor that does not wait for who still claims a partition."""

    def broken(self: Any, partitions: Any, members: Any) -> Any:
        return RoundRobinAssignor().assign(partitions, members)

    return broken


def _gives_one_twice(assign: Any) -> Any:
    def broken(self: Any, partitions: Any, members: Any) -> Any:
        given = assign(self, partitions, members)
        everything = tuple(each for one in given.values() for each in one.partitions)
        return {
            member: Assignment(partitions=tuple(dict.fromkeys((*one.partitions, *everything[:1]))))
            for member, one in given.items()
        }

    return broken


def _same_generation(_: Any) -> Any:
    def broken(self: ClassicMembership, now_ms: int) -> None:
        self.generation -= 1
        begin(self, now_ms)

    begin = ClassicMembership.begin_generation
    return broken


def _without_assignment(write: Any) -> Any:
    return lambda self, assignments=None: write(self, None if assignments is None else {})


def _never_stable(replaced: Any) -> Any:
    """A static member that comes back always begins a rebalance."""

    def broken(turn: Any, sender: Any, context: Any, reason: str) -> None:
        changed = replace(sender, protocols=tuple(reversed(sender.protocols)))
        turn.group.protocol = "another"
        replaced(turn, changed, context, reason)

    return broken


def _claims_what_it_has(request: Any) -> Any:
    def broken(self: Any, member_epoch: int, *, full: bool) -> Any:
        announced, target = self._announced, self._target
        self._announced = self._target = frozenset()
        made = request(self, member_epoch, full=full)
        self._announced, self._target = announced, target
        return made

    return broken


MUTATIONS = (
    Mutation(
        text="tasks are handed out before they are given back",
        groups="streams",
        owner=task_holders.TaskHolders,
        name="hold",
        broken=_nothing,
        told=("is active at",),
    ),
    Mutation(
        text="commits of those who do not own",
        groups="streams",
        owner=offset_commit,
        name="_refusal",
        broken=lambda _: lambda *_: ErrorCode.none,
        told=("the committed offset of",),
    ),
    Mutation(
        text="a record that replay forgets",
        groups="streams",
        owner=streams_group.StreamsGroup,
        name="replay_target",
        broken=_forgetful(97),
        told=("",),
    ),
    Mutation(
        text="a group that never computes a target",
        groups="streams",
        owner=streams_group_heartbeat,
        name="target_assignment",
        broken=_without_records,
        told=("",),
    ),
    Mutation(
        text="a member that does not let go when its lease ends",
        groups="streams",
        owner=member_core.MemberCore,
        name="_lose",
        broken=_nothing,
        told=("more than 20000 things happen at",),
    ),
    Mutation(
        text="partitions are handed out before they are given back",
        groups="consumer",
        owner=partition_holders.PartitionHolders,
        name="hold",
        broken=_nothing,
        told=("is held by",),
    ),
    Mutation(
        text="any commit is accepted",
        groups="consumer",
        owner=offset_commit,
        name="check_consumer_commit",
        broken=_nothing,
        hint=28,
        told=("committed", "the committed offset of"),
    ),
    Mutation(
        text="a record that replay forgets",
        groups="consumer",
        owner=consumer_group.ConsumerGroup,
        name="replay_target",
        broken=_forgetful(23),
        told=("the live state is not the replayed",),
    ),
    Mutation(
        text="a group that never computes a target",
        groups="consumer",
        owner=consumer_step,
        name="target_assignment",
        broken=_without_records,
        told=("not settled",),
    ),
    Mutation(
        text="an epoch that begins anew when a member goes",
        groups="consumer",
        owner=leave_and_fence,
        name="remove_members",
        broken=_late_epoch,
        told=("the epoch of group fell",),
    ),
    Mutation(
        text="a session that no timer ends",
        groups="consumer",
        owner=member_timers,
        name="session",
        broken=lambda session: (
            lambda *arguments: replace(session(*arguments), key=replace(session(*arguments).key, kind="other"))
        ),
        told=("no timer session",),
    ),
    Mutation(
        text="targets that do not look at what members had",
        groups="consumer",
        owner=consumer_group.ConsumerGroup,
        name="target_of",
        broken=lambda _: lambda *_: {},
        told=("moved", "not settled", "was a rebalance"),
    ),
    Mutation(
        text="what is about to begin is not claimed (found by the simulator)",
        groups="consumer",
        owner=ConsumerMembership,
        name="_request",
        broken=_claims_what_it_has,
        told=("which it does not hold", "both work on"),
    ),
    Mutation(
        text="a fenced member that tells nobody",
        groups="consumer",
        owner=GroupMember,
        name="_lose",
        broken=lambda _: lambda self, *_: self._enter(GroupMemberState.JOINING),
        hint=15,
        told=("both work on", "which it does not hold", "which"),
    ),
    Mutation(
        text="an eager member joins with what it has in its hands",
        groups="classic",
        owner=ClassicMember,
        name="_revoke_before_join",
        broken=_prepare_at_once,
        hint=2,
        told=("both work on", "which it does not hold", "which"),
    ),
    Mutation(
        text="a cooperative leader does not wait for who claims a partition",
        groups="classic",
        owner=CooperativeStickyAssignor,
        name="assign",
        broken=_hands_out_at_once,
        told=("both work on", "which"),
    ),
    Mutation(
        text="a leader gives a partition twice",
        groups="classic",
        owner=RangeAssignor,
        name="assign",
        broken=_gives_one_twice,
        hint=3,
        told=("is held by",),
    ),
    Mutation(
        text="a sticky assignor that remembers nothing",
        groups="classic",
        owner=StickyAssignor,
        name="subscription_user_data",
        broken=_nothing,
        hint=7,
        told=("moved",),
    ),
    Mutation(
        text="any commit is accepted",
        groups="classic",
        owner=offset_commit,
        name="check_classic_commit",
        broken=_nothing,
        hint=6,
        told=("committed", "the committed offset of"),
    ),
    Mutation(
        text="a generation that does not rise",
        groups="classic",
        owner=ClassicMembership,
        name="begin_generation",
        broken=_same_generation,
        hint=32,
        told=("",),
    ),
    Mutation(
        text="a group's record without the assignments",
        groups="classic",
        owner=turn.ClassicTransition,
        name="write_group",
        broken=_without_assignment,
        told=("after a restart the group is", "which it does not hold"),
    ),
    Mutation(
        text="a member of which nobody waits to hear",
        groups="classic",
        owner=turn.ClassicTransition,
        name="set_session_timer",
        broken=_nothing,
        told=("no timer session",),
    ),
    Mutation(
        text="a static member that comes back begins a rebalance",
        groups="classic",
        owner=classic_requests,
        name="replace_static_member",
        broken=_never_stable,
        told=("was a rebalance",),
    ),
)
