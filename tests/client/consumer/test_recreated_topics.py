"""Positions in a topic that is deleted and created again under the same name: never applied to the new topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.running_consumers import Heard
from tests.client.running_pipelines import Journal, RunningPipeline
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace import Admin, Consumer
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.consumer_types import TopicPartition
from headrace.client.fetch_loop import FetchLoop
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import BrokerError

OLD, NEW = 20, 50
"""The new topic is longer: a position of the old one lies within it, so no out-of-range error shows the mistake."""


class Topic:
    """A topic with OLD records "old-…"; `recreate` deletes it and makes one with NEW records "new-…"."""

    def __init__(self, servers: str, name: str) -> None:
        self.servers = servers
        self.name = name
        self.partition = TopicPartition(name, 0)
        self._create("old", OLD)

    def recreate(self) -> None:
        with NetworkClient(self.servers) as client:
            Admin(client).delete_topics([self.name])
        wait_until(self._is_gone, f"{self.name} is deleted")
        self._create("new", NEW)

    def _is_gone(self) -> bool:
        with NetworkClient(self.servers) as client:
            return self.name not in client.metadata([self.name]).topics

    def _create(self, word: str, count: int) -> None:
        with NetworkClient(self.servers) as client:
            Admin(client).create_topics({self.name: 1})
            produce(
                client, self.name, [PlainRecord(key=b"k%d" % n, value=f"{word}-{n}".encode()) for n in range(count)]
            )


@pytest.fixture
def topic(broker: EmbeddedBroker, unique: Callable[[str], str]) -> Topic:
    return Topic(broker.bootstrap_servers, unique("orders"))


def read(consumer: Consumer, count: int, timeout_s: float = 20.0) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        found += [(each.value or b"").decode() for each in consumer.poll_records(0.5)]
    return found


def words(word: str, count: int) -> list[str]:
    return [f"{word}-{n}" for n in range(count)]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("protocol", ["classic", "consumer", None])
def test_a_running_consumer_reads_the_new_topic_from_its_beginning(
    topic: Topic, protocol: str | None, reset: str
) -> None:
    heard = Heard()
    group: dict[str, Any] = {} if protocol is None else {"group_id": f"{topic.name}-group", "group_protocol": protocol}
    with Consumer(bootstrap_servers=topic.servers, auto_offset_reset=reset, listener=heard, **group) as consumer:
        if protocol is None:
            consumer.assign([topic.partition])
        else:
            consumer.subscribe(topic.name)
            wait_until(lambda: consumer.poll_records(0.1) is not None and bool(consumer.assignment()), "assigned")
        consumer.seek(topic.partition, 0)
        assert read(consumer, OLD) == words("old", OLD)
        topic.recreate()
        assert read(consumer, NEW) == words("new", NEW)
        assert heard.named("lost") == [(topic.partition,)] or protocol == "consumer"


def test_without_a_reset_a_new_topic_is_refused_until_the_consumer_seeks(topic: Topic) -> None:
    with Consumer(bootstrap_servers=topic.servers, auto_offset_reset="none") as consumer:
        consumer.assign([topic.partition])
        consumer.seek(topic.partition, 0)
        assert read(consumer, OLD) == words("old", OLD)
        topic.recreate()
        for _ in range(2):
            with pytest.raises(BrokerError, match="was deleted and created again") as refused:
                read(consumer, 1)
            assert refused.value.code == "topic-recreated"
        consumer.seek(topic.partition, 3)
        assert read(consumer, NEW - 3) == words("new", NEW)[3:]


def test_an_offset_of_the_deleted_topic_is_not_committed(topic: Topic) -> None:
    group_id = f"{topic.name}-group"
    with Consumer(
        topic.name,
        group_id=group_id,
        bootstrap_servers=topic.servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        assert len(read(consumer, OLD)) == OLD
        consumer.commit()
        topic.recreate()
        with pytest.raises(BrokerError) as refused:
            consumer.commit({topic.partition: 15})
        assert refused.value.code == "topic-recreated"
        assert consumer.committed()[topic.partition] is None
    with Consumer(
        topic.name, group_id=group_id, bootstrap_servers=topic.servers, auto_offset_reset="earliest"
    ) as again:
        assert read(again, NEW) == words("new", NEW)


def test_offsets_of_other_topics_are_committed_beside_a_refused_one(
    topic: Topic, client: NetworkClient, unique: Callable[[str], str]
) -> None:
    group_id = unique("group")
    ids = {each: known.topic_id for each, known in client.known_topics([topic.name, "flights"]).topics.items()}
    topic.recreate()
    offsets = {(topic.name, 0): 15, ("flights", 1): 7}
    with pytest.raises(BrokerError) as refused:
        commit_offsets(client, group_id, offsets, topic_ids={each: not_none(ids[each[0]]) for each in offsets})
    assert refused.value.code == "topic-recreated"
    assert fetch_offsets(client, group_id, offsets) == {(topic.name, 0): -1, ("flights", 1): 7}


def test_a_pipeline_processes_every_record_of_the_new_topic(topic: Topic) -> None:
    """Records that a handler ends late, and what was finished beyond the committed offset, are the old topic's."""
    group_id = f"{topic.name}-group"
    held = Journal(holds=lambda record: record.value == b"old-0")
    with RunningPipeline(topic.name, group_id, topic.servers, held, workers=4) as running:
        wait_until(lambda: len(held.ended) == OLD - 1, "all but the first are done")
        topic.recreate()
        wait_until(lambda: len(held.ended) == OLD - 1 + NEW - 1, "the new topic is read, but for the late one's key")
        held.gate.set()
        wait_until(lambda: len(held.ended) == OLD + NEW, "the late handler ends")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "all is committed")
    with Consumer(group_id=group_id, bootstrap_servers=topic.servers) as asking:
        committed = asking.committed([topic.partition])[topic.partition]
    assert committed is not None
    assert committed.offset == NEW
    assert sorted(not_none(each.value).decode() for each in held.ended) == sorted(words("old", OLD) + words("new", NEW))


def test_finished_offsets_are_bound_to_the_topic_id(topic: Topic, client: NetworkClient) -> None:
    """A commit by name that arrives late, as a client before OffsetCommit v10 sends it, brings metadata of the deleted
    topic: no record of the new one counts as finished by it."""
    group_id = f"{topic.name}-group"
    held = Journal(holds=lambda record: record.value == b"old-0")
    with RunningPipeline(topic.name, group_id, topic.servers, held, workers=4, drain_timeout=0.1, commit_interval=0.1):
        wait_until(lambda: len(held.ended) == OLD - 1, "all but the first are done")
    with Consumer(group_id=group_id, bootstrap_servers=topic.servers) as asking:
        committed = asking.committed([topic.partition])[topic.partition]
    assert committed is not None
    old_id = client.known_topics([topic.name]).topics[topic.name].topic_id
    assert decode_finished(0, committed.metadata, old_id) == ((1, OLD),)
    topic.recreate()
    held.gate.set()
    client.metadata([topic.name], refresh=True)
    commit_offsets(client, group_id, {(topic.name, 0): committed})
    done = Journal()
    with RunningPipeline(topic.name, group_id, topic.servers, done):
        wait_until(lambda: len(done.ended) == NEW, "every record of the new topic is processed")
    assert sorted(not_none(each.value).decode() for each in done.ended) == sorted(words("new", NEW))


def test_a_read_of_ranges_begins_in_the_topic_that_is_there(topic: Topic, client: NetworkClient) -> None:
    """The client still knows the deleted topic; nothing was read of it."""
    client.known_topics([topic.name])
    topic.recreate()
    assert sum(each.next_offset - each.start_offset for each in FetchLoop(client, {(topic.name, 0): (0, NEW)})) == NEW


def test_a_read_of_ranges_ends_when_its_topic_is_recreated(topic: Topic, client: NetworkClient) -> None:
    loop = iter(FetchLoop(client, {(topic.name, 0): (0, NEW)}, timeout_ms=10_000))
    assert next(loop).next_offset == OLD
    topic.recreate()
    with pytest.raises(BrokerError, match="was deleted and created again") as refused:
        list(loop)
    assert refused.value.code == "topic-recreated"
