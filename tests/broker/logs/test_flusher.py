"""Group commit: many waiters, few fsyncs, none of them on the event loop's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from headrace.broker.logs.flusher import Flusher, FlushFailed


class SlowLog:
    """A log whose flush waits for permission, and notes who flushed."""

    def __init__(self) -> None:
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.began = threading.Event()
        self.flushes = 0
        self.threads: set[int] = set()
        self.error: OSError | None = None

    def flush(self) -> None:
        self.began.set()
        self.may_flush.wait(20)
        self.flushes += 1
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error


@pytest.fixture
async def flusher() -> AsyncIterator[Flusher]:
    running = Flusher()
    yield running
    running.close()


async def test_waiters_that_come_during_a_flush_share_the_next_one(flusher: Flusher) -> None:
    log = SlowLog()
    log.may_flush.clear()
    first = flusher.wait_until_flushed(log)
    await asyncio.to_thread(log.began.wait, 20)
    others = [flusher.wait_until_flushed(log) for _ in range(1000)]
    assert not first.done()
    log.may_flush.set()
    await asyncio.gather(first, *others)
    assert log.flushes == 2
    assert threading.get_ident() not in log.threads


async def test_a_refusing_disk_is_told_to_every_waiter_of_that_log_only(flusher: Flusher) -> None:
    broken, sound = SlowLog(), SlowLog()
    broken.error = OSError(5, "Input/output error")
    outcomes = await asyncio.gather(
        flusher.wait_until_flushed(broken),
        flusher.wait_until_flushed(broken),
        flusher.wait_until_flushed(sound),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [FlushFailed, FlushFailed, type(None)]


async def test_dirty_logs_wait_for_the_interval(flusher: Flusher) -> None:
    log = SlowLog()
    flusher.dirty(log)
    assert log.flushes == 0
    interval = asyncio.create_task(flusher.run_every(1))
    await asyncio.to_thread(log.began.wait, 20)
    interval.cancel()
    await flusher.settle()
    assert log.flushes == 1


async def test_after_flush_is_called_only_when_the_disk_took_it(flusher: Flusher) -> None:
    log, told = SlowLog(), []
    flusher.after_flush(log, lambda: told.append("first"))
    await flusher.wait_until_flushed(log)
    log.error = OSError(5, "Input/output error")
    flusher.after_flush(log, lambda: told.append("second"))
    await flusher.settle()
    assert told == ["first"]
