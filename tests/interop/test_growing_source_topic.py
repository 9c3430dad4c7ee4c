"""A source topic grows under running Java Kafka Streams 4.3.1 applications, with our broker's eyes and with Kafka's.

Two applications read one topic: one counts by the topic's own key, so its state hangs on the partitions; one counts by
word behind a repartition topic. On our broker both run on; on Apache Kafka 4.3.1 their clients end in ERROR.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.streams_application import WordCount

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS: Mapping[str, object] = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 200,
    "group.streams.heartbeat.interval.ms": 200,
}
DIRECT, BY_WORD = {"word.by.id": "true"}, {"word.by.id": "false"}


class Source:
    """A topic of two partitions at first, and what was sent to each. Mutable: counts as it sends."""

    def __init__(self, servers: str, name: str) -> None:
        self.name, self.admin = name, Admin(servers)
        self.admin.create_topics({name: 2, f"{name}-counted": 1}, replication_factor=1)
        self.by_partition: dict[int, Counter[str]] = {}
        self._servers = servers

    def send(self, partition: int, *ids: str) -> None:
        """By a new producer, which knows how many partitions there are now."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._servers, "log_level": 0})
        for each in ids:
            producer.produce(self.name, partition=partition, key=each, value=f"word-{each}")
        assert producer.flush(30) == 0
        self.by_partition.setdefault(partition, Counter()).update(ids)

    def counts(self, *partitions: int) -> dict[str, int]:
        return dict(sum((self.by_partition[partition] for partition in partitions), Counter[str]()))

    def grow(self, name: str, partitions: int) -> None:
        self.admin.create_partitions({name: partitions})
        wait_until(lambda: len(self.admin.describe_topics([name])[name].partitions) == partitions, f"{name} grown")


@contextlib.contextmanager
def instance(
    servers: str, directory: Path, source: Source, name: str, settings: Mapping[str, Any]
) -> Iterator[WordCount]:
    given = {"application.id": name, "word.source": source.name, "word.sink": f"{source.name}-counted", **settings}
    started = WordCount(servers, directory / name, given)
    try:
        yield started
    finally:
        started.kill()


def counted(one: WordCount, expected: Mapping[str, int]) -> None:
    wait_until(lambda: one.ask("values") == expected, f"counted {expected}", one)


def test_java_applications_run_on_while_their_source_grows(tmp_path: Path, kafka_tools: None) -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(config=SETTINGS))
        servers = broker.bootstrap_servers
        source = Source(servers, "grown")
        stack.callback(source.admin.close)
        direct = stack.enter_context(instance(servers, tmp_path, source, "direct", DIRECT))
        by_word = stack.enter_context(instance(servers, tmp_path, source, "by-word", BY_WORD))
        for partition in (0, 1):
            source.send(partition, f"id-{partition}", f"id-{partition}", "both")
        words = {f"word-{each}": count for each, count in source.counts(0, 1).items()}
        wait_until(lambda: direct.is_running() and by_word.is_running(), "both running", direct, by_word)
        counted(by_word, words)
        wait_until(lambda: direct.ask("values").keys() == source.counts(0, 1).keys(), "counted", direct)
        states = {one.name: list(one.states) for one in (direct, by_word)}

        source.grow(source.name, 4)
        wait_until(lambda: len(by_word.ask("tasks")["active"]) == 6, "the stateless tasks follow", by_word)
        wait_until(
            lambda: "Source topics have grown beyond" in direct.log.read_text(), "it says why in its log", direct
        )
        for partition in range(4):
            source.send(partition, f"id-{partition}")
        counted(by_word, {f"word-{each}": count for each, count in source.counts(0, 1, 2, 3).items()})
        wait_until(lambda: (direct.ask("values")["id-0"], direct.ask("values")["id-1"]) == (3, 3), "both go on", direct)
        assert direct.ask("tasks")["active"] == ["0_0", "0_1"]
        assert direct.states == states["direct"], "nothing was taken from it"
        assert "id-2" not in direct.ask("values"), "what is beyond waits"
        assert by_word.states[-1] == "RUNNING"

        source.grow("direct-counts-changelog", 4)
        wait_until(lambda: len(direct.ask("tasks")["active"]) == 4, "an operator lets all be read", direct)
        wait_until(
            lambda: (direct.ask("values").get("id-2"), direct.ask("values").get("id-3")) == (1, 1), "read", direct
        )
        assert (direct.error, by_word.error) == (None, None)


def test_on_apache_kafka_the_clients_die_of_it(tmp_path: Path, kafka: KafkaBroker) -> None:
    source = Source(kafka.bootstrap_servers, f"grown-{tmp_path.name}")
    name = f"direct-{source.name}"
    settings = {**DIRECT, "word.queries": "false"}  # with an endpoint Kafka's coordinator fails altogether
    with (
        contextlib.closing(source.admin),
        instance(kafka.bootstrap_servers, tmp_path, source, name, settings) as direct,
    ):
        source.send(0, "id-0")
        wait_until(direct.is_running, "running", direct)
        source.grow(source.name, 4)
        wait_until(lambda: direct.error is not None, "an exception", direct)
        assert direct.error is not None
        assert direct.error["type"] == "org.apache.kafka.streams.errors.TopologyException"
        assert direct.ended() == 1
