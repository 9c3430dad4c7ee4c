"""Batch queries by `spark.read.format("headrace")`: columns, ranges, filters and refusals, through Spark."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType
from tests.client.transaction_ends import write

import headrace.spark
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.group_offsets import commit_offsets
from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.transactions import Transactions
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.data_source.source import HeadraceDataSource, PushdownDataSource
from headrace.spark.spark_internals import activate

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "spark-jobs.md"


@pytest.fixture(scope="module")
def orders() -> Any:
    """A broker whose topic `orders` has five records in each of two partitions, at times 1000, 2000, …"""
    with EmbeddedBroker({"orders": 2}) as broker:
        with NetworkClient(broker.bootstrap_servers) as client:
            producer = Producer(client)
            for partition in range(2):
                values = pa.array([f"{partition}-{number}".encode() for number in range(5)], pa.binary())
                keys = pa.array([None, b"a", b"b", b"a", b""], pa.binary())
                producer.send(
                    "orders",
                    partition,
                    keys,
                    values,
                    timestamps_ms=pa.array(range(1000, 6000, 1000)),
                    headers=pa.array([[], [], [], [], [{"key": "h", "value": b"x"}]], HEADERS),
                )
            producer.flush()
        yield broker


def source(broker: EmbeddedBroker, **options: str) -> PushdownDataSource:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders"} | options
    return PushdownDataSource({name: value for name, value in given.items() if value})


def values_of(made: HeadraceDataSource, *filters: Any) -> list[str]:
    """The values that a reader returns, without Spark around it."""
    reader = made.reader(schema_of(made))
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    tasks = list(reader.partitions()) or [InputPartition(None)]
    return sorted(
        v.decode() for task in tasks for batch in reader.read(task) for v in batch.column("value").to_pylist()
    )


def schema_of(made: HeadraceDataSource) -> StructType:
    schema = made.schema()
    assert isinstance(schema, StructType)
    return schema


def read(spark: SparkSession, broker: EmbeddedBroker, **options: str) -> DataFrame:
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(**options).load()


def offsets(first: int, second: int) -> str:
    return json.dumps({"orders": {"0": first, "1": second}})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["0-0", "0-1", "0-2", "0-3", "0-4", "1-0", "1-1", "1-2", "1-3", "1-4"]),
        ({"startingOffsets": offsets(3, 4)}, ["0-3", "0-4", "1-4"]),
        ({"startingOffsets": offsets(-2, 4), "endingOffsets": offsets(1, -1)}, ["0-0", "1-4"]),
        ({"subscribe": "", "assign": '{"orders":[1]}', "endingOffsets": '{"orders":{"1":1}}'}, ["1-0"]),
        ({"subscribe": "", "subscribePattern": "ord.*", "startingTimestamp": "4500"}, ["0-4", "1-4"]),
        ({"subscribe": "", "subscribePattern": "rder"}, []),
        ({"startingTimestamp": "2000", "endingTimestamp": "3001"}, ["0-1", "0-2", "1-1", "1-2"]),
        (
            {"startingOffsetsByTimestamp": offsets(5000, 9000), "startingOffsetsByTimestampStrategy": "latest"},
            ["0-4"],
        ),
        ({"startingOffsets": offsets(0, 9), "failOnDataLoss": "false"}, ["0-0", "0-1", "0-2", "0-3", "0-4"]),
        ({"minPartitions": "7", "startingOffsets": offsets(4, 0)}, ["0-4", "1-0", "1-1", "1-2", "1-3", "1-4"]),
    ],
)
def test_options_choose_the_records(orders: EmbeddedBroker, options: dict[str, str], wanted: list[str]) -> None:
    assert values_of(source(orders, **options)) == wanted


def test_a_batch_starts_at_the_commits_of_a_group(orders: EmbeddedBroker) -> None:
    with NetworkClient(orders.bootstrap_servers) as client:
        commit_offsets(client, "billing", {("orders", 1): 4})
    options = {"startingOffsets": "committed", "group.id": "billing"}
    assert values_of(source(orders, **options)) == ["0-0", "0-1", "0-2", "0-3", "0-4", "1-4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": offsets(0, 9)}, "orders-1 from offset 9 failed"),
        ({"startingOffsets": '{"orders":{"0":1}}'}, "startingOffsets lacks orders-1"),
        ({"startingOffsets": '{"orders":{"0":1,"1":1,"2":1}}'}, "does not read, orders-2"),
        ({"startingOffsets": offsets(3, 3), "endingOffsets": offsets(3, 2)}, "orders-1 ends at 2 and starts at 3"),
        ({"startingOffsets": "latest"}, "would read nothing"),
        ({"startingOffsets": offsets(0, -1)}, "would read nothing"),
        ({"startingTimestamp": "9000"}, "has no record at or after startingTimestamp 9000"),
        ({"maxOffsetsPerTrigger": "5"}, "no meaning in a batch query"),
        ({"subscribe": "", "assign": '{"orders":[2]}'}, "has no partition 2"),
        ({"group.id": "billing"}, "group.id has no effect"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "expected a starting time beside it"),
    ],
)
def test_a_range_that_cannot_be_read_is_refused(orders: EmbeddedBroker, options: dict[str, str], message: str) -> None:
    made = source(orders, **options)
    with pytest.raises(HeadraceError, match=message) as caught:
        made.reader(schema_of(made)).partitions()
    assert caught.value.fix


def test_records_that_are_deleted_or_of_another_topic_are_no_silent_gap() -> None:
    with EmbeddedBroker({"orders": 1}) as broker, Admin(broker.bootstrap_servers) as admin:
        broker.produce("orders", [f"0-{number}" for number in range(5)])
        made = source(broker)
        strict = made.reader(schema_of(made))
        lenient = source(broker, failOnDataLoss="false").reader(schema_of(made))
        [task] = strict.partitions()
        admin.delete_records({("orders", 0): 3})
        with pytest.raises(HeadraceError, match="its log begins at 3 now"):
            list(strict.read(task))
        assert [batch.column("offset").to_pylist() for batch in lenient.read(task)] == [[3, 4]]
        behind = InputPartition(replace(task.value, start=8, end=9))
        with pytest.raises(HeadraceError, match="its log ends before it now"):
            list(strict.read(behind))
        assert list(lenient.read(behind)) == []
        broker.delete_topics(["orders"])
        broker.create_topics({"orders": 1})
        broker.produce("orders", ["another"] * 9)
        with pytest.raises(HeadraceError, match="deleted and created again"):
            list(strict.read(task))
        assert list(lenient.read(task)) == []


def test_an_open_transaction_is_no_lost_record() -> None:
    with EmbeddedBroker({"orders": 1}) as broker, NetworkClient(broker.bootstrap_servers) as client:
        broker.produce("orders", ["before"])
        transactions = Transactions(client)
        identity = transactions.initialise(["writer"])["writer"]
        assert not isinstance(identity, HeadraceError)
        write(client, transactions, identity, {("orders", 0): ["open"]})
        committed = {"kafka.isolation.level": "read_committed"}
        up_to_two = committed | {"endingOffsets": '{"orders":{"0":2}}'}
        assert values_of(source(broker)) == ["before", "open"]
        assert values_of(source(broker, **committed)) == ["before"]
        impatient = source(broker, **up_to_two, **{"kafka.default.api.timeout.ms": "300"})
        with pytest.raises(HeadraceError, match=r"cannot be read up to 2.*transaction"):
            values_of(impatient)
        transactions.end([identity], commit=True)
        assert values_of(source(broker, **up_to_two)) == ["before", "open"]


HEADERS_KIND = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


@pytest.mark.parametrize(
    ("schema", "first"),
    [
        (StructType().add("value", BinaryType()), {"value": b"1-0"}),
        (StructType().add("topic", StringType()).add("partition", IntegerType()), {"topic": "orders", "partition": 1}),
        (StructType().add("offset", LongType()).add("key", BinaryType()), {"offset": 0, "key": None}),
        (
            StructType().add("timestampType", IntegerType()).add("headers", HEADERS_KIND),
            {"timestampType": 0, "headers": None},
        ),
    ],
)
def test_a_schema_names_the_columns_that_are_read(
    orders: EmbeddedBroker, schema: StructType, first: dict[str, Any]
) -> None:
    reader = source(orders, includeHeaders="true", startingOffsets=offsets(5, 0)).reader(schema)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {tuple(batch.schema.names) for batch in batches} == {tuple(schema.names)}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert (len(rows), rows[0]) == (5, first)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("value", StringType()), r"value \(string\) is no column of a topic"),
        (StructType().add("value", BinaryType()).add("user", StringType()), r"user \(string\) is no column"),
        (StructType().add("headers", HEADERS_KIND), "headers"),
        (StructType().add("Value", BinaryType()), r"Value \(binary\)"),
        (StructType().add("value", BinaryType()).add("value", BinaryType()), "or is there twice"),
        (StructType(), "it has no columns"),
    ],
)
def test_a_schema_with_other_columns_is_refused(schema: StructType, message: str) -> None:
    made = PushdownDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"})
    for make in (made.reader, made.streamReader):
        with pytest.raises(ConfigError, match=message):
            make(schema)


@pytest.mark.spark
def test_spark_reads_the_columns_of_its_kafka_source(spark: SparkSession, orders: EmbeddedBroker) -> None:
    headrace.spark.register(spark)
    frame = read(spark, orders, subscribe="orders", includeHeaders="true")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = sorted(frame.collect(), key=lambda row: (row["partition"], row["offset"]))
    assert len(rows) == 10
    first = rows[6].asDict()
    assert int(first.pop("timestamp").timestamp()) == 2
    assert first == {
        "key": b"a",
        "value": b"1-1",
        "topic": "orders",
        "partition": 1,
        "offset": 1,
        "timestampType": 0,
        "headers": None,
    }
    assert rows[0]["key"] is None
    assert [(header["key"], header["value"]) for header in rows[9]["headers"]] == [("h", b"x")]
    # Filters on timestamps and partitions are pushed down, and evaluated by Spark once more.
    late = read(spark, orders, subscribe="orders").where("partition = 1 AND timestamp > timestamp_millis(3500)")
    assert [row["offset"] for row in late.collect()] == [3, 4]
    # A schema chooses columns.
    options = {"kafka.bootstrap.servers": orders.bootstrap_servers, "subscribe": "orders"}
    some = spark.read.format("headrace").schema("partition int, value binary").options(**options).load()
    assert sorted(map(tuple, some.where("partition = 1").limit(9).collect())) == [
        (1, b"1-%d" % number) for number in range(5)
    ]


@pytest.mark.spark
def test_spark_reports_a_refusal_at_the_users_line(spark: SparkSession, orders: EmbeddedBroker) -> None:
    headrace.spark.register(spark)
    activate(spark)  # a write looks its format up in the active session, and other tests leave sessions of their own
    with pytest.raises(AnalysisException, match="Did you mean startingOffsets"):
        read(spark, orders, subscribe="orders", startingOffset="earliest")
    with pytest.raises(AnalysisException, match=r"kafka\.bootstrap\.servers is missing"):
        spark.range(1).selectExpr("cast('x' as binary) AS value").write.format("headrace").mode("append").save()


@pytest.mark.spark
def test_the_program_of_the_page_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    assert "EWR" in capsys.readouterr().out
