"""`ParallelConsumer`: one thread polls, handlers run elsewhere, finished records are committed.

The thread in `run` polls, pauses and resumes partitions, and commits. It never waits for a handler, except within the
drain timeout of a rebalance. `WorkPlan` holds the rules; the workers are threads, processes or an asyncio loop.
"""

from __future__ import annotations

import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from headrace.checked_api import checked_api
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import ConsumerRecord, RebalanceListener
from headrace.client.parallel.commits import AssignmentListener, PipelineCommits
from headrace.client.parallel.process_workers import ProcessWorkers
from headrace.client.parallel.stats import PipelineStats, pipeline_families
from headrace.client.parallel.work import DeadLetterTopic, FailurePolicy, Order, Retry
from headrace.client.parallel.work_plan import WorkPlan
from headrace.client.parallel.work_queue import DeadLetters, WorkQueue, now_ms
from headrace.client.parallel.workers import AsyncioWorkers, ThreadWorkers
from headrace.errors import ConfigError, MaxPollExceeded
from headrace.metrics.prometheus_text import Family, prometheus_text

__all__ = ["Executor", "ParallelConsumer", "PipelineSettings", "Workers"]

Executor = Literal["auto", "threads", "processes", "asyncio"]
Handler = Callable[[Any], Any]


class Workers(Protocol):
    """Workers of one of the three kinds."""

    def start(self) -> None: ...
    def check(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Settings of a parallel consumer, checked. Times in seconds."""

    workers: int
    executor: Executor
    order: Order
    batch_size: int
    buffer_records: int
    buffer_bytes: int
    retry: Retry
    on_failure: FailurePolicy
    handler_timeout: float | None
    drain_timeout: float
    commit_interval: float
    repeat_limit: int | None

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "buffer_records", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "give 1 or more")
        for name in ("drain_timeout", "commit_interval"):
            if getattr(self, name) < 0:
                raise _wrong(name, getattr(self, name), "give seconds, 0 or more")
        if self.handler_timeout is not None and self.handler_timeout <= 0:
            raise _wrong("handler_timeout", self.handler_timeout, "give seconds above 0, or None for no limit")
        if self.repeat_limit is not None and self.repeat_limit < 1:
            raise _wrong("repeat_limit", self.repeat_limit, "give 1 or more, or None for no limit")
        if self.order not in get_args(Order):
            raise _wrong("order", self.order, f"give one of {', '.join(get_args(Order))}")
        if self.executor not in get_args(Executor):
            raise _wrong("executor", self.executor, f"give one of {', '.join(get_args(Executor))}")
        if self.on_failure not in ("stop", "skip") and not isinstance(self.on_failure, DeadLetterTopic):
            raise _wrong("on_failure", self.on_failure, 'give "stop", "skip" or DeadLetter("topic")')

    def workers_for(self, work_queue: WorkQueue, handler: Handler) -> Workers:
        """Create the workers for a handler.

        Raises:
            ConfigError: `bad-value` if the handler does not fit the executor.
        """
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine
        )
        chosen = ("asyncio" if is_async else "threads") if self.executor == "auto" else self.executor
        if is_async != (chosen == "asyncio"):
            kind = "a coroutine function" if is_async else "a plain function"
            raise _wrong("executor", chosen, f'the handler is {kind}: leave it at "auto", or change the handler')
        batches = self.batch_size > 1
        limits: Any = {"workers": self.workers, "retry": self.retry, "handler_timeout": self.handler_timeout}
        if chosen == "processes":
            return ProcessWorkers(work_queue, handler, batches=batches, **limits)

        def call(records: tuple[ConsumerRecord, ...]) -> Any:
            return handler(list(records) if batches else records[0])

        return (
            AsyncioWorkers(work_queue, call, **limits)
            if chosen == "asyncio"
            else ThreadWorkers(work_queue, call, **limits)
        )


def _wrong(name: str, value: object, fix: str) -> ConfigError:
    return ConfigError("bad-value", f"Invalid {name} {value!r} of a ParallelConsumer.", fix, key=name)


log = logging.getLogger("headrace.client")

# The pace of what only the polling thread does: time limits of handlers, commits, `stop`.
LONGEST_POLL_S = 0.5
RECORDS_PER_POLL = 500
LAST_WORDS_S = 5.0


@checked_api()
class ParallelConsumer:
    """Consumer that processes records of different keys in parallel and commits what has finished.

    It takes a `Consumer` over: its polls, commits and rebalances; `run` closes it at the end. Delivery is at least
    once: after a crash, records that were with handlers or finished and not yet committed are processed again, and no
    others (`repeat_limit` bounds both together).

    Example:
        `ParallelConsumer(Consumer("orders", group_id="billing"), charge, workers=16).run()`
    """

    def __init__(
        self,
        consumer: Consumer,
        handler: Callable[[Any], object],
        *,
        workers: int = 8,
        executor: Executor = "auto",
        order: Order = "key",
        batch_size: int = 1,
        buffer_records: int = 10_000,
        buffer_bytes: int = 64 << 20,
        retry: Retry | None = None,
        on_failure: FailurePolicy = "stop",
        handler_timeout: float | None = None,
        drain_timeout: float = 30.0,
        commit_interval: float = 0.5,
        repeat_limit: int | None = None,
    ) -> None:
        """Args:
            consumer: A subscribed consumer with a `group.id`.
            handler: Called with a `ConsumerRecord`, or with a list of records of one key (or partition) if `batch_size`
                > 1. A coroutine function runs on an asyncio loop of its own.
            workers: Handlers that run at the same time.
            executor: `threads`, `processes`, `asyncio`, or `auto`: asyncio for coroutine functions, threads otherwise.
            order: Records that are processed one after the other: those of a `key`, of a `partition`, or `none`.
            batch_size: The most records of one call.
            buffer_records: The most records held in memory.
            buffer_bytes: The approximate bytes held at most.
            retry: How often a failed record is retried; see `Retry`.
            on_failure: After the last attempt: `stop`, `skip`, or a `DeadLetter` topic.
            handler_timeout: Seconds that one call may take; None for no limit.
            drain_timeout: Seconds to wait for handlers at a rebalance and at the end; at most half of
                `max.poll.interval.ms`.
            commit_interval: Seconds between commits.
            repeat_limit: The most records that a crash repeats; None for no limit.

        Raises:
            ConfigError: Invalid values, or a consumer without a `group.id`.
        """
        settings = PipelineSettings(
            workers=workers,
            executor=executor,
            order=order,
            batch_size=batch_size,
            buffer_records=buffer_records,
            buffer_bytes=buffer_bytes,
            retry=retry or Retry(),
            on_failure=on_failure,
            handler_timeout=handler_timeout,
            drain_timeout=drain_timeout,
            commit_interval=commit_interval,
            repeat_limit=repeat_limit,
        )
        self._consumer = consumer
        self._letters: DeadLetters | None = None
        policy: Literal["stop", "skip"] | DeadLetters
        if on_failure == "stop" or on_failure == "skip":
            policy = on_failure
        else:
            policy = self._letters = DeadLetters(on_failure.topic, lambda: self._driven.new_client())
        plan = WorkPlan(
            order=order,
            batch_size=batch_size,
            buffer_records=buffer_records,
            buffer_bytes=buffer_bytes,
            # Each partition may hold this much whatever the others hold: with less, workers would wait for a poll
            # between two records.
            least_share=2 * workers * batch_size,
            retry=settings.retry,
            repeat_limit=repeat_limit,
        )
        self._work_queue = WorkQueue(plan, on_failure=policy, wake_poller=consumer.wakeup)
        self._workers = settings.workers_for(self._work_queue, handler)
        self._commits = PipelineCommits(consumer, self._work_queue, interval_s=commit_interval)
        self._driven = consumer.drive(self._listen)
        # Revocations are handled within `poll`. A drain as long as max.poll.interval.ms would exceed the interval of
        # the poll itself, so the member would be removed and lose its partitions instead of giving them back.
        poll_interval_s = self._driven.configuration["max.poll.interval.ms"] / 1000
        self._drain_timeout = self._listener.drain_timeout = min(drain_timeout, poll_interval_s / 2)
        self._poll_s = min(LONGEST_POLL_S, poll_interval_s / 4)
        self._stopping = threading.Event()
        self._ran = False

    @property
    def stats(self) -> PipelineStats:
        """The statistics at this moment; from any thread."""
        return self._commits.stats()

    def metric_families(self) -> list[Family]:
        """Return the consumer's metrics and these statistics; from any thread."""
        own = pipeline_families(self.stats, self._driven.configuration["client.id"])
        return [*self._consumer.metric_families(), *own]

    def prometheus(self) -> str:
        """Return the same as a page in Prometheus' text format."""
        return prometheus_text(self.metric_families())

    def stop(self) -> None:
        """Let handlers finish, commit, and make `run` return. From any thread, and from a signal handler."""
        self._stopping.set()
        self._consumer.wakeup()

    def run(self, until: Literal["stopped", "caught-up"] = "stopped") -> None:
        """Process records until `stop`, SIGTERM or SIGINT (on the main thread), or until everything that exists is
        finished.

        However it ends, handlers have `drain_timeout` to finish, what they finished is committed, and the group is
        left.

        Args:
            until: `stopped`, or `caught-up` to return when no record is left.

        Raises:
            UserCodeError: A handler failed for good and `on_failure` is "stop".
            HeadraceError: Errors that end a consumer.
        """
        if self._ran:
            raise ConfigError("wrong-usage", "a ParallelConsumer runs once", "make a new one, with a new consumer")
        self._ran = True
        drained = False
        # Only "caught-up" needs a turn when everything polled is finished; otherwise a parked Fetch need not be
        # disturbed.
        self._work_queue.wakes_when_idle = until == "caught-up"
        try:
            if self._letters is not None:
                self._letters.check()
            self._workers.start()
            with self._signals():
                self._take_over()
                while not self._is_over(until):
                    pass
                # Within the signal handlers' scope: a second SIGINT still ends a drain that takes too long.
                self._drain()
            drained = True
        finally:
            self._end(drained=drained)
        if self._work_queue.error is not None:
            raise self._work_queue.error

    # The thread that polls.

    def _listen(self, own: RebalanceListener) -> RebalanceListener:
        self._listener = AssignmentListener(
            own, self._work_queue, self._commits, lambda partitions: self._driven.topic_ids(partitions)
        )
        return self._listener

    def _take_over(self) -> None:
        """Adopt partitions that the consumer has already: assigned by hand, or by earlier polls."""
        had = self._consumer.assignment()
        if had:
            self._listener.adopt(had)

    def _is_over(self, until: str) -> bool:
        """Run one turn and return whether it was the last."""
        self._poll(self._commits.poll_timeout_s(self._poll_s))
        self._workers.check()
        self._commits.commit_if_due()
        if self._stopping.is_set() or self._work_queue.error is not None:
            return True
        return until == "caught-up" and self._is_caught_up()

    def _poll(self, timeout_s: float) -> None:
        plan = self._work_queue.plan
        with self._work_queue.lock:
            # Paused partitions are not fetched, but `poll` goes on: heartbeats prove that the process lives, polls that
            # it makes progress (`max.poll.interval.ms`). A full buffer must not cost the membership.
            pause, resume = plan.update_paused()
            room = plan.room()
        self._consumer.pause(pause)
        self._consumer.resume(resume)
        try:
            records = self._consumer.poll_records(timeout_s, max_records=min(room, RECORDS_PER_POLL))
        except MaxPollExceeded as error:
            # Only a suspended process or a very long listener comes here: the loop never waits for handlers. The
            # partitions are lost already; the next poll joins again.
            log.warning("Poll interval exceeded, the process was suspended; joining the group again: %s", error)
            return
        with self._work_queue.lock:
            plan.add_records(records, self._consumer.positions())
            if records:
                self._work_queue.notify()

    def _is_caught_up(self) -> bool:
        with self._work_queue.lock:
            # Before the first assignment everything is "caught up": lag of nothing is 0.
            if self._work_queue.plan.held or not self._listener.has_had_partitions:
                return False
        return not any(self._consumer.lag().values())

    def _drain(self) -> None:
        """Wait for handlers and keep polling, so that rebalances are answered; nothing new begins."""
        with self._work_queue.lock:
            self._work_queue.plan.halt()
        deadline_ms = now_ms() + round(self._drain_timeout * 1000)
        while not self._work_queue.wait_drained(None, 0.1) and now_ms() < deadline_ms:
            self._poll(0.0)
            self._workers.check()
            self._commits.commit_if_due()

    def _end(self, *, drained: bool) -> None:
        # 1. After an error in `poll` there was no drain. Handlers still get their time, but without polls.
        if not drained:
            with self._work_queue.lock:
                self._work_queue.plan.halt()
            self._work_queue.wait_drained(None, self._drain_timeout)
        # 2. Workers end. Those that exceeded the drain timeout get no further time.
        self._work_queue.close()
        with self._work_queue.lock:
            hanging = bool(self._work_queue.plan.in_flight())
        self._workers.stop(0.0 if hanging else LAST_WORDS_S)
        # 3. The last commit comes before `close`, whose revocation then finds nothing left to wait for.
        self._commits.commit_now(self._consumer.assignment())
        self._listener.drain_timeout = 0.0
        try:
            self._consumer.close()
        finally:
            if self._letters is not None:
                self._letters.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop gracefully on SIGTERM and on the first SIGINT; the second SIGINT has its previous effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def ends(number: int, _: object) -> None:
            # The previous handler comes back at once, so that the next signal has its usual effect.
            signal.signal(number, before[signal.Signals(number)])
            self.stop()

        for number in before:
            signal.signal(number, ends)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
