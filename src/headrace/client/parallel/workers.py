"""Workers in this process: threads for functions, an asyncio loop for coroutines.

A thread cannot be stopped. A handler that exceeds its time limit keeps its thread, another thread takes its place, and
its late result is ignored. As many threads may be abandoned as there are workers; with one more the consumer stops,
because every handler seems to hang. A coroutine that exceeds its limit is cancelled, and the attempt may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.work import Failure, Retry, Work
from headrace.client.parallel.work_queue import WorkQueue, failure_of, now_ms
from headrace.errors import UserCodeError

__all__ = ["AsyncioWorkers", "Call", "ThreadWorkers"]

log = logging.getLogger("headrace.client")

Call = Callable[[tuple[ConsumerRecord, ...]], object]
"""The user's handler, adapted to take a tuple of records."""


class ThreadWorkers:
    """Threads that call the handler. Mutable."""

    def __init__(
        self, work_queue: WorkQueue, call: Call, *, workers: int, retry: Retry, handler_timeout: float | None
    ) -> None:
        self._work_queue = work_queue
        self._call = call
        self._workers = workers
        self._retry = retry
        self._handler_timeout = handler_timeout
        self._given_up: dict[int, Work] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start one thread per worker."""
        for _ in range(self._workers):
            self._begin(None)

    def check(self) -> None:
        """Abandon handlers that exceeded their time limit. Called regularly by the thread that polls."""
        if self._handler_timeout is None:
            return
        with self._work_queue.lock:
            # `_given_up` is changed under the queue's lock, as it is in `_run`: a handler that returns at this moment
            # is either counted as finished or as abandoned, never both.
            overdue = self._work_queue.plan.overdue(now_ms() - round(self._handler_timeout * 1000))
            fresh = [work for work in overdue if work.number not in self._given_up]
            self._given_up |= {work.number: work for work in fresh}
            # As many abandoned threads as workers are tolerated: one more, and every handler seems to hang.
            too_many = len(self._given_up) > self._workers
        for work in fresh:
            failure = Failure(
                why=f"the handler did not return within {self._handler_timeout:g} s",
                worth_retrying=False,
                still_running=True,
            )
            log.warning("%s: %s; its thread is abandoned", work.name, failure.why)
            self._begin((work, failure))
        if too_many:
            self._work_queue.stop(
                UserCodeError(
                    "user-code",
                    f"{len(self._given_up)} handlers did not return within {self._handler_timeout:g} s and still run",
                    'Set a time limit inside the handler, or use executor="processes", which can stop handlers.',
                )
            )

    def stop(self, timeout_s: float) -> None:
        """Wait for the threads; those that still run afterwards are left behind. The work queue is closed before."""
        deadline_ms = now_ms() + round(timeout_s * 1000)
        for thread in self._threads:
            thread.join(max(0.0, (deadline_ms - now_ms()) / 1000))
        hanging = sum(thread.is_alive() for thread in self._threads)
        if hanging:
            log.warning("%d handlers are still running; their results will not be committed", hanging)

    def _begin(self, first: tuple[Work, Failure] | None) -> None:
        # Abandoned threads that returned are forgotten here, else a consumer with a slow handler would collect them.
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._run, args=(first,), name="headrace-worker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, first: tuple[Work, Failure] | None) -> None:
        if first is not None:
            # On the new thread, not on the polling one: polls must go on while a dead letter is written.
            self._work_queue.end_attempt(*first)
        while (work := self._work_queue.take()) is not None:
            failure: Failure | None = None
            try:
                self._call(work.records)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
                failure = failure_of(error, self._retry)
            with self._work_queue.lock:
                was_given_up = self._given_up.pop(work.number, None) is not None
            if was_given_up:
                log.info("The handler of %s returned after its time limit; its result is ignored", work.name)
                return
            self._work_queue.end_attempt(work, failure)


log = logging.getLogger("headrace.client")

AsyncCall = Callable[[tuple[ConsumerRecord, ...]], Awaitable[object]]
LAST_GRACE_S = 5.0


class AsyncioWorkers:
    """A thread with an asyncio loop that runs up to `workers` handlers at a time. Mutable."""

    def __init__(
        self, work_queue: WorkQueue, call: AsyncCall, *, workers: int, retry: Retry, handler_timeout: float | None
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
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Do nothing: the loop watches the time limits of its tasks."""

    def stop(self, timeout_s: float) -> None:
        """Wait for running tasks, then cancel those that are left. The work queue is closed before."""
        self._thread.join(timeout_s)
        self._limit.set()
        with self._work_queue.lock:
            self._work_queue.notify()
        self._thread.join(2 * LAST_GRACE_S)
        if self._thread.is_alive():
            log.warning("Cancelled handlers are still running; their results will not be committed")

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        # The semaphore is taken before the work: work that is taken but cannot begin would hold its key's queue.
        free = asyncio.Semaphore(self._workers)
        changed = asyncio.Event()
        self._work_queue.notify_loop(asyncio.get_running_loop(), changed.set)
        while not self._work_queue.closed:
            await free.acquire()
            work = await self._next(changed)
            if work is None:
                break
            task = asyncio.create_task(self._one(work, free))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        # The queue is closed: running handlers may finish until `stop` sets the limit, then they are cancelled.
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
                await asyncio.wait_for(changed.wait(), self._work_queue.max_wait_s())
            except TimeoutError:
                continue
        return None

    async def _one(self, work: Work, free: asyncio.Semaphore) -> None:
        failure: Failure | None = None
        try:
            # `limit.expired` below distinguishes this limit from a TimeoutError that the handler raised itself, which
            # follows the retry policy.
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
        # The loop must not block: a dead letter is written with a blocking client, on a thread of the default executor.
        if failure is None:
            self._work_queue.end_attempt(work, None)
        elif self._work_queue.attempt_failed(work, failure):
            await asyncio.to_thread(self._work_queue.give_up, work, failure)
