"""Coroutines as handlers, on a loop of their own in a thread: as many at once as there are workers.

A handler that takes too long is cancelled; that is its failure, and worth another attempt.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.retry import Retry
from headrace.client.parallel.work import Failure, Work
from headrace.client.parallel.work_queue import WorkQueue, failure_of

__all__ = ["AsyncioWorkers"]

log = logging.getLogger("headrace.client")

Call = Callable[[tuple[ConsumerRecord, ...]], Awaitable[object]]
LAST_GRACE_S = 5.0


class AsyncioWorkers:
    """Mutable: the loop's thread and the tasks on it."""

    def __init__(
        self, work_queue: WorkQueue, call: Call, *, workers: int, retry: Retry, handler_timeout: float | None
    ) -> None:
        self._work_queue = work_queue
        self._call = call
        self._workers = workers
        self._retry = retry
        self._handler_timeout = handler_timeout
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._limit = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-asyncio-workers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """The loop watches the time of its tasks."""

    def stop(self, timeout_s: float) -> None:
        """The work_queue is closed: tasks that are still there when the time is up are cancelled."""
        self._thread.join(timeout_s)
        self._limit.set()
        with self._work_queue.lock:
            self._work_queue.notify()
        self._thread.join(2 * LAST_GRACE_S)
        if self._thread.is_alive():
            log.warning("handlers do not end though they were cancelled; what they do is not committed")

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        free = asyncio.Semaphore(self._workers)
        changed = asyncio.Event()
        self._work_queue.tell(asyncio.get_running_loop(), changed.set)
        while not self._work_queue.closed:
            await free.acquire()
            work = await self._next(changed)
            if work is None:
                break
            task = asyncio.create_task(self._one(work, free))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        while self._tasks and not self._limit.is_set():
            await asyncio.wait(tuple(self._tasks), timeout=0.1)
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LAST_GRACE_S)

    async def _next(self, changed: asyncio.Event) -> Work | None:
        while not self._work_queue.closed:
            changed.clear()
            work = self._work_queue.try_take()
            if work is not None:
                return work
            try:
                await asyncio.wait_for(changed.wait(), self._work_queue.wait_s())
            except TimeoutError:
                continue
        return None

    async def _one(self, work: Work, free: asyncio.Semaphore) -> None:
        failure: Failure | None = None
        try:
            async with asyncio.timeout(self._handler_timeout) as limit:
                await self._call(work.records)
        except asyncio.CancelledError:
            failure = Failure(why="the consumer was closed and did not wait any longer", worth_retrying=True)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            failure = failure_of(error, self._retry)
            if isinstance(error, TimeoutError) and limit.expired():
                why = f"the handler did not return within {self._handler_timeout:g} s, and was cancelled"
                failure = Failure(why=why, worth_retrying=True, error=error)
        finally:
            free.release()
        if failure is None:
            self._work_queue.ended(work, None)
        elif self._work_queue.attempt_failed(work, failure):
            await asyncio.to_thread(self._work_queue.give_up, work, failure)  # a dead letter may take its time
