"""Fast path of heartbeats that change nothing: the same request bytes get the same reply bytes again.

A rule is a function of the request, the caller, the group's hard and soft state, the settings, the image and the time.
If its result had no records, events, topics to create or soft changes, and no timer but the member's own session, then
none of that changed, and the next such heartbeat has the same reply as long as nothing does. Changes are counted by
`StreamsGroupSoftState.version`: the shard raises it with every replayed record of the group (except committed offsets),
soft change, setting, image, load, and timer of the group that is set, cancelled or fires.

Time alone changes a reply while an assignment is due, so such a heartbeat is not repeatable. `is_repeatable` is the
only eligibility predicate. Checks before the rules (authorization, quotas) are not known here: the cache of replies in
the broker is keyed by what those checks depend on.
"""

from __future__ import annotations

from headrace.coordinator.result import CoordinatorResult, SetTimer
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import GroupContext, StreamsGroupSoftState
from headrace.coordinator.timers import Timer

__all__ = ["RepeatableHeartbeat", "is_repeatable"]


class RepeatableHeartbeat:
    """Permission to repeat one reply; each repetition restarts the member's session. Implements `Repeatable`.

    The shard creates it, the broker's cache of replies keeps it.
    """

    __slots__ = ("_session", "_session_timeout_ms", "_soft", "_version")

    def __init__(self, soft: StreamsGroupSoftState, session: Timer, session_timeout_ms: int) -> None:
        self._soft = soft
        self._version = soft.version
        self._session = session
        self._session_timeout_ms = session_timeout_ms

    def renew(self, now_ms: int) -> bool:
        """Restart the member's session. False, without side effects, if the state changed: the rule has to run."""
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
