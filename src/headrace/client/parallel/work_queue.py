"""Work plan behind a lock: workers take units of work and report results; the failure policy is applied here."""

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

# An exception's text may contain the whole record; headers count to the size of the dead letter.
MOST_REASON_CHARACTERS = 1_000
CHECK_TIMEOUT_MS = 1_000


class DeadLetters:
    """Writer of records that failed for good to a dead-letter topic.

    Mutable: the client and the sender are created with the first letter. Usable from any thread, one at a time.
    """

    def __init__(self, topic: str, new_client: Callable[[], NetworkClient]) -> None:
        self.topic = topic
        self._new_client = new_client
        self._client: NetworkClient | None = None
        self._queue: Sender | None = None
        self._lock = threading.Lock()
        self._unkeyed = 0

    def check(self) -> None:
        """Check at the start, rather than with the first failed record, that the topic exists.

        Raises:
            BrokerError: `topic-missing`.
            CannotConnect: No broker is reachable.
        """
        with self._lock:
            self._connected().known_topics([self.topic], timeout_ms=CHECK_TIMEOUT_MS)

    def write(self, work: Work, failure: Failure) -> None:
        """Write the records of failed work and wait until they are stored.

        Raises:
            BrokerError: The broker refused them.
            CannotConnect: No broker is reachable.
        """
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
                # Stored before the record counts as finished, hence before its offset can be committed.
                self._queue.flush()
            except BaseException:
                # The sender still holds what failed; a new one must not send those batches a second time.
                self._queue = None
                raise

    def close(self) -> None:
        """Close the client."""
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
    """Return headers with origin and reason, under the names that dead letters of an application have."""
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
    """Return monotonic milliseconds."""
    return int(time.monotonic() * 1000)


class WorkQueue:
    """Work plan shared by workers and the thread that polls.

    Mutable. `plan` is used under `lock` only; `changed` is notified when work may begin or has ended.

    Attributes:
        error: The error that ended the whole, None while it runs.
        wakes_when_idle: Wake the poller as well when everything polled has finished.
    """

    def __init__(
        self,
        plan: WorkPlan,
        *,
        on_failure: Literal["stop", "skip"] | DeadLetters,
        wake_poller: Callable[[], None],
    ) -> None:
        """Args:
        plan: The scheduling rules.
        on_failure: What happens to work that failed for good.
        wake_poller: Called when the thread that polls has something to do.
        """
        self.plan = plan
        # Reentrant: `take` calls `try_take`, and workers call `notify` with the lock held.
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
        """Wait for the next unit of work; None when the queue is closed."""
        with self.lock:
            while not self.closed:
                work = self.try_take()
                if work is not None:
                    return work
                self.changed.wait(self.max_wait_s())
        return None

    def try_take(self) -> Work | None:
        """Return the next unit of work if one may begin now."""
        with self.lock:
            # Workers pull, so a slow poll delays no handler. The poller is woken only for what it alone can do: commit
            # because work waits for a commit, resume a partition, or stop.
            work = None if self.closed else self.plan.take(now_ms())
            if work is None and self.plan.needs_commit():
                self._wake_poller()
            return work

    def max_wait_s(self) -> float:
        """Return how long to wait for a notification: until the next retry is due, at most `LONGEST_WAIT_S`."""
        due_ms = self.plan.next_due_ms()
        return LONGEST_WAIT_S if due_ms is None else min(LONGEST_WAIT_S, max(0.001, (due_ms - now_ms()) / 1000))

    def notify_loop(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call `callback` on the asyncio loop whenever something may have changed."""
        self._loop = (loop, callback)

    def end_attempt(self, work: Work, failure: Failure | None) -> None:
        """Report the end of one call of the handler; after the last attempt, apply the failure policy."""
        if failure is None:
            self._finish(work)
        elif self.attempt_failed(work, failure):
            self.give_up(work, failure)

    def attempt_failed(self, work: Work, failure: Failure) -> bool:
        """Report a failed attempt and return whether the failure policy has to decide."""
        with self.lock:
            # Time and chance enter the pure plan here, as arguments.
            verdict = self.plan.fail_attempt(work, failure, now_ms=now_ms(), chance=random.random())
            self.notify()
        if verdict == "retry":
            log.info("Attempt %d on %s failed; it will be retried: %s", work.attempt, work.name, failure.why)
        elif verdict == "dropped":
            log.info("%s failed after its partition was revoked: %s", work.name, failure.why)
        return verdict == "give-up"

    def give_up(self, work: Work, failure: Failure) -> None:
        """Apply the failure policy: stop, skip, or write a dead letter."""
        if isinstance(self._on_failure, DeadLetters):
            try:
                self._on_failure.write(work, failure)
            except HeadraceError as error:
                self._stop_for(work, error)
                return
            with self.lock:
                self.dead_letters += len(work.records)
            log.warning(
                "%s was written to the dead-letter topic %s: %s", work.name, self._on_failure.topic, failure.why
            )
            self._finish(work, well=False)
        elif self._on_failure == "skip":
            with self.lock:
                self.skipped += len(work.records)
            log.warning("%s is skipped: %s", work.name, failure.why)
            self._finish(work, well=False)
        else:
            self._stop_for(work, _stopped_by(work, failure))

    def stop(self, error: HeadraceError | None) -> None:
        """Begin nothing any more and let `run` end, with this error if there is one."""
        with self.lock:
            # The first error is the one that `run` raises; later ones are its consequences.
            self.error = self.error or error
            self.plan.halt()
            self.notify()
        self._wake_poller()

    def close(self) -> None:
        """End the workers."""
        with self.lock:
            self.closed = True
            self.plan.halt()
            self.notify()

    def notify(self) -> None:
        """Notify all waiting threads and the loop. Call it with the lock held."""
        self.changed.notify_all()
        if self._loop is not None:
            loop, callback = self._loop
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(callback)

    # For the thread that polls.

    def wait_drained(self, partitions: Iterable[TopicPartition] | None, timeout_s: float) -> bool:
        """Wait until no handler runs on these partitions, or on any; False after the timeout."""
        wanted = None if partitions is None else tuple(partitions)
        with self.lock:
            return self.changed.wait_for(lambda: not self.plan.in_flight(wanted), timeout_s)

    def _finish(self, work: Work, *, well: bool = True) -> None:
        with self.lock:
            counted = self.plan.finish(work)
            if counted and well:
                self.plan.counts.done += len(work.records)
            # Not with every record: a wake-up costs the poller a turn, and its parked Fetch.
            wake = counted and (self.plan.can_resume(work.partition) or self.plan.needs_commit())
            wake |= self.wakes_when_idle and not self.plan.held
            self.notify()
        if wake:
            self._wake_poller()
        if not counted:
            log.info("%s finished after its partition was revoked; the next owner processes it again", work.name)

    def _stop_for(self, work: Work, error: HeadraceError) -> None:
        with self.lock:
            # Neither finished nor retried: its offset stays uncommitted, so the record is read again after the fix.
            self.plan.abandon(work)
        self.stop(error)


def failure_of(error: BaseException, retry: Retry) -> Failure:
    """Return the failure for an exception of a handler; SystemExit and its like end the attempt, not the program."""
    return Failure(why=f"{type(error).__name__}: {error}", worth_retrying=isinstance(error, retry.on), error=error)


def _stopped_by(work: Work, failure: Failure) -> UserCodeError:
    record = work.records[0]
    tried = "once" if work.attempt == 1 else f"{work.attempt} times"
    error = UserCodeError(
        "user-code",
        f"the handler failed {tried} on {work.name}: {failure.why}",
        'Fix the handler, or let the consumer continue without such records: on_failure="skip" or DeadLetter("topic").',
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )
    error.__cause__ = failure.error
    return error
