"""Records out and in again: Arrow and plain, all codecs, null keys and values, headers, ranges, errors."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.static.primitive import i64

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.client.producer import Producer
from headrace.client.record_accumulator import PartitionBatches
from headrace.client.sender import Sender
from headrace.errors import BrokerError, ConfigError
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import encode_batch

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def everything(client: NetworkClient, topic: str, **options: Any) -> list[dict[str, Any]]:
    """All records of a topic as dictionaries, by partition and offset."""
    partitions = client.known_topics([topic]).topics[topic].partitions
    ends = Admin(client).list_offsets({(topic, p): "latest" for p in partitions})
    rows: list[dict[str, Any]] = []
    for batch in Fetcher(client, **options).fetch_ranges({key: (0, end.offset) for key, end in ends.items()}):
        rows += [{"partition": batch.partition, **row} for row in batch.table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("codec", CODECS)
def test_arrow_records_come_back_as_they_went(client: NetworkClient, codec: str) -> None:
    keys = pa.array([b"a", None, b"c", b""], pa.binary())
    values = pa.array([b"1", b"2", None, b""], pa.binary())
    headers = pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}], [], None, []], HEADERS_TYPE)
    with Producer(client, compression=codec) as producer:
        producer.send("flights", 2, keys, values, timestamps_ms=1_700_000_000_000, headers=headers)
        assert producer.flush() == {("flights", 2): 3}
    rows = everything(client, "flights")
    assert [row["key"] for row in rows] == [b"a", None, b"c", b""]
    assert [row["value"] for row in rows] == [b"1", b"2", None, b""]
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"x"}, {"key": "n", "value": None}], [], [], []
    ]  # fmt: skip
    assert {row["timestamp"] for row in rows} == {1_700_000_000_000}
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("codec", CODECS)
def test_plain_records_come_back_as_they_went(client: NetworkClient, codec: str) -> None:
    sent = [
        PlainRecord(value=b"1", key=b"k", timestamp_ms=5, headers=(("h", b"x"), ("n", None))),
        PlainRecord(value=None, key=b"k", timestamp_ms=6),
    ]
    where = partition_for_key(b"k", 4)
    assert produce(client, "flights", sent, compression=codec) == {("flights", where): 1}
    received = [(topic, p, record) for topic, p, record in consume(client, {("flights", n): 0 for n in range(4)})]
    assert [(topic, p) for topic, p, _ in received] == [("flights", where)] * 2
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for _, _, r in received] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in sent
    ]


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


def test_ranges_are_positions_and_stop_where_asked(client: NetworkClient) -> None:
    producer = Producer(client, max_batch_bytes=2_000)
    for partition in (0, 1):
        producer.send("flights", partition, None, pa.array([b"%05d" % n for n in range(1_000)]))
    producer.flush()
    seen: dict[int, list[int]] = {0: [], 1: []}
    reached: dict[int, int] = {}
    ranges = {("flights", 0): (137, 911), ("flights", 1): (0, 1), ("flights", 2): (0, 0)}
    for batch in Fetcher(client, max_bytes=5_000, max_partition_bytes=3_000).fetch_ranges(ranges):
        seen[batch.partition] += batch.table["offset"].to_pylist()
        reached[batch.partition] = batch.next_offset
    assert seen == {0: list(range(137, 911)), 1: [0]}
    assert reached == {0: 911, 1: 1}


def test_only_the_asked_columns_are_made(client: NetworkClient) -> None:
    produce(client, "flights", [PlainRecord(value=b"v")], partition=0)
    (batch,) = Fetcher(client).fetch_ranges({("flights", 0): (0, 1)}, columns=("value",))
    assert batch.table.schema.names == ["value"]


def test_an_offset_outside_the_log_names_partition_and_bounds(client: NetworkClient) -> None:
    produce(client, "flights", [PlainRecord(value=b"v")] * 3, partition=1)
    Admin(client).delete_records({("flights", 1): 2})
    with pytest.raises(BrokerError, match=r"flights-1 from offset 0.*begins at 2") as caught:
        list(Fetcher(client).fetch_ranges({("flights", 1): (0, 3)}))
    assert caught.value.code == "offset-out-of-range"
    assert caught.value.facts["log_start_offset"] == 2


def test_an_end_that_does_not_come_is_told(client: NetworkClient) -> None:
    produce(client, "flights", [PlainRecord(value=b"v")], partition=0)
    with pytest.raises(BrokerError, match="cannot be read up to 5") as caught:
        list(Fetcher(client).fetch_ranges({("flights", 0): (0, 5)}, timeout_ms=200))
    assert caught.value.code == "range-unreachable"


def test_records_that_come_while_waiting_are_read(client: NetworkClient, broker: EmbeddedBroker) -> None:
    later = threading.Timer(0.2, lambda: broker.produce("flights", ["x"] * 40))
    later.start()
    counts = sum(
        batch.table.num_rows
        for batch in Fetcher(client).fetch_ranges({("flights", p): (0, 10) for p in range(4)}, timeout_ms=10_000)
    )
    later.join()
    assert counts == 40


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


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200)), min_size=1, max_size=60
    ),
    st.sampled_from(CODECS),
    st.integers(200, 5_000),
)
def test_whatever_is_written_is_read(
    client: NetworkClient, rows: list[tuple[bytes | None, bytes | None]], codec: str, max_bytes: int
) -> None:
    topic = f"t{len(Admin(client).list_topics())}"
    Admin(client).create_topics({topic: 3})
    producer = Producer(client, compression=codec, max_batch_bytes=500)
    producer.send(topic, None, pa.array([k for k, _ in rows], pa.binary()), pa.array([v for _, v in rows], pa.binary()))
    producer.flush()
    found = everything(client, topic, max_bytes=max_bytes, max_partition_bytes=max_bytes)
    assert sorted(((row["key"], row["value"]) for row in found), key=repr) == sorted(rows, key=repr)
