"""Parked fetches wake by bytes, by deletion, by time; nothing stays behind."""

from __future__ import annotations

import asyncio

from headrace.broker.logs.delayed_fetch import DelayedFetches

LONG_MS = 600_000


async def parked(fetches: DelayedFetches, *partitions: tuple[str, int], missing: int) -> asyncio.Task[bool]:
    task = asyncio.create_task(fetches.wait(partitions, missing_bytes=missing, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    return task


async def test_bytes_of_several_partitions_add_up() -> None:
    fetches = DelayedFetches()
    task = await parked(fetches, ("t", 0), ("t", 1), missing=100)
    fetches.appended("t", 0, 60)
    fetches.appended("other", 0, 1000)
    await asyncio.sleep(0)
    assert not task.done()
    fetches.appended("t", 1, 40)
    assert await task
    assert fetches.parked_count == 0


async def test_one_append_wakes_everybody_who_waits_for_it() -> None:
    fetches = DelayedFetches()
    tasks = [await parked(fetches, ("t", 0), missing=1) for _ in range(10)]
    fetches.appended("t", 0, 1)
    assert all(await asyncio.gather(*tasks))


async def test_deletion_wakes() -> None:
    fetches = DelayedFetches()
    task = await parked(fetches, ("t", 0), missing=1)
    fetches.partition_removed("t", 0)
    assert not await task


async def test_time_wakes() -> None:
    fetches = DelayedFetches()
    assert not await fetches.wait([("t", 0)], missing_bytes=1, timeout_ms=1)
    assert fetches.parked_count == 0


async def test_a_cancelled_fetch_leaves_nothing_behind() -> None:
    fetches = DelayedFetches()
    task = await parked(fetches, ("t", 0), ("t", 0), ("t", 1), missing=1)
    assert fetches.parked_count == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert fetches.parked_count == 0
    fetches.appended("t", 0, 1)
