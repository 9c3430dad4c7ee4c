"""Options and columns of the sink, and their refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.data_source.sink_options import OPTIONS, SinkOptions, check_columns
from headrace.spark.data_source.source import HeadraceDataSource


def test_every_option_is_read_or_refused() -> None:
    base = {"kafka.bootstrap.servers": "broker:9092"}
    found = SinkOptions.parse(
        base
        | {
            "TOPIC": "orders",
            "kafka.compression.type": "zstd",
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.max.request.size": "2000000",
            "checkpointlocation": "/tmp/x",
            "queryName": "q",
            "rewriteBatchId": "0",
        }
    )
    assert (found.topic, found.compression, found.max_request_bytes) == ("orders", "zstd", 2_000_000)
    assert (found.transaction_timeout_ms, found.rewrite_batch_id, found.atomic) == (900_000, 0, True)
    assert "kafka.transaction.timeout.ms" in OPTIONS
    for name, value, message in (
        ("kafka.acks", "1", "Invalid kafka.acks '1'"),
        ("kafka.enable.idempotence", "false", "Invalid kafka.enable.idempotence"),
        ("kafka.transactional.id", "x", "derived from the id of the query"),
        ("kafka.linger.ms", "5", "The option kafka.linger.ms is not supported"),
        ("path", "orders", "a topic has no path"),
        ("topik", "orders", 'Unknown option "topik"'),
        ("topic", " ", "Invalid topic"),
        ("rewriteBatchId", "-1", "Invalid rewriteBatchId"),
    ):
        with pytest.raises(ConfigError, match=message):
            SinkOptions.parse(base | {name: value})
    with pytest.raises(ConfigError, match="Unknown option") as caught:
        SinkOptions.parse(base | {"kafka.metrics.recording.level": "x"})
    assert "have no effect here" in caught.value.fix


VALUE = StructType().add("value", "string")


def beside_value(name: str, kind: DataType) -> StructType:
    return StructType([*VALUE.fields, StructField(name, kind)])


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        (StructType().add("key", "string"), "orders", "The column value is missing"),
        (VALUE, "", "neither an option nor a column topic"),
        (StructType().add("value", "integer"), "orders", "Invalid column value: expected string or binary, got int"),
        (beside_value("key", VALUE), "orders", "Invalid column key"),
        (beside_value("partition", LongType()), "orders", "Invalid column partition: expected int, got bigint"),
        (beside_value("headers", MapType(StringType(), BinaryType())), "orders", "Invalid column headers"),
        (beside_value("timestamp", LongType()), "orders", "Invalid column timestamp"),
        (beside_value("user", StringType()), "orders", "The column user has no place in a record"),
    ],
)
def test_columns_that_are_no_parts_of_records_are_refused(columns: StructType, topic: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_columns(columns, topic)


def test_the_columns_of_the_source_can_be_written() -> None:
    source = HeadraceDataSource(
        {"kafka.bootstrap.servers": "b:1", "subscribe": "orders", "includeHeaders": "true"}
    ).schema()
    assert isinstance(source, StructType)
    check_columns(source, "")


def test_overwriting_and_options_of_other_queries_are_refused() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "topic": "orders"}
    schema = VALUE
    for make in (HeadraceDataSource(given).writer, HeadraceDataSource(given).streamWriter):
        made: Callable[..., Any] = make
        with pytest.raises(HeadraceError, match="cannot be overwritten"):
            made(schema, True)
        made(schema, False)
    with pytest.raises(ConfigError, match="rewriteBatchId has no meaning in a batch query"):
        HeadraceDataSource(given | {"rewriteBatchId": "1"}).writer(schema, False)
    with pytest.raises(ConfigError, match="atomic has no meaning in a streaming query"):
        HeadraceDataSource(given | {"atomic": "true"}).streamWriter(schema, False)
