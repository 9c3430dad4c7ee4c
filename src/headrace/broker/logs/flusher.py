"""fsync, in a thread and never on the event loop: group commit.

A caller that needs durability awaits `wait_until_flushed(log)`. All logs that became dirty while the thread was busy
are flushed in the next round together, so a thousand waiting producers cost one fsync per log and round.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.errors import StateError

__all__ = ["FlushFailed", "Flushable", "Flusher"]

logger = logging.getLogger("headrace.broker")


class FlushFailed(Exception):
    """The disk refused; what it keeps of the last appends cannot be known."""


class Flushable(Protocol):
    """A log that can be flushed."""

    def flush(self) -> object: ...


class Flusher:
    """Mutable: the dirty logs, what waits for each, and one thread."""

    def __init__(self, flushed: Callable[[float, bool], None] | None = None) -> None:
        """`flushed` is called after every flush with its seconds and whether the disk refused it."""
        self._told = flushed
        self._dirty: dict[Flushable, list[Callable[[Exception | None], None]]] = {}
        # One thread: fsyncs of one disk do not become faster side by side, and one round after the other is what makes
        # it a group commit.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-flusher")
        self._round: asyncio.Task[None] | None = None

    def dirty(self, log: Flushable) -> None:
        """Add a log to the next round."""
        self._dirty.setdefault(log, [])

    def after_flush(self, log: Flushable, done: Callable[[], None]) -> None:
        """Begin a round; `done` is called when the log was flushed, and not when that failed."""
        self._dirty.setdefault(log, []).append(lambda error: done() if error is None else None)
        self.start_round()

    def wait_until_flushed(self, log: Flushable) -> asyncio.Future[None]:
        """Return a future that ends when all bytes appended to `log` so far are on the disk. It raises FlushFailed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: Exception | None) -> None:
            # The waiting client may have gone meanwhile, which cancels its future.
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(FlushFailed(str(error)))

        # Always the next round: the one that runs may have passed this log before its last append.
        self._dirty.setdefault(log, []).append(settle)
        self.start_round()
        return future

    def start_round(self) -> None:
        if self._dirty and (self._round is None or self._round.done()):
            self._round = asyncio.get_running_loop().create_task(self._rounds())

    async def run_every(self, interval_ms: int) -> None:
        """Flush at an interval (policy `interval`) until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            self.start_round()

    async def settle(self) -> None:
        """End when nothing is left to flush."""
        self.start_round()
        if self._round is not None:
            await asyncio.wait((self._round,))

    def close(self) -> None:
        """Finish the running flush and begin no other."""
        if self._round is not None:
            # A cancelled round does not stop the thread; `shutdown` waits for its fsync.
            self._round.cancel()
        self._dirty.clear()
        self._executor.shutdown(wait=True)

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while self._dirty:
            # Group commit: whatever became dirty during a round is in the next one, so a slow disk makes rounds larger
            # and not longer.
            batch, self._dirty = self._dirty, {}
            outcomes = await loop.run_in_executor(self._executor, _flush_each, tuple(batch))
            for waiting, (error, seconds) in zip(batch.values(), outcomes, strict=True):
                if self._told is not None:
                    self._told(seconds, error is not None)
                if error is not None:
                    logger.error("Flush failed: %s", error)
                for settle in waiting:
                    settle(error)


def _flush_each(logs: tuple[Flushable, ...]) -> list[tuple[Exception | None, float]]:
    """Flush each log; return its error or None, and the seconds it took."""
    outcomes: list[tuple[Exception | None, float]] = []
    for log in logs:
        refusal: Exception | None = None
        began = time.monotonic()
        # One log that the disk refuses does not keep the others of the round from being flushed.
        try:
            log.flush()
        except (OSError, StateError) as error:
            refusal = error
        outcomes.append((refusal, time.monotonic() - began))
    return outcomes
