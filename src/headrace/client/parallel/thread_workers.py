"""Handlers on threads of this process. A handler that takes too long cannot be stopped: its thread is given up.

Then another thread takes its place, and what the first one still brings back counts for nothing. As many threads may be
given up as there are workers; with one more the consumer stops, for something is wrong with all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.retry import Retry
from headrace.client.parallel.work import Failure, Work
from headrace.client.parallel.work_queue import WorkQueue, failure_of, now_ms
from headrace.errors import UserCodeError

__all__ = ["Call", "ThreadWorkers"]

log = logging.getLogger("headrace.client")

Call = Callable[[tuple[ConsumerRecord, ...]], object]
"""The handler, whatever it wants, as a function of a piece of work's records."""


class ThreadWorkers:
    """Mutable: the threads, and which of them were given up."""

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
        for _ in range(self._workers):
            self._begin(None)

    def check(self) -> None:
        """From the thread that polls, now and then: gives up on handlers that took too long."""
        if self._handler_timeout is None:
            return
        with self._work_queue.lock:
            overdue = self._work_queue.plan.overdue(now_ms() - round(self._handler_timeout * 1000))
            fresh = [work for work in overdue if work.number not in self._given_up]
            self._given_up |= {work.number: work for work in fresh}
            too_many = len(self._given_up) > self._workers
        for work in fresh:
            failure = Failure(
                why=f"the handler did not return within {self._handler_timeout:g} s",
                worth_retrying=False,
                still_running=True,
            )
            log.warning("%s: %s; its thread is given up", work.name, failure.why)
            self._begin((work, failure))
        if too_many:
            self._work_queue.stop(
                UserCodeError(
                    "user-code",
                    f"{len(self._given_up)} handlers did not return within {self._handler_timeout:g} s and still run",
                    'give handlers a time limit of their own, or take executor="processes", which can stop them',
                )
            )

    def stop(self, timeout_s: float) -> None:
        """The work_queue is closed: waits for threads that come home, and leaves the others behind."""
        deadline_ms = now_ms() + round(timeout_s * 1000)
        for thread in self._threads:
            thread.join(max(0.0, (deadline_ms - now_ms()) / 1000))
        hanging = sum(thread.is_alive() for thread in self._threads)
        if hanging:
            log.warning("%d handlers are still at work; what they do is not committed", hanging)

    def _begin(self, first: tuple[Work, Failure] | None) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._run, args=(first,), name="headrace-worker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, first: tuple[Work, Failure] | None) -> None:
        if first is not None:
            self._work_queue.ended(*first)  # a dead letter may take its time
        while (work := self._work_queue.take()) is not None:
            failure: Failure | None = None
            try:
                self._call(work.records)
            except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
                failure = failure_of(error, self._retry)
            with self._work_queue.lock:
                was_given_up = self._given_up.pop(work.number, None) is not None
            if was_given_up:
                log.info("the handler of %s returned after all", work.name)
                return
            self._work_queue.ended(work, failure)
