"""Our consumers in threads, for tests of groups: what each read, what its listener heard, what ended it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import RebalanceListener, TopicPartition

__all__ = ["PATIENCE_S", "Heard", "RunningConsumer", "write_forty_records"]

PATIENCE_S = 60.0


class Heard(RebalanceListener):
    """Mutable: ("assigned" | "revoked" | "lost", partitions) in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[TopicPartition, ...]]] = []

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", tuple(partitions)))

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", tuple(partitions)))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("lost", tuple(partitions)))

    def named(self, name: str) -> list[tuple[TopicPartition, ...]]:
        return [partitions for called, partitions in self.calls if called == name]


class RunningConsumer:
    """A context manager: polls on its thread until it is left; then the consumer is closed."""

    def __init__(self, *arguments: Any, pause_s: float = 0.0, **settings: Any) -> None:
        self.heard = Heard()
        settings.setdefault("auto_offset_reset", "earliest")
        self.consumer = Consumer(*arguments, listener=self.heard, **settings)
        self.read: list[tuple[str, int, int]] = []
        self.errors: list[Exception] = []
        self.sleep_s = pause_s
        self._close_settings: dict[str, Any] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def assigned(self) -> set[tuple[str, int]]:
        return set(self.consumer.assignment())

    def stop(self, **close_settings: Any) -> None:
        """Closes and waits; once is enough."""
        self._close_settings = close_settings or self._close_settings
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    found = self.consumer.poll_records(0.1)
                except Exception as error:  # the test looks at them
                    self.errors.append(error)
                    if len(self.errors) > 3:
                        return
                    continue
                self.read.extend((r.topic, r.partition, r.offset) for r in found)
                self._stop.wait(self.sleep_s)
        finally:
            self.consumer.close(**self._close_settings)


def write_forty_records(broker: EmbeddedBroker) -> None:
    """Write v0 to v39 to topic t."""
    for number in range(40):
        broker.produce("t", [b"v%d" % number])
