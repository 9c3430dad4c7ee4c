"""Compaction beside the event loop: one thread of low priority reads and writes, the loop puts the results in place.

The thread works at most half of the time and in slices of a millisecond, because what it does in Python holds up the
loop. A log whose batches are corrupt is left alone until the next start, as Kafka does; a disk that is full or
unwilling is asked again in the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.protocol.framing import CorruptBatch
from headrace.storage.log_directory import LogDirectory
from headrace.storage.partition_log import PartitionLog

if TYPE_CHECKING:
    from headrace.storage.cleanup_policy import SegmentSwap

__all__ = ["LogCleaner"]

logger = logging.getLogger("headrace.broker")

# The thread holds the interpreter lock while it works in Python; a millisecond is what a heartbeat may wait for it.
_SLICE_SECONDS = 0.001
_NICENESS = 10


class _Stopped(Exception):
    """The broker stops; what was begun is thrown away."""


class LogCleaner:
    """Mutable: the thread, and the logs that cannot be cleaned."""

    def __init__(self, directory: LogDirectory, *, dedupe_buffer_bytes: int) -> None:
        self._directory = directory
        self._dedupe_buffer_bytes = dedupe_buffer_bytes
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="headrace-cleaner", initializer=_lower_priority
        )
        self._stopping = threading.Event()
        self._slice_began = 0.0
        # By log object: a log that is opened again (a restart, a re-created topic) gets another chance.
        self._given_up: set[PartitionLog] = set()

    async def clean_all(self) -> int:
        """Clean the dirtiest log until none is dirty enough; return how many were cleaned."""
        postponed: set[PartitionLog] = set()
        count = 0
        while not self._stopping.is_set():
            found = self._directory.find_dirtiest_log(leave_out=self._given_up | postponed)
            if found is None:
                break
            log, first_dirty_offset = found
            try:
                await self._clean(log, first_dirty_offset)
                count += 1
            except _Stopped:
                break
            # Trying again would read the same bytes again; a restart checks the log.
            except CorruptBatch as error:
                logger.error(
                    "%s-%d is not compacted any more: %s Restart the broker to check the log.",
                    log.topic,
                    log.partition,
                    error,
                )
                self._given_up.add(log)
            except (OSError, HeadraceError) as error:
                # A log that failed has reported it; here only what the next round may change is worth a line.
                if log.is_usable:
                    logger.error(
                        "Compaction of %s-%d failed (%s); retrying in the next round.", log.topic, log.partition, error
                    )
                postponed.add(log)
        return count

    def close(self) -> None:
        """End what is under way; nothing of it remains."""
        self._stopping.set()
        self._executor.shutdown(wait=True)

    async def _clean(self, log: PartitionLog, first_dirty_offset: int) -> None:
        loop = asyncio.get_running_loop()
        # Nothing is dropped for the sake of a record that a power loss could still take; and what has gaps from now
        # on must be known to have been flushed, else a recovery would take them for holes.
        flushed_offset = await loop.run_in_executor(self._executor, log.flush)
        await loop.run_in_executor(self._executor, lambda: self._directory.checkpoint(sync=True))
        plan = log.plan_cleaning(first_dirty_offset, self._directory.now_ms(), flushed_offset=flushed_offset)
        from headrace.storage.log_cleaning import LogCleaning  # with the first log that is compacted

        cleaning = LogCleaning(plan, dedupe_buffer_bytes=self._dedupe_buffer_bytes, throttle=self._throttle)
        swaps = cleaning.clean_segments()
        before = after = 0
        try:
            # The thread writes new segments, the loop puts them in place: readers never see a half-written one.
            while (swap := await loop.run_in_executor(self._executor, self._next, swaps)) is not None:
                if not log.is_usable or not log.swap_segments(swap):
                    logger.info("Compaction of %s-%d cancelled: the log changed meanwhile.", log.topic, log.partition)
                    return
                before, after = before + swap.bytes_before, after + swap.bytes_after
        finally:
            with contextlib.suppress(ValueError):  # the thread is in it: it ends by itself
                swaps.close()
        self._directory.mark_cleaned(log, cleaning.end_offset)
        logger.info(
            "Compacted %s-%d up to offset %d: %d bytes became %d",
            log.topic,
            log.partition,
            cleaning.end_offset,
            before,
            after,
        )

    def _next(self, swaps: Iterator[SegmentSwap]) -> SegmentSwap | None:
        self._slice_began = time.monotonic()
        return next(swaps, None)

    def _throttle(self, _bytes_read: int) -> None:
        if self._stopping.is_set():
            raise _Stopped
        worked = time.monotonic() - self._slice_began
        # As long a pause as the work before it: at most half of the interpreter's time.
        if worked >= _SLICE_SECONDS:
            self._stopping.wait(worked)
            self._slice_began = time.monotonic()


def _lower_priority() -> None:
    """Lower the priority of this thread.

    On Linux a thread has a niceness of its own; elsewhere the slices have to do.
    """
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
