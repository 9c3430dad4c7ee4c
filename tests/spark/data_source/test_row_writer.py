"""Records of rows, and rows that are no records."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from tests.spark.data_source.sink_queries import (
    ids_open_on,
    options_of,
    query_on,
    read,
    rows,
)

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import BrokerError, ConfigError, RecordError
from headrace.spark.data_source.row_writer import write_task


def test_columns_become_the_parts_of_records(running: EmbeddedBroker) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    when = pa.array([1_700_000_000_123_456, 5_000, None], pa.timestamp("us", "UTC"))
    table = rows(
        "a",
        None,
        "c",
        key=pa.array([b"k", b"k", None]),
        headers=headers,
        partition=pa.array([3, None, 0], pa.int32()),
        timestamp=when,
    )
    options, batch = options_of(running.bootstrap_servers), query_on(running, "run1").batch(0)
    before = int(time.time() * 1000)
    report = write_task(table, options, batch, task=0, attempt=0)
    query_on(running, "run1").commit(0, [report])
    found = {each.value: each for each in running.records("orders")}
    assert (found[b"a"].partition, found[b"a"].key, found[b"a"].timestamp_ms) == (3, b"k", 1_700_000_000_123)
    assert found[b"a"].headers == (("h", b"1"), ("h", None))
    assert (found[None].timestamp_ms, found[None].headers) == (5, ())
    assert (found[b"c"].partition, found[b"c"].key) == (0, None)
    assert found[b"c"].timestamp_ms >= before
    # Without a partition the key decides, as in Kafka's partitioner.
    running.produce("orders", ["other"], key="k")
    assert found[None].partition == next(each for each in running.records("orders") if each.value == b"other").partition


def test_a_column_names_topics_unless_an_option_does(running: EmbeddedBroker) -> None:
    running.create_topics({"invoices": 1})
    topics = pa.array(["orders", "invoices", "orders"])
    query = query_on(running, "run1", topic="")
    report = write_task(rows("a", "b", "c", topic=topics), query.options, query.batch(0), task=0, attempt=0)
    assert report.topics == ("invoices", "orders")
    query.commit(0, [report])
    assert (read(running), read(running, "invoices")) == (["a", "c"], ["b"])
    # The record is found without the option as well.
    query.commit(
        1, [write_task(rows("d", topic=pa.array(["orders"])), query.options, query.batch(1), task=0, attempt=0)]
    )
    all_one = query_on(running, "run2")
    report = write_task(rows("e", topic=pa.array(["invoices"])), all_one.options, all_one.batch(2), task=0, attempt=0)
    all_one.commit(2, [report])
    assert read(running) == ["a", "c", "d", "e"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"partition": pa.array([4], pa.int32())}, "names partition 4 of orders, which has the partitions 0 to 3"),
        ({"partition": pa.array([-1], pa.int32())}, "names partition -1"),
        (
            {
                "headers": pa.array(
                    [[{"key": None, "value": b""}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
                )
            },
            "a header without a key",
        ),
    ],
)
def test_rows_that_are_no_records_are_refused(
    running: EmbeddedBroker, columns: dict[str, pa.Array], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        write_task(
            rows("a", **columns),
            options_of(running.bootstrap_servers),
            query_on(running, "run1").batch(0),
            task=0,
            attempt=0,
        )
    assert ids_open_on(running) == []


def test_a_row_without_a_topic_is_refused(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1", topic="")
    with pytest.raises(RecordError, match="null in the column topic"):
        write_task(rows("a", topic=pa.array([None], pa.string())), query.options, query.batch(0), task=0, attempt=0)


def test_a_missing_topic_and_a_record_that_is_too_large_are_refused(running: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError, match="missing") as caught:
        query_on(running, "run1", topic="missing").write(0, ["a"])
    assert caught.value.code == "topic-missing"
    with pytest.raises(BrokerError) as caught:
        query_on(running, "run1").write(0, ["x" * 2_000_000])
    assert caught.value.code == "record-too-large"
    assert ids_open_on(running) == []


def test_a_time_out_that_the_broker_does_not_allow_is_refused() -> None:
    with EmbeddedBroker({"orders": 1}, config={"transaction.max.timeout.ms": "5000"}) as broker:
        with pytest.raises(ConfigError, match=r"the brokers allow less") as caught:
            query_on(broker, "run1").write(0, ["a"])
        assert "transaction.max.timeout.ms" in caught.value.fix
        query = query_on(broker, "run1", **{"kafka.transaction.timeout.ms": "5000"})
        query.commit(0, query.write(0, ["a"]))
        assert read(broker) == ["a"]
