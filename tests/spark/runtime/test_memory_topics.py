"""Topics in memory: offsets, ranges, transactions, and what a record keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import BrokerError
from headrace.protocol.partitioner import partition_for_key
from headrace.spark.runtime.memory_topics import MemoryTopics, MemoryWriter

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topics():
    return MemoryTopics({"orders": 3, "log": 1}, now_ms=1000)


def send(topics, topic, *values, partition=0, compression="none", **more):
    writer = MemoryWriter(topics, compression=compression)
    writer.send(topic, partition, more.pop("keys", None), pa.array(values, pa.binary()), timestamps_ms=7, **more)
    return writer.flush()


def values(topics, topic, start, end, partition=0):
    found = topics.fetch_ranges({(topic, partition): (start, end)}, columns=("value", "offset"))
    return [tuple(row.values()) for batch in found for row in batch.table.to_pylist()]


def test_ranges_are_cut_at_offsets_not_at_batches(topics):
    assert send(topics, "log", b"a", b"b", b"c") == {("log", 0): 2}
    assert send(topics, "log", b"d", b"e") == {("log", 0): 4}
    assert values(topics, "log", 0, 5) == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 3), (b"e", 4)]
    assert values(topics, "log", 1, 4) == [(b"b", 1), (b"c", 2), (b"d", 3)]
    assert values(topics, "log", 4, 4) == []
    assert topics.log_range(("log", 0)) == (0, 5)


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_records_keep_key_null_time_and_headers(topics, codec):
    headers = pa.array([[{"key": "h", "value": None}], []], HEADERS)
    send(topics, "log", b"v", None, keys=pa.array([b"k", None], pa.binary()), headers=headers, compression=codec)
    [(partition, table)] = topics.batches("log")
    assert partition == 0
    first, second = table.to_pylist()
    assert (first["key"], first["value"], first["timestamp"]) == (b"k", b"v", 7)
    assert first["headers"] == [{"key": "h", "value": None}]
    assert (second["key"], second["value"]) == (None, None)


def test_rows_go_to_the_partitions_of_their_keys(topics):
    keys = [b"a", b"b", b"c", b"d"]
    send(topics, "orders", *keys, partition=None, keys=pa.array(keys, pa.binary()))
    placed = {row["key"]: partition for partition, table in topics.batches("orders") for row in table.to_pylist()}
    assert placed == {key: partition_for_key(key, 3) for key in keys}


def test_an_aborted_transaction_leaves_nothing(topics):
    send(topics, "orders", b"kept", partition=1)
    topics.begin_transaction()
    send(topics, "orders", b"gone", partition=1)
    send(topics, "orders", b"gone, too", partition=2)
    topics.abort_transaction()
    assert [topics.end(("orders", partition)) for partition in range(3)] == [0, 1, 0]
    topics.begin_transaction()
    send(topics, "orders", b"next", partition=1)
    topics.commit_transaction()
    topics.abort_transaction()  # nothing is open
    assert values(topics, "orders", 0, 2, partition=1) == [(b"kept", 0), (b"next", 1)]
    assert topics.batch_count("orders") == 2


def test_batches_come_in_the_order_of_the_writes(topics):
    for number, partition in enumerate([2, 0, 2, 1]):
        send(topics, "orders", str(number).encode(), partition=partition)
    found = [(partition, table.column("value")[0].as_py()) for partition, table in topics.batches("orders", 1)]
    assert found == [(0, b"1"), (2, b"2"), (1, b"3")]


def test_unknown_topics_and_partitions_are_refused(topics):
    with pytest.raises(BrokerError, match="no topic nowhere"):
        topics.known_topics(["nowhere"])
    with pytest.raises(BrokerError, match="no partition 9"):
        send(topics, "orders", b"x", partition=9)
