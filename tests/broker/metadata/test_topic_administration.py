"""Internal topics of streams groups: one write of the catalog; failures are told for a while, then tried again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.logs.delayed_fetch import DelayedFetches
from headrace.broker.logs.flusher import Flusher
from headrace.broker.logs.partition_logs import PartitionLogs
from headrace.broker.metadata.cluster_metadata import ClusterMetadata
from headrace.broker.metadata.topic_administration import FAILURES_KEPT, TopicAdministration
from headrace.coordinator.result import CreatableTopic
from headrace.storage import log_directory
from headrace.storage.log_directory import LogDirectory

COMPACTED = (("cleanup.policy", "compact"),)


def wanted(name: str, partitions: int = 2, replication_factor: int = -1, **configs: str) -> CreatableTopic:
    pairs = tuple((key.replace("_", "."), value) for key, value in configs.items())
    return CreatableTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=pairs)


class Broker:
    """What makes topics in a broker, on a clock that stands still. `announced`: images told to coordinators."""

    def __init__(self, path: Path) -> None:
        self.now_ms = 1_000
        self.announced = 0
        self.flusher = Flusher()
        self.directory = LogDirectory(path)
        logs = PartitionLogs(
            self.directory, flusher=self.flusher, delayed_fetches=DelayedFetches(), clock_ms=lambda: self.now_ms
        )
        self.metadata = ClusterMetadata(self.directory)
        configuration = BrokerConfiguration.from_settings(path)
        self.topics = TopicAdministration(configuration, self.metadata, logs, changed=self._changed)

    def _changed(self) -> None:
        self.announced += 1

    def counts(self) -> dict[str, int]:
        return {topic.name: topic.partitions for topic in self.metadata.topics()}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.flusher.close()
    made.directory.close()


def test_all_topics_of_a_heartbeat_are_one_write(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []
    save = log_directory.save_topics

    def count_and_save(*arguments: Any) -> None:
        writes.append(arguments)
        save(*arguments)

    monkeypatch.setattr(log_directory, "save_topics", count_and_save)
    broker.topics.create_internal(tuple(wanted(f"log{number}", 64, cleanup_policy="compact") for number in range(40)))
    assert (len(writes), broker.announced, len(broker.counts())) == (1, 1, 40)
    assert not broker.directory.partitions_on_disk(), "directories come with the first record"
    topic = broker.metadata.topic("log7")
    assert topic is not None
    assert (topic.partitions, dict(topic.configs)) == (64, {"cleanup.policy": "compact"})


def test_asked_for_twice_is_made_once(broker: Broker) -> None:
    for _ in range(3):
        broker.topics.create_internal((wanted("log"),))
    assert (broker.counts(), broker.announced) == ({"log": 2}, 1)
    assert broker.topics.creation_failure("log", 10_000) is None


def test_one_refusal_does_not_keep_the_others_from_being_made(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    batch = (
        wanted("a", replication_factor=3),
        wanted("b"),
        wanted("c", cleanup_policy="nonsense"),
        wanted("d.e"),
        wanted("d_e"),
        wanted("f", partitions=0),
    )
    for _ in range(2):
        broker.topics.create_internal(batch)
    assert broker.counts() == {"b": 2, "d.e": 2}
    failures = {topic.name: broker.topics.creation_failure(topic.name, 1) for topic in batch}
    assert {name for name, message in failures.items() if message} == {"a", "c", "d_e", "f"}
    assert failures["d_e"] == "Topic 'd_e' collides with existing topic: d.e"
    assert failures["a"] == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
        "only 1 broker(s) are registered."
    )
    assert len(caplog.records) == 4, "each is logged once"


def test_a_failure_is_told_for_a_while_and_gone_when_the_topic_is_there(broker: Broker) -> None:
    broker.topics.create_internal((wanted("log", cleanup_policy="nonsense"),))
    broker.now_ms += 999
    assert broker.topics.creation_failure("log", 1_000)
    broker.now_ms += 1
    assert broker.topics.creation_failure("log", 1_000) is None
    broker.topics.create_internal((wanted("log"),))
    assert broker.counts() == {"log": 2}
    assert broker.topics.creation_failure("log", 10_000) is None


def test_a_disk_that_refuses_is_told_for_each_topic(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(log_directory, "save_topics", refuse)
    broker.topics.create_internal((wanted("a"), wanted("b")))
    assert (broker.counts(), broker.announced) == ({}, 0)
    assert broker.topics.creation_failure("b", 1) == "The disk refused: Input/output error."


def test_failures_that_are_kept_are_limited(broker: Broker) -> None:
    names = [f"log{number}" for number in range(FAILURES_KEPT + 5)]
    broker.topics.create_internal(tuple(wanted(name, partitions=0) for name in names))
    kept = [name for name in names if broker.topics.creation_failure(name, 1)]
    assert kept == names[5:]
