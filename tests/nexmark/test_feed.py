"""Events in topics: every one once, keyed, in order within a partition; topics with other events are refused."""

from __future__ import annotations

import json

import pytest
from tests.harness.brokers import broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.producer import Producer
from headrace.errors import ConfigError
from headrace.nexmark.events import KEYS, KINDS, Workload, generate, topic_of
from headrace.nexmark.feed import create_topics, encode_events, send_events

broker = broker_fixture({})
WORKLOAD = Workload(disorder=100)


def fill(broker: EmbeddedBroker, events: int) -> bool:
    with Admin(broker.bootstrap_servers) as admin:
        are_there = create_topics(admin, 4, prefix="nexmark", workload=WORKLOAD, events=events)
        if not are_there:
            with Producer(admin.client) as producer:
                send_events(producer, WORKLOAD, 0, events, prefix="nexmark")
        return are_there


def test_every_event_is_in_its_topic_once_and_in_order(broker: EmbeddedBroker) -> None:
    assert not fill(broker, 30_000)
    for kind, batch in generate(WORKLOAD, 0, 30_000).items():
        _, values = encode_events(batch, kind)
        place = {bytes(value): number for number, value in enumerate(values.to_pylist())}
        last: dict[int, int] = {}
        records = broker.records(topic_of(kind))
        for record in records:
            assert record.key is not None
            assert record.value is not None
            assert json.loads(record.key) == json.loads(record.value)[KEYS[kind]]
            number = place.pop(bytes(record.value))
            assert last.get(record.partition, -1) < number
            last[record.partition] = number
        assert not place
        assert len(last) == 4


def test_values_are_the_columns_as_json() -> None:
    for kind in KINDS:
        batch = generate(WORKLOAD, 0, 500, (kind,))[kind]
        for row, value in zip(batch.to_pylist(), encode_events(batch, kind)[1].to_pylist(), strict=True):
            found = json.loads(value)
            for name in ("dateTime", "expires"):
                if name in row:
                    assert found.pop(name) == row.pop(name).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            assert found == row


def test_events_that_are_there_are_used_again_and_others_refused(broker: EmbeddedBroker) -> None:
    assert not fill(broker, 1_000)
    assert fill(broker, 1_000)
    with pytest.raises(ConfigError) as caught:
        fill(broker, 2_000)
    assert caught.value.code == "topic-exists"
    assert "--prefix" in caught.value.fix
