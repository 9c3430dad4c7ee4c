"""Parallel consumers in threads, for tests: what ran, what ended them, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from tests.client.running_consumers import PATIENCE_S, Heard

from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.parallel.parallel_consumer import ParallelConsumer

__all__ = ["Journal", "RunningPipeline"]


class Journal:
    """Mutable, for handlers on any thread: what began and what ended, in order. A `gate` may hold chosen offsets."""

    def __init__(self, holds: Callable[[ConsumerRecord], bool] = lambda _: False) -> None:
        self.began: list[ConsumerRecord] = []
        self.ended: list[ConsumerRecord] = []
        self.overlaps: list[ConsumerRecord] = []
        self.gate = threading.Event()
        self._holds = holds
        self._lock = threading.Lock()
        self._busy: set[tuple[int, bytes | None]] = set()

    def __call__(self, record: ConsumerRecord) -> None:
        lane = (record.partition, record.key)
        with self._lock:
            self.began.append(record)
            if lane in self._busy:
                self.overlaps.append(record)
            self._busy.add(lane)
        if self._holds(record):
            assert self.gate.wait(PATIENCE_S)
        with self._lock:
            self._busy.discard(lane)
            self.ended.append(record)

    @property
    def places(self) -> list[tuple[int, int]]:
        with self._lock:
            return [(record.partition, record.offset) for record in self.ended]


class RunningPipeline:
    """A context manager: runs on a thread until it ends by itself or is left."""

    def __init__(
        self,
        topic: str,
        group_id: str,
        servers: str,
        handler: Any,
        *,
        consumer: dict[str, Any] | None = None,
        **pipe: Any,
    ) -> None:
        self.heard = Heard()
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "listener": self.heard} | (consumer or {})
        self.consumer = Consumer(topic, group_id=group_id, bootstrap_servers=servers, **settings)
        self.pipeline = ParallelConsumer(self.consumer, handler, **pipe)
        self.error: BaseException | None = None
        self._until = "stopped"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Once is enough."""
        self.pipeline.stop()
        self.wait()

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.pipeline.run()
        except BaseException as error:  # the test looks at it
            self.error = error
