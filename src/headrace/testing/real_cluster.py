"""A Kafka cluster that runs elsewhere (`pytest --kafka=host:port`), with the API of EmbeddedBroker as far as possible.

What only a broker in the test's own process can do (faults, the clock, kill and restart, its data directory) skips the
test with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import NoReturn, Self

import pytest

from headrace.broker.embedded_values import Key, Record, Value, key_bytes, record_of, value_bytes
from headrace.client.admin import Admin
from headrace.client.plain_records import consume, produce
from headrace.protocol.record_batches import NO_TIMESTAMP, PlainRecord

__all__ = ["RealCluster"]

TOPIC_DELETION_TIMEOUT_SECONDS = 20.0


class RealCluster:
    """A cluster at `bootstrap_servers`.

    Raises:
        CannotConnect: No broker is reachable there.
    """

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
        """Close the connections; the cluster keeps running."""
        self._admin.close()

    @property
    def host(self) -> str:
        """Host of the bootstrap server."""
        # An IPv6 address is written in brackets before the port (RFC 3986, section 3.2.2); a socket wants it without
        # them.
        return self.bootstrap_servers.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port of the bootstrap server."""
        return int(self.bootstrap_servers.rpartition(":")[2])

    @property
    def running(self) -> bool:
        """Always True."""
        return True

    def create_topics(self, topics: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Create the topics that do not exist, and wait until they can be used."""
        if topics:
            # Kafka answers CreateTopics before every broker has the new metadata, so a produce right after it may fail.
            # `known_topics` waits.
            given = {name: dict(configs or {}) for name in topics}
            self._admin.create_topics(topics, configs=given, exist_ok=True)
            self._admin.client.known_topics(list(topics))

    def create_new_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics that the test will delete; fail the test if one exists, since it is not the test's own."""
        # The topics are deleted after the test. One that exists already may hold data of another application.
        there = sorted(self._admin.describe_topics(topics)) if topics else []
        if there:
            pytest.fail(
                f"{', '.join(there)} exists on {self.bootstrap_servers} already, and a test must not use topics that "
                "it did not create: take a name from kafka_topic().",
                pytrace=False,
            )
        self.create_topics(topics)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and wait, for at most 20 s, until they are gone: Kafka deletes in the background."""
        doomed = list(names)
        self._admin.delete_topics(doomed, missing_ok=True)
        # DeleteTopics returns when the deletion is recorded. A test that creates the name again must not meet the old
        # topic.
        deadline = time.monotonic() + TOPIC_DELETION_TIMEOUT_SECONDS
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
        """Produce records, as `EmbeddedBroker.produce`."""
        stamp = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
        records = (
            PlainRecord(key=key_bytes(key, each), value=value_bytes(each), timestamp_ms=stamp) for each in values
        )
        produce(self._admin.client, topic, records, partition=partition)

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, ordered by partition and offset."""
        described = self._admin.describe_topics([topic])
        partitions = [(topic, index) for index in range(len(described[topic].partitions))] if described else []
        # From the first offset that exists: retention or DeleteRecords may have removed the beginning.
        starts = self._admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        found = consume(self._admin.client, {key: each.offset for key, each in starts.items()})
        return sorted(
            (record_of(topic, partition, record) for _, partition, record in found),
            key=lambda record: (record.partition, record.offset),
        )

    def group(self, _group_id: str) -> NoReturn:
        """Skip the test: the state of a group needs a broker in this process."""
        _skip("looks into the coordinator of a group")

    def metrics(self) -> NoReturn:
        """Skip the test: broker metrics needs a broker in this process."""
        _skip("reads the broker's metrics")

    def kill(self) -> NoReturn:
        """Skip the test: killing the broker needs a broker in this process."""
        _skip("kills the broker")

    def restart(self) -> NoReturn:
        """Skip the test: restarting the broker needs a broker in this process."""
        _skip("restarts the broker")

    @property
    def connection_count(self) -> NoReturn:
        """Skip the test: the number of connections needs a broker in this process."""
        _skip("counts the broker's connections")

    @property
    def data_dir(self) -> NoReturn:
        """Skip the test: the data directory needs a broker in this process."""
        _skip("looks into the broker's data directory")

    @property
    def faults(self) -> NoReturn:
        """Skip the test: fault injection needs a broker in this process."""
        _skip("injects faults")

    @property
    def clock(self) -> NoReturn:
        """Skip the test: moving the clock needs a broker in this process."""
        _skip("moves the broker's clock")


def _skip(what: str) -> NoReturn:
    pytest.skip(f"this test {what}, which needs a broker of its own: run it without --kafka")
