"""`AsyncConsumer`: the API of `Consumer` for asyncio programs.

A `Consumer` on a thread of its own: the same code fetches, commits and rebalances, and the loop never waits for a
socket. A second implementation would be a second set of faults, and decoding would block the loop anyway. Cancelling a
poll wakes the thread; rows that it had taken are given back for the next poll. Listeners may be coroutines: they run on
the loop and are cancelled when their time is up.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeGuard, TypeVar

from headrace.checked_api import checked_api
from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.commits import CommitCallback, Offsets
from headrace.client.consumer.consumer import CLOSE_TIMEOUT_S, Consumer, Partitions
from headrace.client.consumer.consumer_core import Topics
from headrace.client.consumer.consumer_types import ConsumerRecord, RebalanceListener, TopicPartition
from headrace.errors import UserCodeError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncConsumer", "AsyncRebalanceListener"]

Result = TypeVar("Result")
# Context variables follow a coroutine into the tasks that it creates, so a listener's helpers are recognized as well.
_in_listener: ContextVar[bool] = ContextVar("headrace_in_listener", default=False)


class AsyncRebalanceListener:
    """Rebalance listener with coroutines, which run on the loop while the poll waits for them.

    They may await the consumer's calls, in particular `commit` and `seek`, but not a poll.
    """

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle new partitions."""

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that go to other members when this returns."""

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Handle partitions that are lost. The default calls `on_revoked`."""
        await self.on_revoked(partitions)


@checked_api(forwards=Consumer.__init__)
class AsyncConsumer:
    """Kafka consumer for asyncio; an async context manager, created and used on one running loop.

    Arguments as for `Consumer`; `listener` may be an `AsyncRebalanceListener`.

    Example:
        `async with AsyncConsumer("orders", group_id="billing") as consumer: …`
    """

    def __init__(
        self,
        topics: Topics | None = None,
        *,
        listener: RebalanceListener | AsyncRebalanceListener | None = None,
        listener_timeout_ms: int | None = None,
        **settings: Any,
    ) -> None:
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        # One thread, so that the consumer is used by one thread at a time whatever the program awaits together.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-async-consumer")
        adapted = _OnLoop(listener, self._loop, listener_timeout_ms) if _is_async(listener) else listener
        self._consumer = Consumer(
            listener=adapted,  # type: ignore[arg-type]
            listener_timeout_ms=listener_timeout_ms,
            **settings,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Subscribe to the topics of the constructor; entering the context manager does so as well."""
        if self._topics is not None:
            topics, self._topics = self._topics, None
            await self.subscribe(topics)

    async def subscribe(self, topics: Topics) -> None:
        """As `Consumer.subscribe`."""
        await self._call(self._consumer.subscribe, topics)

    async def assign(self, partitions: Partitions) -> None:
        """As `Consumer.assign`."""
        await self._call(self._consumer.assign, partitions)

    async def unsubscribe(self) -> None:
        """As `Consumer.unsubscribe`."""
        await self._call(self._consumer.unsubscribe)

    def assignment(self) -> tuple[TopicPartition, ...]:
        """As `Consumer.assignment`."""
        return self._consumer.assignment()

    async def poll(self, timeout: float = 1.0) -> pa.RecordBatch:  # noqa: ASYNC109 - Kafka's shape
        """As `Consumer.poll`."""
        return await self._polled(partial(self._consumer.poll, timeout))

    async def poll_records(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:  # noqa: ASYNC109
        """As `Consumer.poll_records`."""
        return await self._polled(partial(self._consumer.poll_records, timeout, max_records))

    async def records(self, timeout: float | None = None) -> AsyncIterator[ConsumerRecord]:  # noqa: ASYNC109
        """As `Consumer.records`."""
        while True:
            found = await self.poll_records(1.0 if timeout is None else timeout)
            if not found and timeout is not None:
                return
            for record in found:
                yield record

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while True:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """As `Consumer.seek`."""
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """As `Consumer.seek_to_beginning`."""
        await self._call(self._consumer.seek_to_beginning, partitions)

    async def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """As `Consumer.seek_to_end`."""
        await self._call(self._consumer.seek_to_end, partitions)

    async def seek_to_time(self, timestamp_ms: int, partitions: Partitions | None = None) -> None:
        """As `Consumer.seek_to_time`."""
        await self._call(self._consumer.seek_to_time, timestamp_ms, partitions)

    async def position(self, partition: tuple[str, int]) -> int:
        """As `Consumer.position`."""
        return await self._call(self._consumer.position, partition)

    async def pause(self, partitions: Partitions) -> None:
        """As `Consumer.pause`."""
        await self._call(self._consumer.pause, partitions)

    async def resume(self, partitions: Partitions) -> None:
        """As `Consumer.resume`."""
        await self._call(self._consumer.resume, partitions)

    async def commit(
        self, offsets: Offsets | None = None, *, wait: bool = True, callback: CommitCallback | None = None
    ) -> None:
        """As `Consumer.commit`."""
        await self._call(partial(self._consumer.commit, offsets, wait=wait, callback=callback))

    async def committed(self, partitions: Partitions | None = None) -> dict[TopicPartition, CommittedOffset | None]:
        """As `Consumer.committed`."""
        return await self._call(self._consumer.committed, partitions)

    async def lag(self, partitions: Partitions | None = None) -> dict[TopicPartition, int]:
        """As `Consumer.lag`."""
        return await self._call(self._consumer.lag, partitions)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """As `Consumer.beginning_offsets`."""
        return await self._call(self._consumer.beginning_offsets, partitions)

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """As `Consumer.end_offsets`."""
        return await self._call(self._consumer.end_offsets, partitions)

    async def partitions_for(self, topic: str) -> tuple[TopicPartition, ...]:
        """As `Consumer.partitions_for`."""
        return await self._call(self._consumer.partitions_for, topic)

    def wakeup(self) -> None:
        """As `Consumer.wakeup`."""
        self._consumer.wakeup()

    @property
    def group_id(self) -> str:
        """As `Consumer.group_id`."""
        return self._consumer.group_id

    @property
    def member_id(self) -> str:
        """As `Consumer.member_id`."""
        return self._consumer.member_id

    @property
    def generation(self) -> int:
        """As `Consumer.generation`."""
        return self._consumer.generation

    def metrics(self) -> dict[str, Any]:
        """As `Consumer.metrics`."""
        return self._consumer.metrics()

    async def close(self, *, leave_group: bool | None = None, timeout: float = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """As `Consumer.close`; ends the thread."""
        try:
            await self._call(partial(self._consumer.close, leave_group=leave_group, timeout=timeout))
        finally:
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        # While a listener runs, the consumer's only thread waits for it. Calls from inside the listener would wait for
        # that thread for ever, so they run on one of the loop's default executor.
        thread = None if _in_listener.get() else self._thread
        return await self._loop.run_in_executor(thread, partial(function, *arguments))

    async def _polled(self, poll: Callable[[], Result]) -> Result:
        turn: _CancellablePoll[Result] = _CancellablePoll(poll, self._seek_back)
        running = self._loop.run_in_executor(self._thread, turn.run)
        try:
            # Shielded: a cancellation must not cancel the poll on its thread, whose rows would be lost.
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Either the rows are there (`cancel` is True) and go back from here, or the thread notices the cancellation
            # under the same lock and gives them back itself: never both, never none.
            self._consumer.wakeup()
            running.add_done_callback(_forget)
            if turn.cancel():
                self._thread.submit(self._seek_back, turn.rows)
            raise

    def _seek_back(self, rows: Any) -> None:
        """Seek back before rows that the caller never saw. Runs on the consumer's thread."""
        if isinstance(rows, list):
            seen = [(record.topic, record.partition, record.offset) for record in rows]
        else:
            columns = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
            seen = list(zip(*columns, strict=True))
        first: dict[TopicPartition, int] = {}
        for topic, partition, offset in seen:
            first.setdefault(TopicPartition(topic, partition), offset)
        # A partition that was revoked meanwhile is read by its next owner, from the committed offset.
        for each in set(first) & set(self._consumer.assignment()):
            self._consumer.seek(each, first[each])


class _CancellablePoll(Generic[Result]):
    """One poll on the consumer's thread. A lock decides whether its rows reach the caller."""

    def __init__(self, poll: Callable[[], Result], seek_back: Callable[[Result], None]) -> None:
        self._poll = poll
        self._seek_back = seek_back
        self._lock = threading.Lock()
        self._cancelled = False
        self._finished = False
        self.rows: Result | None = None

    def run(self) -> Result:
        """Poll, and give the rows back if the caller was cancelled meanwhile."""
        # Outside of the lock: `cancel` must not wait for a poll.
        rows = self._poll()
        with self._lock:
            self._finished = True
            self.rows = rows
            cancelled = self._cancelled
        if cancelled:
            self._seek_back(rows)
        return rows

    def cancel(self) -> bool:
        """Mark the caller as cancelled, and return whether the rows were there already: the caller has to give them
        back.
        """
        with self._lock:
            self._cancelled = True
            return self._finished


def _forget(finished: asyncio.Future[Result]) -> None:
    """Retrieve the exception of a cancelled poll, so that asyncio does not log it as unretrieved."""
    if not finished.cancelled():
        finished.exception()


class _OnLoop(RebalanceListener):
    """Calls an async listener on the loop from the consumer's thread, and waits for it."""

    def __init__(
        self, listener: AsyncRebalanceListener, loop: asyncio.AbstractEventLoop, timeout_ms: int | None
    ) -> None:
        self._listener = listener
        self._loop = loop
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._run("on_assigned", partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._run("on_revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._run("on_lost", partitions)

    def _run(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        # Blocks the consumer's thread, never the loop; the rebalance waits for the listener as it does for a plain one.
        asyncio.run_coroutine_threadsafe(self._within(name, partitions), self._loop).result()

    async def _within(self, name: str, partitions: Sequence[TopicPartition]) -> None:
        _in_listener.set(True)
        result = getattr(self._listener, name)(partitions)
        if not isinstance(result, Awaitable):
            return
        try:
            await asyncio.wait_for(result, self._timeout_s)
        except TimeoutError:
            raise UserCodeError(
                "user-code",
                f"{name} of the rebalance listener took longer than {self._timeout_s} s and was cancelled",
                "Do less in the listener, or raise its time limit (and max.poll.interval.ms).",
            ) from None


def _is_async(listener: object) -> TypeGuard[AsyncRebalanceListener]:
    return any(
        inspect.iscoroutinefunction(getattr(listener, name, None)) for name in ("on_assigned", "on_revoked", "on_lost")
    )
