"""LiveMigration: the requests of one shard whose group may be of another protocol than the sender's.

A classic request goes to the consumer group that has members of both protocols, a consumer heartbeat may find a classic
group; everything else is the affair of one kind of group.
"""

from __future__ import annotations

from headrace.coordinator.classic import replies
from headrace.coordinator.classic_groups import ClassicGroups
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.timers import join_timer
from headrace.coordinator.consumer.topic_regexes import MayDescribe
from headrace.coordinator.consumer_groups import ConsumerGroups
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.group_type import ShardState
from headrace.coordinator.migration.classic_members import (
    classic_heartbeat,
    classic_leave,
    classic_sync,
    join_consumer_group,
)
from headrace.coordinator.migration.downgrade import DowngradeRule
from headrace.coordinator.migration.upgrade import upgrade_group
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply
from headrace.protocol.messages import (
    consumer_group_heartbeat_request,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)

__all__ = ["LiveMigration"]


class LiveMigration:
    """Holds nothing of its own."""

    def __init__(
        self, state: ShardState, classic: ClassicGroups, consumer: ConsumerGroups, downgrades: DowngradeRule
    ) -> None:
        self._state = state
        self._classic = classic
        self._consumer = consumer
        self._downgrades = downgrades

    def consumer_group_heartbeat(
        self,
        request: consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
        may_describe: MayDescribe | None = None,
    ) -> CoordinatorResult:
        """API 68. Raises CoordinatorError."""
        return self._consumer.heartbeat(
            request,
            context,
            now_ms=now_ms,
            may_describe=may_describe,
            upgrade=lambda group, group_context: upgrade_group(group.membership, group_context),
        )

    def join_group(
        self,
        request: join_group_request.JoinGroupRequest,
        context: RequestContext,
        *,
        fresh_id: str,
        now_ms: int,
    ) -> CoordinatorResult:
        """API 11. Raises CoordinatorError."""
        group = self._consumer_group(request.group_id)
        if group is None or self._classic.session_timeout_error(request) is not None:
            return self._classic.join_group(request, context, fresh_id=fresh_id, now_ms=now_ms)
        try:
            return join_consumer_group(
                group,
                self._consumer.soft_state(group.group_id),
                request,
                context,
                self._consumer.group_context(group.group_id, now_ms),
                self._downgrades,
                fresh_id=fresh_id,
            )
        except CoordinatorError as error:
            reply = Reply(token=context.token, response=replies.join_error_reply(error.code))
            return CoordinatorResult(replies=(reply,))

    def sync_group(
        self, request: sync_group_request.SyncGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """API 14."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.sync_group(request, context, now_ms=now_ms)
        group_context = self._consumer.group_context(group.group_id, now_ms)
        runs = self._join_timer_runs(group, request.member_id)
        return classic_sync(group, request, context, group_context, self._consumer.topics_by_id(), join_timer_runs=runs)

    def heartbeat(
        self, request: heartbeat_request.HeartbeatRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """API 12. Raises CoordinatorError."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.heartbeat(request, context, now_ms=now_ms)
        group_context = self._consumer.group_context(group.group_id, now_ms)
        runs = self._join_timer_runs(group, request.member_id)
        return classic_heartbeat(group, request, context, group_context, join_timer_runs=runs)

    def leave_group(
        self, request: leave_group_request.LeaveGroupRequest, context: RequestContext, *, now_ms: int
    ) -> CoordinatorResult:
        """API 13. Raises CoordinatorError when the whole request is refused."""
        group = self._consumer_group(request.group_id)
        if group is None:
            return self._classic.leave_group(request, context, now_ms=now_ms)
        return classic_leave(group, request, context, self._consumer.group_context(group.group_id, now_ms))

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """A consumer group with members."""
        group = self._state.registry.get(group_id)
        return group if isinstance(group, ConsumerGroup) and group.members else None

    def _join_timer_runs(self, group: ConsumerGroup, member_id: str) -> bool:
        return self._state.timers.deadline_ms(join_timer(group.group_id, member_id)) is not None
