"""The producer: partitions of keys, refused batches, and a broker that dies between batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.client.produced_records import everything

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, consume
from headrace.client.producer import Producer
from headrace.client.sender import Sender
from headrace.errors import BrokerError, ConfigError
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import encode_batch


def test_keys_choose_partitions_as_kafka_does_and_keyless_rows_spread(client: NetworkClient) -> None:
    keys = [b"key-%d" % n if n % 2 else None for n in range(400)]
    producer = Producer(client)
    producer.send("flights", None, pa.array(keys, pa.binary()), pa.array([b"%d" % n for n in range(400)]))
    producer.flush()
    rows = everything(client, "flights")
    assert len(rows) == 400
    for row in rows:
        if row["key"] is not None:
            assert row["partition"] == partition_for_key(row["key"], 4)
    keyless = [row["partition"] for row in rows if row["key"] is None]
    assert np.bincount(keyless, minlength=4).tolist() == [50, 50, 50, 50]


def test_many_single_rows_without_a_key_spread_too(client: NetworkClient) -> None:
    producer = Producer(client)
    for number in range(8):
        producer.send("flights", None, None, pa.array([b"%d" % number]))
    assert {key[1] for key in producer.flush()} == {0, 1, 2, 3}


def test_a_batch_too_large_is_told_with_its_partition(client: NetworkClient) -> None:
    Admin(client).create_topics({"small": 1}, configs={"small": {"max.message.bytes": "1000"}})
    producer = Producer(client)
    producer.send("small", 0, None, pa.array([b"x" * 5_000]))
    with pytest.raises(BrokerError, match="small-0") as caught:
        producer.flush()
    assert caught.value.code == "record-too-large"
    assert caught.value.facts["partitions"] == [("small", 0)]


def test_writing_to_no_topic_is_told(broker: EmbeddedBroker) -> None:
    with (
        NetworkClient(broker.bootstrap_servers, bootstrap_timeout_ms=200) as client,
        pytest.raises(BrokerError) as caught,
    ):
        Producer(client).send("nowhere", None, None, pa.array([b"x"]))
    assert caught.value.code == "topic-missing"


@pytest.mark.parametrize("acks", [0, 2])
def test_acks_that_promise_nothing_are_refused(client: NetworkClient, acks: int) -> None:
    with pytest.raises(ConfigError):
        Producer(client, acks=acks)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_broker_that_dies_between_loses_and_reorders_nothing(
    broker: EmbeddedBroker, client: NetworkClient, idempotent: bool
) -> None:
    """What was on the way when it died is sent again; with an identity nothing is written twice either."""
    queue = Sender(client, enable_idempotence=idempotent)
    numbers = iter(range(60))

    def some(count: int) -> None:
        for _ in range(count):
            queue.add("flights", 0, encode_batch([PlainRecord(value=b"%d" % next(numbers), timestamp_ms=1)]))

    some(20)
    queue.flush()
    some(20)
    queue._send_ready()
    broker.kill()
    broker.restart()
    some(20)
    queue.flush()
    found = [int(r.value or b"-1") for _, _, r in consume(client, {("flights", 0): 0})]
    if idempotent:
        assert found == list(range(60))
    else:
        assert sorted(set(found)) == list(range(60))
        assert list(dict.fromkeys(found)) == list(range(60)), "the first copy of each comes in order"
