"""Produce requests that go the short way are answered, and change the logs, as the handler would.

Two brokers are asked the same; one has a fault in place for another API, and so looks at every request the long way.
"""

from __future__ import annotations

import random
import re
import struct
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fuzz.record_samples import hostile_batches
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.network import fair_queue
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import encode_request

p = m.produce_request
NOW_MS = int(time.time() * 1000)
TOPICS = {"t": 3, "compacted": 1, "stamped": 1}


def make(broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 3})
    broker.create_topics({"compacted": 1}, {"cleanup.policy": "compact"})
    broker.create_topics({"stamped": 1}, {"message.timestamp.type": "LogAppendTime"})


@pytest.fixture
def brokers() -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    with EmbeddedBroker() as short, EmbeddedBroker() as long:
        for each in (short, long):
            make(each)
        long.faults.delay("DescribeQuorum", 0.0)
        yield short, long


def ids(client: Any) -> dict[str, uuid.UUID]:
    request = m.metadata_request.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return {topic.name: topic.topic_id for topic in client.call(ApiKey.METADATA, request).topics}


def request(parts: list[tuple[str, int, bytes | None]], known: dict[str, uuid.UUID], acks: int) -> Any:
    by_topic: dict[str, list[Any]] = {}
    for topic, partition, data in parts:
        by_topic.setdefault(topic, []).append(p.PartitionProduceData(index=partition, records=data))
    return p.ProduceRequest(
        acks=acks,
        timeout=from_ms(1000),
        topic_data=tuple(
            p.TopicProduceData(name=name, topic_id=known.get(name, uuid.UUID(int=77)), partition_data=tuple(data))
            for name, data in by_topic.items()
        ),
    )


def batch(chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        return hostile_batches(chance)
    count = chance.choice((1, 3, 20))
    return encode_batch([PlainRecord(value=chance.randbytes(20), timestamp_ms=NOW_MS) for _ in range(count)])


def compared(answer: Any, known: dict[str, uuid.UUID]) -> list[object]:
    """Without times and the topics' ids, which no two brokers share."""
    names = {topic_id: name for name, topic_id in known.items()}
    return [
        (
            topic.name or names.get(topic.topic_id, "unknown"),
            part.index,
            part.error_code,
            part.base_offset,
            part.log_append_time is None,
            part.log_start_offset,
            re.sub(r"\d{12,}", "a time", f"{part.error_message} {part.record_errors}"),
        )
        for topic in answer.responses
        for part in topic.partition_responses
    ]


def test_random_requests_end_alike(brokers: tuple[EmbeddedBroker, EmbeddedBroker], connect: Connect) -> None:
    clients = [connect(broker) for broker in brokers]
    known = [ids(client) for client in clients]
    chance = random.Random(5)
    for _ in range(250):
        version, acks = chance.choice((8, 9, 12, 13, 13, 13)), chance.choice((-1, 1, 1, 3))
        parts: list[tuple[str, int, bytes | None]] = []
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            topic = chance.choice(("t", "t", "t", "compacted", "stamped", "missing", "__consumer_offsets"))
            parts.append((topic, chance.choice((0, 0, 1, 2, 5, -1)), None if chance.random() < 0.02 else batch(chance)))
        answers = [
            compared(client.call(ApiKey.PRODUCE, request(parts, own, acks), version), own)
            for client, own in zip(clients, known, strict=True)
        ]
        assert answers[0] == answers[1], parts
    for topic in TOPICS:
        first, second = (broker.records(topic) for broker in brokers)
        assert [(each.partition, each.offset, each.key, each.value) for each in first] == [
            (each.partition, each.offset, each.key, each.value) for each in second
        ]


def test_the_short_way_is_taken(
    brokers: tuple[EmbeddedBroker, EmbeddedBroker], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode = fair_queue.decode_request

    def count_and_decode(*arguments: Any) -> Any:
        decoded.append(1)
        return decode(*arguments)

    monkeypatch.setattr(fair_queue, "decode_request", count_and_decode)
    counts = []
    for broker in brokers:
        client = connect(broker)
        known = ids(client)
        decoded.clear()
        for number in range(3):
            data = encode_batch([PlainRecord(value=b"x" * number, timestamp_ms=NOW_MS)])
            answer = client.call(ApiKey.PRODUCE, request([("t", 0, data), ("t", 1, data)], known, -1))
            assert [part.base_offset for part in answer.responses[0].partition_responses] == [number, number]
        counts.append(len(decoded))
        assert broker.faults.seen("Produce", client_id="test-client") == 3
        assert any("Produce" in name and value == 3 for name, value in broker.metrics().items())
    assert counts == [0, 3]


def test_no_answer_to_acks_0(brokers: tuple[EmbeddedBroker, EmbeddedBroker], connect: Connect) -> None:
    for broker in brokers:
        client = connect(broker)
        known = ids(client)
        data = encode_batch([PlainRecord(value=b"silent", timestamp_ms=NOW_MS)])
        client.send(ApiKey.PRODUCE, request([("t", 2, data)], known, 0))
        answer = client.call(ApiKey.PRODUCE, request([("t", 2, data)], known, 1))
        assert answer.responses[0].partition_responses[0].base_offset == 1


def test_with_fsync_always_the_answer_waits_for_the_disk(connect: Connect) -> None:
    with EmbeddedBroker({"t": 2}, config={"headrace.flush.policy": "always"}) as broker:
        client = connect(broker)
        known = ids(client)
        data = encode_batch([PlainRecord(value=b"x", timestamp_ms=NOW_MS)])
        client.call(ApiKey.PRODUCE, request([("t", 0, data)], known, -1))
        bent = bytearray(data)
        bent[-1] ^= 1
        answer = client.call(ApiKey.PRODUCE, request([("t", 0, data), ("t", 1, bytes(bent))], known, -1))
        assert [(part.error_code, part.base_offset) for part in answer.responses[0].partition_responses] == [
            (ErrorCode.none, 1),
            (ErrorCode.corrupt_message, -1),
        ]
        assert broker.metrics()  # still alive
        assert len(broker.records("t")) == 2


def test_pipelined_requests_are_answered_in_order(connect: Connect, broker: EmbeddedBroker) -> None:
    broker.create_topics({"t": 1})
    client = connect(broker)
    known = ids(client)
    data = encode_batch([PlainRecord(value=b"x", timestamp_ms=NOW_MS)])
    usual = request([("t", 0, data)], known, -1)
    unusual = request([("t", 0, data), ("missing", 0, data)], known, -1)
    frames = [encode_request(ApiKey.PRODUCE, 13, number, "c", usual if number % 3 else unusual) for number in range(30)]
    client.socket.sendall(b"".join(frames))
    for number in range(30):
        frame = client.read_frame()
        assert struct.unpack_from(">i", frame) == (number,)
    assert len(broker.records("t")) == 30


def test_answers_that_go_out_together_keep_their_order(connect: Connect, broker: EmbeddedBroker) -> None:
    """Usual requests, other APIs and a request that ends the connection, all in one read."""
    broker.create_topics({"t": 1})
    client = connect(broker)
    known = ids(client)
    data = encode_batch([PlainRecord(value=b"x", timestamp_ms=NOW_MS)])
    metadata = m.metadata_request.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    frames, wanted = [], []
    for number in range(40):
        acks = -1 if number % 7 else 0
        if number % 11 == 10:
            frames.append(encode_request(ApiKey.METADATA, 13, number, "c", metadata))
        else:
            frames.append(encode_request(ApiKey.PRODUCE, 13, number, "c", request([("t", 0, data)], known, acks)))
        if acks or number % 11 == 10:
            wanted.append(number)
    client.socket.sendall(b"".join(frames) + b"\0\0\0\x08\x7f\xff" + bytes(6))
    answered = [struct.unpack_from(">i", client.read_frame())[0] for _ in wanted]
    assert answered == wanted
    assert client.is_closed_by_peer()
    assert len(broker.records("t")) == 37
