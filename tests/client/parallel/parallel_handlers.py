"""A topic with a group of its own, and parallel consumers of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.client.running_pipelines import RunningPipeline

from headrace import Consumer, EmbeddedBroker, ParallelConsumer, Retry
from headrace.client.admin_results import CommittedOffset
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

_numbers = itertools.count()


FAST = Retry(attempts=3, first_delay=0.01)


class Topic:
    """A topic and a group of its own."""

    def __init__(self, broker: EmbeddedBroker, partitions: int, records: int, keys: int) -> None:
        self.name = f"t{next(_numbers)}"
        self.servers = broker.bootstrap_servers
        broker.create_topics({self.name: partitions})
        self.records = [PlainRecord(key=b"k%d" % (n % keys), value=b"v%d" % n) for n in range(records)]
        with NetworkClient(self.servers) as client:
            self.ends = {key: last + 1 for key, last in produce(client, self.name, self.records).items()}

    def running(self, handler: Any, **settings: Any) -> RunningPipeline:
        return RunningPipeline(self.name, f"g-{self.name}", self.servers, handler, **settings)

    def run(self, handler: Any, **settings: Any) -> ParallelConsumer:
        """To the end of the topic."""
        consumer = Consumer(
            self.name, group_id=f"g-{self.name}", bootstrap_servers=self.servers, auto_offset_reset="earliest"
        )
        pipeline = ParallelConsumer(consumer, handler, **settings)
        pipeline.run(until="caught-up")
        return pipeline

    def committed(self) -> dict[Any, CommittedOffset | None]:
        with Consumer(group_id=f"g-{self.name}", bootstrap_servers=self.servers) as asking:
            return dict(asking.committed(self.ends))

    @property
    def topic_id(self) -> UUID | None:
        with NetworkClient(self.servers) as client:
            return client.known_topics([self.name]).topics[self.name].topic_id

    def commit(self, offset: int, metadata: str) -> None:
        with Consumer(group_id=f"g-{self.name}", bootstrap_servers=self.servers) as consumer:
            consumer.commit({(self.name, 0): CommittedOffset(offset=offset, metadata=metadata)})

    @property
    def is_committed(self) -> bool:
        return {tuple(key): found and found.offset for key, found in self.committed().items()} == self.ends


Make = Callable[..., Topic]
