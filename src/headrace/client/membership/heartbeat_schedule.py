"""When the next heartbeat is due.

Steady: each interval of the server, but at most `max_interval_ms`, so that a peer's leave is noticed fast. While the
group may be converging (after a join, a change, an acknowledgement) the beats come after 50, 100, 200 ms … up to the
interval; nobody is told that a peer left or gave something back, only one's own next heartbeat shows it. They stay at
200 ms while the coordinator delays an assignment (status 5: a delayed target is computed by the next heartbeat, not by
a timer), and at 100 ms for as long as the member knows of tasks that are to come (`expect`). Failures back off like
`retry.backoff.ms`. Jitter comes from a number source in [0, 1).

Whatever an application acknowledges, no more than `BURST` heartbeats go out in `BURST_WINDOW_MS`, and none while the
broker throttles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["BURST", "BURST_WINDOW_MS", "FIRST_FAST_BEAT_MS", "HeartbeatSchedule"]

FIRST_FAST_BEAT_MS = 50
DELAYED_BEAT_MS = 200
EXPECTING_BEAT_MS = 100
BURST = 5
BURST_WINDOW_MS = 200
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1_000


class HeartbeatSchedule:
    """Mutable: one deadline and the step that follows it."""

    def __init__(self, *, max_interval_ms: int, chance: Callable[[], float]) -> None:
        self._max_interval_ms = max_interval_ms
        self._interval_ms = max_interval_ms
        self._chance = chance
        self._fast_step_ms: int | None = None
        self._expect_until_ms = 0
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = 0
        self._due_ms = 0
        self._sent_ms: deque[int] = deque(maxlen=BURST)

    @property
    def due_ms(self) -> int:
        """When the next heartbeat may and should go."""
        floor_ms = self._sent_ms[0] + BURST_WINDOW_MS if len(self._sent_ms) == BURST else 0
        return max(self._due_ms, self._not_before_ms, floor_ms)

    def throttled(self, now_ms: int, throttle_ms: int) -> None:
        """The broker asks for silence, in whatever answer."""
        self._not_before_ms = max(self._not_before_ms, now_ms + throttle_ms)

    def not_before(self, time_ms: int) -> int:
        """That time, or when the broker's throttling ends if that is later."""
        return max(time_ms, self._not_before_ms)

    def beat_now(self, now_ms: int) -> None:
        """There is something to tell: due at once, except while the broker throttles."""
        self._due_ms = now_ms

    def hurry(self) -> None:
        """The group may be converging: begin the fast beats anew with the next answer."""
        self._fast_step_ms = FIRST_FAST_BEAT_MS

    def expect(self, now_ms: int, until_ms: int) -> None:
        """Tasks are to come: no pause longer than 100 ms until then. A time that has passed ends it."""
        self._expect_until_ms = until_ms
        if until_ms > now_ms:
            self._due_ms = min(self._due_ms, now_ms + EXPECTING_BEAT_MS)

    def sent(self, now_ms: int) -> None:
        """A heartbeat went out."""
        self._sent_ms.append(now_ms)

    def answered(self, now_ms: int, *, interval_ms: int, throttle_ms: int, delayed: bool) -> None:
        """A heartbeat succeeded; the reply named these times."""
        self._interval_ms = min(interval_ms, self._max_interval_ms) if interval_ms > 0 else self._max_interval_ms
        self._backoff_ms = RETRY_BACKOFF_MS
        self._not_before_ms = now_ms + throttle_ms
        if delayed and self._fast_step_ms is None:
            self._fast_step_ms = DELAYED_BEAT_MS
        step_ms = min(self._next_step(delayed=delayed), self._interval_ms)
        if self._expect_until_ms > now_ms:
            step_ms = min(step_ms, EXPECTING_BEAT_MS)
        self._due_ms = now_ms + self._shortened(step_ms)

    def failed(self, now_ms: int, *, throttle_ms: int = 0) -> None:
        """No answer, or one that asks to come again."""
        self.throttled(now_ms, throttle_ms)
        self._due_ms = now_ms + self._shortened(self._backoff_ms)
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _next_step(self, *, delayed: bool) -> int:
        step_ms = self._fast_step_ms
        if step_ms is None:
            return self._interval_ms
        following = min(step_ms * 2, DELAYED_BEAT_MS) if delayed else step_ms * 2
        self._fast_step_ms = following if following < self._interval_ms else None
        return step_ms

    def _shortened(self, delay_ms: int) -> int:
        # Up to a fifth earlier, never later: members that were started together drift apart, no deadline is missed.
        return max(1, round(delay_ms * (1.0 - 0.2 * self._chance())))
