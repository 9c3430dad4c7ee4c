"""ClassicGroups: the classic groups of one shard and the way from a request to its rule; DescribeGroups (API 15).

The rules are in the package `classic`. See `group_registry.GroupType` for the interface to the shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from kio.schema.types import GroupId

from headrace.coordinator.classic.group import ClassicGroup, ClassicGroupState, ClassicMembership
from headrace.coordinator.classic.rebalance import (
    join_timed_out,
    prepare_rebalance,
    session_timed_out,
    sync_timed_out,
    timers_after_load,
)
from headrace.coordinator.classic.requests import heartbeat, join_group, leave_group, leave_member_response, sync_group
from headrace.coordinator.classic.transition import (
    JOIN,
    SESSION,
    SYNC,
    ClassicTransition,
    group_timer,
    join_error_reply,
    leave_reply,
    session_timer,
    sync_error_reply,
)
from headrace.coordinator.configuration import ClassicGroupConfiguration
from headrace.coordinator.group_registry import Group, ShardState
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult, Reply, SetTimer, TimerKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import to_ms
from headrace.protocol.messages import describe_groups_response as describe_response
from headrace.protocol.messages import heartbeat_request, join_group_request, leave_group_request, sync_group_request

__all__ = ["ClassicGroups", "describe_group"]


class ClassicGroups:
    """A `GroupType`. What is soft about its groups hangs on the groups themselves (`ClassicGroup.membership`)."""

    def __init__(self, state: ShardState) -> None:
        self._state = state

    # --- requests ---

    def join_group(
        self,
        request: join_group_request.JoinGroupRequest,
        context: RequestContext,
        *,
        fresh_id: str,
        now_ms: int,
    ) -> CoordinatorResult:
        """Process JoinGroup (API 11). A new member's id is made of `fresh_id`. Raises CoordinatorError."""
        # Kafka's order of checks (`GroupCoordinatorService.joinGroup`): group id, session timeout, the kind of the
        # group, then whether a member that brings an id can be known.
        group_id, member_id = request.group_id, request.member_id
        if not group_id:
            return _join_refused(context, ErrorCode.invalid_group_id, member_id)
        refusal = self.session_timeout_error(request)
        if refusal is not None:
            return _join_refused(context, refusal, member_id)
        try:
            group, conversion = self._state.registry.classic_group_to_join(group_id)
        except CoordinatorError as error:
            return _join_refused(context, error.code)
        # Not in the registry until its first record is replayed.
        is_new = self._state.registry.get(group_id) is not group
        if is_new and member_id:
            return _join_refused(context, ErrorCode.unknown_member_id, member_id)
        transition = self._transition(group, now_ms, conversion)
        if group.metadata is None:
            transition.group.state_since_ms = now_ms
            transition.write_group()  # or the group would be gone with its offsets, or was never there
        join_group(transition, request, context, fresh_id=fresh_id)
        return transition.result()

    def session_timeout_error(self, request: join_group_request.JoinGroupRequest) -> ErrorCode | None:
        """Return INVALID_SESSION_TIMEOUT for a timeout out of bounds; None for a valid one."""
        configuration, session_ms = self._configuration, to_ms(request.session_timeout)
        # Classic members choose their own timeout, the broker bounds it; a group of KIP-848 has one for all.
        if configuration.min_session_timeout_ms <= session_ms <= configuration.max_session_timeout_ms:
            return None
        return ErrorCode.invalid_session_timeout

    def sync_group(
        self, request: sync_group_request.SyncGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process SyncGroup (API 14)."""
        if not request.group_id:
            return _sync_refused(context, ErrorCode.invalid_group_id)
        group = self._group(request.group_id)
        if group is None:
            return _sync_refused(context, ErrorCode.unknown_member_id)
        transition = self._transition(group, now_ms)
        sync_group(transition, request, context)
        return transition.result()

    def heartbeat(
        self, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process Heartbeat (API 12). Raises CoordinatorError."""
        if not request.group_id:
            raise CoordinatorError(ErrorCode.invalid_group_id, "A group id must not be empty.")
        group = self._group(request.group_id)
        if group is None:
            raise CoordinatorError(ErrorCode.unknown_member_id, f"Group {request.group_id} not found.")
        return heartbeat(group.membership, request, context, now_ms=now_ms)

    def leave_group(
        self, request: leave_group_request.LeaveGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """Process LeaveGroup (API 13). Raises CoordinatorError when the whole request is refused."""
        if not request.group_id:
            raise CoordinatorError(ErrorCode.invalid_group_id, "A group id must not be empty.")
        group = self._group(request.group_id)
        if group is None:
            # Per member, not for the whole request: a client that leaves a group which is gone has what it wanted.
            members = tuple(leave_member_response(each, ErrorCode.unknown_member_id) for each in request.members)
            return CoordinatorResult(replies=(Reply(token=context.token, response=leave_reply(members)),))
        transition = self._transition(group, now_ms)
        leave_group(transition, request, context)
        return transition.result()

    def on_offset_commit(
        self, group: ClassicGroup, member_id: str, result: CoordinatorResult, *, now_ms: int
    ) -> CoordinatorResult:
        """Restart the session of a member that commits offsets."""
        member = group.membership.members.get(member_id)
        if member is None:
            return result
        key = session_timer(group.group_id, member_id)
        # As in Kafka: a consumer that commits is alive, even if its heartbeats are late.
        timer = SetTimer(key=key, deadline_ms=now_ms + member.session_timeout_ms)
        return CoordinatorResult(records=result.records, replies=result.replies, timers=(*result.timers, timer))

    def transition(
        self, membership: ClassicMembership, now_ms: int, records: tuple[CoordinatorRecord, ...] = ()
    ) -> ClassicTransition:
        """Return a transition of the group from `membership`. Its result begins with `records`."""
        return ClassicTransition(membership, self._configuration, now_ms=now_ms, take=self._take, records=records)

    # --- what the shard asks ---

    def owns(self, group: Group) -> bool:
        return isinstance(group, ClassicGroup)

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        """Rebalance groups that exceed a lowered `group.max.size`: the last members to join are removed."""
        for group in self._groups():
            membership = group.membership
            # The setting may have been lowered between two starts. A rebalance lets members join up to the bound, in
            # the order in which they come.
            if membership.can_rebalance and len(membership.members) > self._configuration.max_size:
                transition = self._transition(group, now_ms)
                prepare_rebalance(
                    transition, f"the group has more members than group.max.size = {self._configuration.max_size}"
                )
                self._take(transition.group)
            yield from timers_after_load(group.membership, now_ms=now_ms)

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        group = self._group(key.group_id)
        if group is None:
            return None
        transition = self._transition(group, now_ms)
        if key.kind == SESSION:
            has_result = session_timed_out(transition, key.member_id)
        elif key.kind == JOIN:
            has_result = join_timed_out(transition)
        else:
            has_result = key.kind == SYNC and sync_timed_out(transition)
        return transition.result() if has_result else None

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:  # noqa: ARG002 - GroupType's
        """Do nothing: members of classic groups follow topics themselves."""
        return iter(())

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        return (CancelTimer(key=group_timer(JOIN, group_id)), CancelTimer(key=group_timer(SYNC, group_id)))

    def invalidate(self, group_id: str) -> None:
        """Do nothing: answers are not cached."""

    def invalidate_all(self) -> None:
        """Do nothing: answers are not cached."""

    def on_replayed(self, record: CoordinatorRecord) -> None:
        """Forget the membership of a group that was deleted."""

    # --- parts ---

    @property
    def _configuration(self) -> ClassicGroupConfiguration:
        return self._state.configuration.classic_groups

    def _take(self, membership: ClassicMembership) -> None:
        """A rule's result takes effect: its records are replayed, so the group is there."""
        group = self._group(membership.group_id)
        if group is not None:
            group.membership = membership

    def _group(self, group_id: str) -> ClassicGroup | None:
        group = self._state.registry.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _groups(self) -> Iterator[ClassicGroup]:
        return (group for group in self._state.registry.all() if isinstance(group, ClassicGroup))

    def _transition(
        self, group: ClassicGroup, now_ms: int, records: tuple[CoordinatorRecord, ...] = ()
    ) -> ClassicTransition:
        return self.transition(group.membership.copy(), now_ms, records)


def _join_refused(context: RequestContext, code: ErrorCode, member_id: str = "") -> CoordinatorResult:
    return CoordinatorResult(replies=(Reply(token=context.token, response=join_error_reply(code, member_id)),))


def _sync_refused(context: RequestContext, code: ErrorCode) -> CoordinatorResult:
    return CoordinatorResult(replies=(Reply(token=context.token, response=sync_error_reply(code)),))


_NOT_FOUND_SINCE = 6


def describe_group(group: Group | None, group_id: str, api_version: int) -> describe_response.DescribedGroup:
    """Return the description of a classic group; state Dead, and an error code from version 6 on, for any other."""
    if isinstance(group, ClassicGroup):
        return _classic(group.membership)
    if api_version < _NOT_FOUND_SINCE:
        return _described(group_id, state="Dead")
    message = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
    return _described(group_id, state="Dead", code=ErrorCode.group_id_not_found, message=message)


def _classic(group: ClassicMembership) -> describe_response.DescribedGroup:
    """Describe a classic group; protocol and metadata only if it is stable, since members agree on them only then."""
    is_stable = group.state is ClassicGroupState.STABLE
    members = tuple(
        describe_response.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Between generations the members' subscriptions may be of different protocols.
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    )
    return _described(
        group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol or "" if is_stable else "",
        members=members,
    )


def _described(
    group_id: str,
    *,
    state: str,
    protocol_type: str = "",
    protocol: str = "",
    members: tuple[describe_response.DescribedGroupMember, ...] = (),
    code: ErrorCode = ErrorCode.none,
    message: str | None = None,
) -> describe_response.DescribedGroup:
    return describe_response.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=cast("GroupId", group_id),
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members,
    )
