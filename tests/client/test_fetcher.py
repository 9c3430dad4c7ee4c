"""Records out and in again: Arrow and plain, all codecs, null keys and values, headers, ranges, errors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.produced_records import CODECS, everything

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.client.producer import Producer
from headrace.errors import BrokerError

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


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


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200)), min_size=1, max_size=60
    ),
    st.sampled_from(CODECS),
    st.integers(200, 5_000),
)
def test_random_records_are_read_as_written(
    client: NetworkClient, rows: list[tuple[bytes | None, bytes | None]], codec: str, max_bytes: int
) -> None:
    topic = f"t{len(Admin(client).list_topics())}"
    Admin(client).create_topics({topic: 3})
    producer = Producer(client, compression=codec, max_batch_bytes=500)
    producer.send(topic, None, pa.array([k for k, _ in rows], pa.binary()), pa.array([v for _, v in rows], pa.binary()))
    producer.flush()
    found = everything(client, topic, max_bytes=max_bytes, max_partition_bytes=max_bytes)
    assert sorted(((row["key"], row["value"]) for row in found), key=repr) == sorted(rows, key=repr)
