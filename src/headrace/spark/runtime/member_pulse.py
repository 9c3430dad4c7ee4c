"""Whether the member's thread runs: a process that was suspended may have lost its tasks without knowing it yet."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.deadline import lease_clock_ms

__all__ = ["MemberPulse"]

STILL_MS = 2_000


class MemberPulse:
    """When the member's thread has run last, by a clock that counts while the process or the machine is suspended."""

    def __init__(self, clock_ms: Callable[[], int] = lease_clock_ms) -> None:
        self._clock_ms = clock_ms
        self._beat_ms = clock_ms()
        self._steady_since_ms = self._beat_ms

    def beat(self) -> None:
        """Note a round of the thread."""
        now_ms = self._clock_ms()
        if now_ms - self._beat_ms > STILL_MS:
            self._steady_since_ms = now_ms + STILL_MS
        self._beat_ms = now_ms

    @property
    def is_steady(self) -> bool:
        """Whether the thread runs, and has done so for two seconds if it stood still before."""
        now_ms = self._clock_ms()
        return now_ms - self._beat_ms <= STILL_MS and now_ms >= self._steady_since_ms
