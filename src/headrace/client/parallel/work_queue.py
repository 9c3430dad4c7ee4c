"""Records that a handler failed on, in a dead-letter topic: unchanged, with headers that say where from and why."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.network_client import NetworkClient
from headrace.client.parallel.work import Failure, Retry, Work
from headrace.client.parallel.work_plan import WorkPlan
from headrace.client.sender import Sender
from headrace.errors import HeadraceError, UserCodeError
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import PlainRecord, encode_batch

__all__ = ["DeadLetters", "WorkQueue", "failure_of", "now_ms"]

MOST_REASON_CHARACTERS = 1_000
CHECK_TIMEOUT_MS = 1_000


class DeadLetters:
    """Mutable: a client and its queue, made with the first letter; used from any thread, one at a time."""

    def __init__(self, topic: str, new_client: Callable[[], NetworkClient]) -> None:
        self.topic = topic
        self._new_client = new_client
        self._client: NetworkClient | None = None
        self._queue: Sender | None = None
        self._lock = threading.Lock()
        self._unkeyed = 0

    def check(self) -> None:
        """Raises BrokerError `topic-missing`, CannotConnect: at the start rather than when the first record fails."""
        with self._lock:
            self._connected().known_topics([self.topic], timeout_ms=CHECK_TIMEOUT_MS)

    def write(self, work: Work, failure: Failure) -> None:
        """Returns when they are stored. Raises BrokerError, CannotConnect."""
        with self._lock:
            client = self._connected()
            if self._queue is None:
                self._queue = Sender(client)
            count = len(client.known_topics([self.topic]).topics[self.topic].partitions)
            try:
                for record in work.records:
                    letter = PlainRecord(
                        key=record.key,
                        value=record.value,
                        timestamp_ms=record.timestamp_ms,
                        headers=(*record.headers, *_headers(work, record.offset, failure)),
                    )
                    self._queue.add(self.topic, self._target(record.key, count), encode_batch([letter]))
                self._queue.flush()
            except BaseException:
                self._queue = None
                raise

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = self._queue = None

    def _connected(self) -> NetworkClient:
        if self._client is None:
            self._client = self._new_client()
        return self._client

    def _target(self, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_for_key(key, count)
        self._unkeyed += 1
        return self._unkeyed % count


def _headers(work: Work, offset: int, failure: Failure) -> tuple[tuple[str, bytes], ...]:
    """The names that applications' dead letters have, and how often it was tried."""
    return (
        ("headrace.topic", work.partition.topic.encode()),
        ("headrace.partition", b"%d" % work.partition.partition),
        ("headrace.offset", b"%d" % offset),
        ("headrace.reason", failure.why[:MOST_REASON_CHARACTERS].encode()),
        ("headrace.attempts", b"%d" % work.attempt),
    )


log = logging.getLogger("headrace.client")

LONGEST_WAIT_S = 1.0


def now_ms() -> int:
    return int(time.monotonic() * 1000)


class WorkQueue:
    """Mutable. `plan` is used under `lock` only; `changed` is notified when work may begin or has ended.

    `wake_poller`: called when the thread that polls has something to do; with `wakes_when_idle` also when everything
    polled has ended. `error`: what ended the whole.
    """

    def __init__(
        self,
        plan: WorkPlan,
        *,
        on_failure: Literal["stop", "skip"] | DeadLetters,
        wake_poller: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.error: HeadraceError | None = None
        self.closed = False
        self.wakes_when_idle = False
        self.skipped = 0
        self.dead_letters = 0
        self._on_failure = on_failure
        self._wake_poller = wake_poller
        self._loop: tuple[asyncio.AbstractEventLoop, Callable[[], None]] | None = None

    # For workers.

    def take(self) -> Work | None:
        """The next piece; waits for one. None when the work_queue was closed."""
        with self.lock:
            while not self.closed:
                work = self.try_take()
                if work is not None:
                    return work
                self.changed.wait(self.wait_s())
        return None

    def try_take(self) -> Work | None:
        """The next piece, if one may begin now."""
        with self.lock:
            work = None if self.closed else self.plan.take(now_ms())
            if work is None and self.plan.wants_commit():
                self._wake_poller()
            return work

    def wait_s(self) -> float:
        """How long nothing can be expected without a word."""
        due_ms = self.plan.next_due_ms()
        return LONGEST_WAIT_S if due_ms is None else min(LONGEST_WAIT_S, max(0.001, (due_ms - now_ms()) / 1000))

    def tell(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """`callback` runs on the loop whenever something may have changed."""
        self._loop = (loop, callback)

    def ended(self, work: Work, failure: Failure | None) -> None:
        """One call of the handler is over; where it was the last attempt, the failure policy is carried out."""
        if failure is None:
            self._finish(work)
        elif self.attempt_failed(work, failure):
            self.give_up(work, failure)

    def attempt_failed(self, work: Work, failure: Failure) -> bool:
        """Whether to give up on it."""
        with self.lock:
            verdict = self.plan.failed(work, failure, now_ms=now_ms(), chance=random.random())
            self.notify()
        if verdict == "retry":
            log.info("attempt %d on %s failed, there will be another: %s", work.attempt, work.name, failure.why)
        elif verdict == "dropped":
            log.info("%s failed after its partition was given back: %s", work.name, failure.why)
        return verdict == "give-up"

    def give_up(self, work: Work, failure: Failure) -> None:
        """Stops, skips, or writes a dead letter."""
        if isinstance(self._on_failure, DeadLetters):
            try:
                self._on_failure.write(work, failure)
            except HeadraceError as error:
                self._stop_for(work, error)
                return
            with self.lock:
                self.dead_letters += len(work.records)
            log.warning("%s went to %s: %s", work.name, self._on_failure.topic, failure.why)
            self._finish(work, well=False)
        elif self._on_failure == "skip":
            with self.lock:
                self.skipped += len(work.records)
            log.warning("%s is skipped: %s", work.name, failure.why)
            self._finish(work, well=False)
        else:
            self._stop_for(work, _stopped_by(work, failure))

    def stop(self, error: HeadraceError | None) -> None:
        """Nothing begins any more."""
        with self.lock:
            self.error = self.error or error
            self.plan.halt()
            self.notify()
        self._wake_poller()

    def close(self) -> None:
        """Workers go home."""
        with self.lock:
            self.closed = True
            self.plan.halt()
            self.notify()

    def notify(self) -> None:
        """Something may begin, or has ended. Under the lock."""
        self.changed.notify_all()
        if self._loop is not None:
            loop, callback = self._loop
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(callback)

    # For the thread that polls.

    def wait_drained(self, partitions: Iterable[TopicPartition] | None, timeout_s: float) -> bool:
        """Until no handler is at work on these, or on anything; False when the time is up."""
        wanted = None if partitions is None else tuple(partitions)
        with self.lock:
            return self.changed.wait_for(lambda: not self.plan.in_flight(wanted), timeout_s)

    def _finish(self, work: Work, *, well: bool = True) -> None:
        with self.lock:
            counted = self.plan.finished(work)
            if counted and well:
                self.plan.counts.done += len(work.records)
            wake = counted and (self.plan.wants_poll(work.partition) or self.plan.wants_commit())
            wake |= self.wakes_when_idle and not self.plan.held
            self.notify()
        if wake:
            self._wake_poller()
        if not counted:
            log.info("%s ended after its partition was given back: its next owner processes it again", work.name)

    def _stop_for(self, work: Work, error: HeadraceError) -> None:
        with self.lock:
            self.plan.abandoned(work)
        self.stop(error)


def failure_of(error: BaseException, retry: Retry) -> Failure:
    """What a handler raised; SystemExit and its like end an attempt, not the program."""
    return Failure(why=f"{type(error).__name__}: {error}", worth_retrying=isinstance(error, retry.on), error=error)


def _stopped_by(work: Work, failure: Failure) -> UserCodeError:
    record = work.records[0]
    tried = "once" if work.attempt == 1 else f"{work.attempt} times"
    error = UserCodeError(
        "user-code",
        f"the handler failed {tried} on {work.name}: {failure.why}",
        'mend the handler, or let the consumer pass over such records: on_failure="skip" or DeadLetter("topic")',
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )
    error.__cause__ = failure.error
    return error
