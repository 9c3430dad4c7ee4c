"""Batches whose acknowledgement is missing, late or for another batch: sent again, or reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from kio.static.primitive import i64
from tests.client.produced_records import everything

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.sender import PartitionBatches
from headrace.errors import BrokerError


def test_a_partition_that_an_answer_leaves_out_is_written_again(broker: EmbeddedBroker, client: NetworkClient) -> None:
    """It may be stored or not; a flush that took it for stored would lose its records without a word."""

    def without_the_last(response: Any) -> Any:
        [topic] = response.responses
        return replace(response, responses=(replace(topic, partition_responses=topic.partition_responses[:-1]),))

    producer = Producer(client)
    for partition in range(3):
        producer.send("flights", partition, None, pa.array([b"first"]))
    producer.flush()
    fault = broker.faults.rewrite("Produce", without_the_last, times=1)
    for partition in range(3):
        producer.send("flights", partition, None, pa.array([b"second"]))
    assert producer.flush() == {("flights", partition): 1 for partition in range(3)}
    assert fault.hits == 1
    assert [row["value"] for row in everything(client, "flights")] == [b"first", b"second"] * 3


def test_a_batch_that_was_taken_for_an_earlier_one_is_told(broker: EmbeddedBroker, client: NetworkClient) -> None:
    """Its records would be nowhere: the answer is the one to the earlier batch, and it has no error."""

    def as_the_first_time(response: Any) -> Any:
        [topic] = response.responses
        [entry] = topic.partition_responses
        earlier = replace(entry, base_offset=i64(0))
        return replace(response, responses=(replace(topic, partition_responses=(earlier,)),))

    producer = Producer(client)
    producer.send("flights", 0, None, pa.array([b"first", b"second"]))
    producer.flush()
    broker.faults.rewrite("Produce", as_the_first_time, times=1)
    producer.send("flights", 0, None, pa.array([b"third", b"fourth"]))
    with pytest.raises(BrokerError, match="a batch behind offset 1 was reported to begin at 0") as raised:
        producer.flush()
    assert (raised.value.code, raised.value.retriable) == ("not-stored", True)


def test_a_batch_that_nobody_told_of_is_not_taken_for_stored() -> None:
    batches = PartitionBatches("flights", 0)
    batches.add(b"first", 1)
    batches.add(b"second", 1)
    batches.note_stored(batches.take(), 0, is_repeat=False, has_identity=True)
    with pytest.raises(BrokerError, match="flights-0 are not certain to be stored: 1 of 2 batches were never reported"):
        batches.check_all_stored()
