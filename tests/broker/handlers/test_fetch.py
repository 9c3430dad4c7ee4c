"""Produce and Fetch where the details count: limits, waiting, versions, errors per partition."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.broker.handlers.fetch_requests import batch, f, only, produce, topic_id_of
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import decode_records


def fetch(topic: str, topic_id: Any, offset: int = 0, **fields: Any) -> Any:
    part = f.FetchPartition(
        partition=fields.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=fields.pop("partition_max_bytes", 1 << 20),
        current_leader_epoch=fields.pop("current_leader_epoch", -1),
    )
    asked = f.FetchTopic(topic=topic, topic_id=topic_id, partitions=(part,))
    settings: dict[str, Any] = {"max_wait": from_ms(0), "min_bytes": 1, **fields}
    return f.FetchRequest(topics=(asked,), **settings)


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.FETCH].lowest, SUPPORTED[ApiKey.FETCH].highest + 1))
def test_every_version_of_fetch(version: int, client: Any, broker: EmbeddedBroker) -> None:
    broker.produce("t", [b"a", b"b"], partition=0)
    answer = only(client.call(ApiKey.FETCH, fetch("t", topic_id_of(client, "t")), version))
    assert (answer.error_code, answer.high_watermark) == (ErrorCode.none, 2)
    assert [record.value for record in decode_records(answer.records)] == [b"a", b"b"]


def test_producer_ids_are_never_given_twice(connect: Connect) -> None:
    seen = set()
    with EmbeddedBroker() as broker:
        for _ in range(3):
            client = connect(broker)
            for _ in range(5):
                request = m.init_producer_id_request.InitProducerIdRequest(
                    transactional_id=None, transaction_timeout=from_ms(0)
                )
                seen.add(client.call(ApiKey.INIT_PRODUCER_ID, request).producer_id)
            broker.kill()
            broker.restart()
    assert len(seen) == 15


def test_fetch_waits_for_min_bytes_and_wakes_on_append(client: Any, broker: EmbeddedBroker, connect: Connect) -> None:
    topic_id = topic_id_of(client, "t")
    one = len(batch(b"first"))
    waiting = client.send(ApiKey.FETCH, fetch("t", topic_id, max_wait=from_ms(600_000), min_bytes=2 * one))
    neighbour = connect(broker)
    for value in (b"first", b"again"):
        assert only(neighbour.call(ApiKey.PRODUCE, produce("t", topic_id, batch(value)))).error_code is ErrorCode.none
    answer = only(client.receive(waiting))
    assert [record.value for record in decode_records(answer.records)] == [b"first", b"again"]


def test_fetch_wakes_when_its_topic_is_deleted(client: Any, connect: Connect, broker: EmbeddedBroker) -> None:
    topic_id = topic_id_of(client, "t")
    waiting = client.send(ApiKey.FETCH, fetch("t", topic_id, max_wait=from_ms(600_000)))
    state = m.delete_topics_request.DeleteTopicState(name="t", topic_id=None)
    request = m.delete_topics_request.DeleteTopicsRequest(topics=(state,), timeout=from_ms(1000))
    assert connect(broker).call(ApiKey.DELETE_TOPICS, request).responses[0].error_code is ErrorCode.none
    assert only(client.receive(waiting)).error_code is ErrorCode.unknown_topic_or_partition, "the name was known"


def test_a_parked_fetch_is_answered_when_the_broker_stops(client: Any, broker: EmbeddedBroker) -> None:
    waiting = client.send(ApiKey.FETCH, fetch("t", topic_id_of(client, "t"), max_wait=from_ms(600_000)))
    client.send(
        ApiKey.METADATA, m.metadata_request.MetadataRequest(topics=(), include_topic_authorized_operations=False)
    )
    broker.stop()
    assert only(client.receive(waiting)).error_code is ErrorCode.none
    assert client.is_closed_by_peer()


def test_fetch_returns_after_max_wait_with_nothing(client: Any) -> None:
    answer = only(client.call(ApiKey.FETCH, fetch("t", topic_id_of(client, "t"), max_wait=from_ms(50))))
    assert (answer.error_code, answer.records) == (ErrorCode.none, b"")


def test_an_isolated_partition_error_does_not_wait(client: Any) -> None:
    topic_id = topic_id_of(client, "t")
    long: dict[str, Any] = {"max_wait": from_ms(600_000)}
    assert only(client.call(ApiKey.FETCH, fetch("t", topic_id, 5, **long))).error_code is ErrorCode.offset_out_of_range
    unknown = only(client.call(ApiKey.FETCH, fetch("t", uuid.uuid4(), **long)))
    assert unknown.error_code is ErrorCode.unknown_topic_id
    missing = only(client.call(ApiKey.FETCH, fetch("missing", None, **long), 12))
    assert missing.error_code is ErrorCode.unknown_topic_or_partition
    partition = only(client.call(ApiKey.FETCH, fetch("t", topic_id, partition=7, **long)))
    assert partition.error_code is ErrorCode.unknown_topic_or_partition
    epoch = only(client.call(ApiKey.FETCH, fetch("t", topic_id, current_leader_epoch=3, **long)))
    assert epoch.error_code is ErrorCode.unknown_leader_epoch


def test_limits_bound_an_answer_but_one_batch_always_comes(client: Any, broker: EmbeddedBroker) -> None:
    topic_id = topic_id_of(client, "t")
    for partition in (0, 1):
        for _ in range(3):
            broker.produce("t", [b"x" * 1000], partition=partition)
    size = len(broker.records("t")) and len(only(client.call(ApiKey.FETCH, fetch("t", topic_id))).records) // 3
    small = only(client.call(ApiKey.FETCH, fetch("t", topic_id, partition_max_bytes=1)))
    assert len(small.records) == size
    two = only(client.call(ApiKey.FETCH, fetch("t", topic_id, partition_max_bytes=2 * size + 10)))
    assert len(two.records) == 2 * size
    parts = tuple(f.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in (0, 1))
    both = f.FetchRequest(
        topics=(f.FetchTopic(topic="t", topic_id=topic_id, partitions=parts),),
        max_wait=from_ms(0),
        min_bytes=1,
        max_bytes=4 * size,
    )
    answer = client.call(ApiKey.FETCH, both).responses[0]
    assert [len(part.records) for part in answer.partitions] == [3 * size, size]
    exhausted = f.FetchRequest(topics=both.topics, max_wait=from_ms(0), min_bytes=1, max_bytes=1)
    answer = client.call(ApiKey.FETCH, exhausted).responses[0]
    assert [len(part.records) for part in answer.partitions] == [size, 0]


def test_a_recreated_topic_is_another_topic(client: Any, broker: EmbeddedBroker, connect: Connect) -> None:
    old = topic_id_of(client, "t")
    broker.produce("t", [b"old"])
    state = m.delete_topics_request.DeleteTopicState(name=None, topic_id=old)
    request = m.delete_topics_request.DeleteTopicsRequest(topics=(state,), timeout=from_ms(1000))
    assert client.call(ApiKey.DELETE_TOPICS, request).responses[0].name == "t"
    broker.create_topics({"t": 2})
    assert topic_id_of(client, "t") != old
    assert only(client.call(ApiKey.PRODUCE, produce("", old, batch(b"x")))).error_code is ErrorCode.unknown_topic_id
    assert broker.records("t") == []
