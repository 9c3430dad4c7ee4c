"""A cluster that runs elsewhere (`pytest --kafka=host:port`), with the parts of EmbeddedBroker that it can do.

What only a broker in the test's own process can do (faults, the clock, kill and restart, its data directory) skips the
test, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self

import pytest

from headrace.broker.record_values import Key, Record, Value, key_bytes, record_of, value_bytes
from headrace.client.admin import Admin
from headrace.client.plain_records import consume, produce
from headrace.protocol.record_batches import NO_TIMESTAMP, PlainRecord

__all__ = ["RealCluster"]

PATIENCE_SECONDS = 20.0


class RealCluster:
    """Speaks Kafka's protocol to `bootstrap_servers`. Raises CannotConnect when nobody answers there."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = Admin(bootstrap_servers, client_id="headrace-testing")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Closes the connections; the cluster runs on."""
        self._admin.close()

    @property
    def host(self) -> str:
        return self.bootstrap_servers.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rpartition(":")[2])

    @property
    def running(self) -> bool:
        return True

    def create_topics(self, topics: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Creates what does not exist yet; returns when they can be used."""
        if topics:
            given = {name: dict(configs or {}) for name in topics}
            self._admin.create_topics(topics, configs=given, exist_ok=True)
            self._admin.client.known_topics(list(topics))

    def create_new_topics(self, topics: Mapping[str, int]) -> None:
        """For a test that will delete them: fails it when one exists, since that is somebody's."""
        there = sorted(self._admin.describe_topics(topics)) if topics else []
        if there:
            pytest.fail(
                f"{', '.join(there)} exists on {self.bootstrap_servers} already, and a test must not use what is not "
                "its own: take a name from kafka_topic().",
                pytrace=False,
            )
        self.create_topics(topics)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Returns when they are gone, or after a while: Kafka's deletions take a moment."""
        doomed = list(names)
        self._admin.delete_topics(doomed, missing_ok=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._admin.describe_topics(doomed) and time.monotonic() < deadline:
            time.sleep(0.05)

    def produce(
        self,
        topic: str,
        values: Iterable[Value],
        key: Key = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """As EmbeddedBroker.produce."""
        stamp = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
        records = (
            PlainRecord(key=key_bytes(key, each), value=value_bytes(each), timestamp_ms=stamp) for each in values
        )
        produce(self._admin.client, topic, records, partition=partition)

    def records(self, topic: str) -> list[Record]:
        """Everything that lies in the topic now, by partition and offset."""
        described = self._admin.describe_topics([topic])
        partitions = [(topic, index) for index in range(len(described[topic].partitions))] if described else []
        starts = self._admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        found = consume(self._admin.client, {key: each.offset for key, each in starts.items()})
        return sorted(
            (record_of(topic, partition, record) for _, partition, record in found),
            key=lambda record: (record.partition, record.offset),
        )

    def group(self, _group_id: str) -> NoReturn:
        _skip("looks into the coordinator of a group")

    def metrics(self) -> NoReturn:
        _skip("reads the broker's metrics")

    def kill(self) -> NoReturn:
        _skip("kills the broker")

    def restart(self) -> NoReturn:
        _skip("restarts the broker")

    @property
    def connection_count(self) -> NoReturn:
        _skip("counts the broker's connections")

    @property
    def data_dir(self) -> NoReturn:
        _skip("looks into the broker's data directory")

    @property
    def faults(self) -> Any:
        _skip("injects faults")

    @property
    def clock(self) -> Any:
        _skip("moves the broker's clock")


def _skip(what: str) -> NoReturn:
    pytest.skip(f"this test {what}, which needs a broker of its own: run it without --kafka")
