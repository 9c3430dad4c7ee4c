"""The memo of a steady heartbeat: one that changed nothing, so that the same bytes get the same answer again.

A rule is a function of the request, the caller, the group's hard and soft state, the settings, the image and the time.
When its result held neither records nor events nor topics to create, and no timer but the member's own session, then
nothing of that has changed, and the next such heartbeat has the same answer as long as nothing does. What may change is
told by `StreamsGroupSoftState.version`: the shard raises it with every replayed record of the group (committed offsets
alone excepted), soft change, new setting, new image, timer of the group that is set, cancelled or fires, and load.

Time alone changes an answer while an assignment is due: such a heartbeat is not remembered. So whatever is due comes
first, by way of the rule. What stands in front of the rules (who may call, how often) is not known here: whoever keeps
answers keeps them by what those checks depend on.
"""

from __future__ import annotations

from headrace.coordinator.result import CoordinatorResult, SetTimer
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState
from headrace.coordinator.timers import Timer

__all__ = ["RepeatableHeartbeat", "is_repeatable"]


class RepeatableHeartbeat:
    """The right to repeat one answer, and the duty that comes with it: the member's session begins anew each time.

    Made by the shard, kept by whoever keeps the answer.
    """

    __slots__ = ("_session", "_session_timeout_ms", "_soft", "_version")

    def __init__(self, soft: StreamsGroupSoftState, session: Timer, session_timeout_ms: int) -> None:
        self._soft = soft
        self._version = soft.version
        self._session = session
        self._session_timeout_ms = session_timeout_ms

    def renew(self, now_ms: int) -> bool:
        """The member was heard once more. False: something changed, the rule has to answer; nothing was done then."""
        if self._soft.version != self._version:
            return False
        self._session.deadline_ms = now_ms + self._session_timeout_ms
        return True


def is_repeatable(result: CoordinatorResult, group: StreamsGroup, group_context: GroupContext) -> bool:
    """Whether the result of a heartbeat would be the same once more."""
    changes_nothing = (
        not result.records
        and not result.events
        and not result.topics_to_create
        and result.soft is None
        and len(result.replies) == 1
        and len(result.timers) == 1
        and isinstance(result.timers[0], SetTimer)
        and result.timers[0].key.kind == "session"
    )
    waits_for_time = (
        group.group_epoch > group.assignment_epoch
        or group_context.initial_delay_runs
        or group_context.interval_timer_runs
    )
    return changes_nothing and not waits_for_time
