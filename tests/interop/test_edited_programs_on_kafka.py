"""A changed program on Apache Kafka 4.3.1: refused at start, state upgraded both ways and back, versions beside each other.

The tests of our broker, run on Kafka: `spark/runtime/test_upgraded_state` says what they look at.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tests.spark.runtime.test_upgraded_state as on_our_broker
from tests.interop.kafka_broker import KafkaBroker

from headrace.client.admin import Admin
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.errors import HeadraceError

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def spark() -> Any:
    from headrace.spark.spark_session import session

    built = session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    yield built
    built.stop()


class Records:
    """What the tests use of the embedded broker, over Kafka's protocol."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def create_topics(self, topics: dict[str, int]) -> None:
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topics(topics, replication_factor=1)

    def produce(self, topic: str, values: list[str]) -> None:
        with Admin(self.bootstrap_servers) as admin:
            produce(admin.client, topic, [PlainRecord(key=None, value=value.encode()) for value in values])

    def records(self, topic: str) -> list[Any]:
        with Admin(self.bootstrap_servers) as admin:
            return [_Record(partition, record) for partition, record in _read(admin, topic)]


class _Record:
    def __init__(self, partition: int, record: PlainRecord) -> None:
        self.partition, self.key, self.value = partition, record.key, record.value


def _read(admin: Admin, topic: str) -> Any:
    for partition in admin.describe_topics([topic])[topic].partitions:
        where = (topic, partition)
        first = admin.list_offsets({where: "earliest"})[where].offset
        end = admin.list_offsets({where: "latest"}, isolation_level="read_committed")[where].offset
        for each in consume(admin.client, {where: (first, end)}, isolation_level="read_committed") if first < end else ():
            yield partition, each
