"""What a parallel consumer is told: bounds checked with clear words, and the workers that go with the handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.asyncio_workers import AsyncioWorkers
from headrace.client.parallel.process_workers import ProcessWorkers
from headrace.client.parallel.retry import DeadLetterTopic, FailurePolicy, Retry
from headrace.client.parallel.thread_workers import ThreadWorkers
from headrace.client.parallel.work import Order
from headrace.client.parallel.work_queue import WorkQueue
from headrace.errors import ConfigError

__all__ = ["Executor", "PipelineSettings", "Workers"]

Executor = Literal["auto", "threads", "processes", "asyncio"]
Handler = Callable[[Any], Any]


class Workers(Protocol):
    """One of the three kinds."""

    def start(self) -> None: ...
    def check(self) -> None: ...
    def stop(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Times in seconds."""

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
        """Raises ConfigError for a handler that does not go with the executor."""
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
    return ConfigError("bad-value", f"{name} of a ParallelConsumer is {value!r}, which cannot be", fix, key=name)
