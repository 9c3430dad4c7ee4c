"""StreamsGroups: the streams groups of one shard, their soft state and the way from a request to its rule.

The rules are in the package of the same name. See `group_type` for the interface to the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import cast

from headrace.coordinator.assignors.task_assignor import TaskAssignor
from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.group_registry import Group
from headrace.coordinator.group_type import ShardState
from headrace.coordinator.modern.member import JOIN_EPOCH
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult, SetTimer, TimerKey
from headrace.coordinator.streams.describe import describe_error, describe_group
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState
from headrace.coordinator.streams.group_timers import (
    assignment_due,
    on_context_change,
    rebalance_timed_out,
    session_timed_out,
    timers_after_load,
)
from headrace.coordinator.streams.heartbeat import process_heartbeat
from headrace.coordinator.streams.heartbeat_request import validate_request
from headrace.coordinator.streams.leave_and_fence import process_leave
from headrace.coordinator.streams.repeatable_heartbeat import RepeatableHeartbeat, is_repeatable
from headrace.coordinator.streams.target_assignment import initial_delay_timer, interval_timer
from headrace.protocol.messages import streams_group_describe_response, streams_group_heartbeat_request

__all__ = ["StreamsGroups"]

_SECONDS_IN_INT32 = 2**31


class StreamsGroups:
    """A `GroupType`. Mutable: soft state, which may vanish at a restart."""

    def __init__(self, state: ShardState, assignor: TaskAssignor) -> None:
        self._state = state
        self._assignor = assignor
        self._soft: dict[str, StreamsGroupSoftState] = {}
        self._first_endpoint_epoch = 0

    # --- requests ---

    def heartbeat(
        self,
        request: streams_group_heartbeat_request.StreamsGroupHeartbeatRequest,
        context: RequestContext,
        *,
        now_ms: int,
    ) -> CoordinatorResult:
        """API 88. Raises CoordinatorError."""
        validate_request(request)
        group_id = request.group_id
        registry = self._state.registry
        group_context = self._group_context(group_id, now_ms)
        soft = self.soft_state(group_id)
        if request.member_epoch < JOIN_EPOCH:
            group = registry.streams_group(group_id)
            return process_leave(group, soft, request, context, group_context)
        if request.member_epoch > JOIN_EPOCH:
            group = registry.streams_group(group_id)
            result = process_heartbeat(group, soft, request, context, group_context)
            return self._with_repeatable(result, group, soft, group_context)
        group, conversion = registry.streams_group_to_join(group_id)
        result = process_heartbeat(group, soft, request, context, group_context)
        keep = partial(self._keep_soft_state, group_id, soft, then=result.soft)
        return replace(result, records=(*conversion, *result.records), soft=keep)

    def describe(
        self,
        group_ids: Iterable[str],
        context: RequestContext,  # noqa: ARG002 - a later version of the API answers by it
        *,
        wants_description: bool = False,
    ) -> tuple[streams_group_describe_response.DescribedGroup, ...]:
        """API 89. A group that is missing or of another type carries GROUP_ID_NOT_FOUND."""
        return tuple(self._described(group_id, wants_description=wants_description) for group_id in group_ids)

    # --- what the shard asks ---

    def owns(self, group: Group) -> bool:
        return isinstance(group, StreamsGroup)

    def on_loaded(self, *, now_ms: int) -> Iterator[SetTimer | CancelTimer]:
        self._first_endpoint_epoch = (now_ms // 1000) % _SECONDS_IN_INT32
        for group in self._state.registry.streams_groups():
            group.rebuild_holders()
            yield from timers_after_load(group, self._group_context(group.group_id, now_ms))

    def fire(self, key: TimerKey, *, now_ms: int) -> CoordinatorResult | None:
        group = self._state.registry.streams_group(key.group_id)
        soft, group_context = self.soft_state(key.group_id), self._group_context(key.group_id, now_ms)
        if key.kind == "session":
            return session_timed_out(group, soft, key.member_id, group_context)
        if key.kind == "rebalance":
            return rebalance_timed_out(group, soft, key.member_id, group_context)
        if key.kind in ("initial-delay", "assignment-interval"):
            return assignment_due(group, soft, group_context)
        return None  # of another kind of group that had this id

    def follow_changes(self, *, now_ms: int) -> Iterator[CoordinatorResult]:
        for group in self._state.registry.streams_groups():
            soft, group_context = self.soft_state(group.group_id), self._group_context(group.group_id, now_ms)
            result = on_context_change(group, soft, group_context)
            if result is not None:
                yield result

    def timers_to_cancel(self, group_id: str) -> tuple[CancelTimer, ...]:
        return (CancelTimer(key=initial_delay_timer(group_id)), CancelTimer(key=interval_timer(group_id)))

    def invalidate(self, group_id: str) -> None:
        soft = self._soft.get(group_id)
        if soft is not None:
            soft.changed()

    def invalidate_all(self) -> None:
        for soft in self._soft.values():
            soft.changed()

    def on_replayed(self, record: CoordinatorRecord) -> None:
        group_id = getattr(record.key, "group_id", None)
        if group_id is None:  # a committed offset's key has `group`: no answer to a heartbeat depends on it
            return
        self.invalidate(group_id)
        if record.value is None and self._state.registry.get(group_id) is None:
            self._soft.pop(group_id, None)

    # --- parts ---

    def _keep_soft_state(
        self, group_id: str, soft: StreamsGroupSoftState, *, then: Callable[[], None] | None = None
    ) -> None:
        """Keep the soft state of a group that exists since its first member's records were replayed."""
        self._soft[group_id] = soft
        if then is not None:
            then()

    def soft_state(self, group_id: str) -> StreamsGroupSoftState:
        """Kept for a group that exists; for another it is kept once its first heartbeat was accepted."""
        known = self._soft.get(group_id)
        if known is None:
            known = StreamsGroupSoftState(endpoint_epoch=self._first_endpoint_epoch)
            if isinstance(self._state.registry.get(group_id), StreamsGroup):
                self._soft[group_id] = known
        return known

    def _group_context(self, group_id: str, now_ms: int) -> GroupContext:
        state = self._state
        return GroupContext(
            configuration=state.configuration.for_streams_group(group_id),
            image=state.image,
            assignor=self._assignor,
            now_ms=now_ms,
            initial_delay_runs=state.timers.deadline_ms(initial_delay_timer(group_id)) is not None,
            interval_timer_runs=state.timers.deadline_ms(interval_timer(group_id)) is not None,
        )

    def _with_repeatable(
        self, result: CoordinatorResult, group: StreamsGroup, soft: StreamsGroupSoftState, group_context: GroupContext
    ) -> CoordinatorResult:
        """With the right to repeat the answer, where there is nothing else in it."""
        if not is_repeatable(result, group, group_context) or self._soft.get(group.group_id) is not soft:
            return result
        set_session = cast("SetTimer", result.timers[0])
        session = self._state.timers.timer(set_session.key)
        if session is None:
            return result
        repeatable = RepeatableHeartbeat(soft, session, set_session.deadline_ms - group_context.now_ms)
        return replace(result, repeatable=repeatable)

    def _described(self, group_id: str, *, wants_description: bool) -> streams_group_describe_response.DescribedGroup:
        try:
            group = self._state.registry.streams_group(group_id)
        except CoordinatorError as error:
            return describe_error(group_id, error.code, error.message)
        soft = self.soft_state(group_id)
        return describe_group(
            group,
            None if group.topology is None else soft.configured_topology(group, group.topology, self._state.image),
            task_offsets=soft.task_offsets,
            assignor_name=self._assignor.name,
            wants_description=wants_description,
        )
