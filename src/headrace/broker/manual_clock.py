"""A clock that stands still until a test moves it: `EmbeddedBroker(clock=ManualClock())`.

`advance` goes from deadline to deadline in their order and does at each what is due, so a run is the same every time,
and returns when all of it took effect. On it are the broker's own deadlines: sessions, rebalance and assignment
delays, offset expiry, transaction timeouts, retention, compaction, the timestamps of LogAppendTime. Not on it: waits
that a client holds a connection open for (a fetch's max wait, throttling), idle connections, fsync, injected delays.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
from collections.abc import Awaitable, Callable

from headrace.broker.clock import wall_clock_ms
from headrace.checked_api import checked_api
from headrace.errors import ConfigError, HeadraceError

__all__ = ["ManualClock"]

# Effects that a callback hands to the loop (a reply, topics a rule asked for) begin in the next turn or the one after.
_TURNS = 4


class _Timer:
    __slots__ = ("callback", "cancelled", "deadline_ms")

    def __init__(self, deadline_ms: int, callback: Callable[[], None]) -> None:
        self.deadline_ms = deadline_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@checked_api(internal=("attach", "detach", "now_ms", "wall_clock_ms", "call_later", "every"))
class ManualClock:
    """Mutable. `advance` may be called from any thread but the broker's; a restarted broker goes on with the same time.

    `start_ms`: where it begins, milliseconds since the epoch; by default the wall clock's time now.
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._now_ms = wall_clock_ms() if start_ms is None else start_ms
        self._target_ms = self._now_ms
        self._timers: list[tuple[int, int, _Timer]] = []
        self._sequence = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: dict[object, None] = {}
        self._nothing_under_way: asyncio.Event | None = None
        self._advancing = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Move the time forward and return when all that became due took effect. Without a running broker it only
        moves. Raises ConfigError for a negative time, HeadraceError `clock-misused` on the broker's own thread."""
        if seconds < 0:
            raise ConfigError(
                "bad-value", f"A clock goes forward only, not by {seconds} s.", "Pass a number of seconds, 0 or more."
            )
        # Two threads that advance at once would each wait for what the other has made due.
        with self._advancing:
            target_ms = self._now_ms + round(seconds * 1000)
            loop = self._loop
            if loop is None:
                self._now_ms = self._target_ms = target_ms
                return
            # `result()` below would block the loop that has to do the work.
            if _running_loop() is loop:
                raise HeadraceError(
                    "clock-misused",
                    "The broker's own thread cannot advance the clock: it would wait for itself.",
                    "Call advance() from the test, not from a function that the broker calls.",
                )
            asyncio.run_coroutine_threadsafe(self._advance_to(target_ms), loop).result()

    # --- the broker's side ---

    def attach(self) -> None:
        """Attach a broker on the running loop. Raises HeadraceError `clock-misused` when another one has this clock."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise HeadraceError(
                "clock-misused", "This ManualClock belongs to another running broker.", "Give each broker its own."
            )
        self._loop = loop
        self._nothing_under_way = asyncio.Event()

    def detach(self) -> None:
        """Detach the broker, and forget its deadlines."""
        self._loop = None
        self._timers.clear()
        self._under_way.clear()

    def now_ms(self) -> int:
        return self._now_ms

    def wall_clock_ms(self) -> int:
        return self._now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> _Timer:
        return self._at(self._now_ms + max(0, math.ceil(delay_ms)), callback)

    async def every(self, interval_ms: int, task: Callable[[], Awaitable[None] | None]) -> None:
        """Do a task repeatedly, as `Clock.every`; of the repetitions that fall into one `advance`, the first and the
        last are done.
        """
        interval = max(1, interval_ms)
        deadline_ms = self._now_ms + interval
        while True:
            await self._do_at(deadline_ms, task)
            # A day in one `advance` holds 288 retention checks, of which only the last finds anything new.
            within_advance = (self._target_ms - self._now_ms) // interval
            deadline_ms = self._now_ms + interval * max(1, within_advance)

    async def _do_at(self, deadline_ms: int, task: Callable[[], Awaitable[None] | None]) -> None:
        """Run a task. It counts as running from its deadline on, so `advance` waits for what follows."""
        due: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def come() -> None:
            if not due.done():
                # Noted before the future resolves: the waiter runs in a later turn of the loop, and `advance` must not
                # return in between.
                self._under_way[due] = None
                due.set_result(None)

        timer = self._at(deadline_ms, come)
        try:
            await due
            under_way = task()
            if under_way is not None:
                await under_way
        finally:
            timer.cancel()
            self._under_way.pop(due, None)
            if not self._under_way and self._nothing_under_way is not None:
                self._nothing_under_way.set()

    def _at(self, deadline_ms: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(deadline_ms, callback)
        heapq.heappush(self._timers, (deadline_ms, next(self._sequence), timer))
        return timer

    async def _advance_to(self, target_ms: int) -> None:
        self._target_ms = target_ms
        # Timer by timer, each with the time of its own deadline, as on a real clock; what a callback arms within the
        # span fires as well.
        while self._timers and self._timers[0][0] <= target_ms:
            _, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._now_ms = max(self._now_ms, timer.deadline_ms)
            timer.callback()
            await self._settle()
        self._now_ms = target_ms
        await self._settle()

    async def _settle(self) -> None:
        # Callbacks resolve futures, whose waiters run a few turns later; there is no way to ask a loop whether it is
        # idle.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        while self._under_way and self._nothing_under_way is not None:
            self._nothing_under_way.clear()
            await self._nothing_under_way.wait()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
