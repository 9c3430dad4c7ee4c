"""Queries that write by `format("headrace")`: a stream and batches in one session, and kills of the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.spark.data_source.sink_transactions import open_transactions
from headrace.spark.spark_internals import activate

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "spark-sink.md"


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"orders": 2, "copies": 3}) as broker:
        yield broker


def values(broker: EmbeddedBroker, topic: str = "copies") -> list[str]:
    return sorted(each.value.decode() for each in broker.records(topic) if each.value is not None)


@pytest.mark.spark
def test_spark_writes_streams_and_batches(spark: SparkSession, running: EmbeddedBroker, tmp_path: Path) -> None:
    headrace.spark.register(spark)
    activate(spark)  # a write looks its format up in the active session, and other tests leave sessions of their own
    servers = running.bootstrap_servers
    expected = [f"{n:02}" for n in range(9)]
    running.produce("orders", expected)

    def start(rows: DataFrame) -> None:
        given = {"kafka.bootstrap.servers": servers, "topic": "copies"}
        writer = rows.writeStream.format("headrace").options(**given).queryName("copy")
        query = writer.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True).start()
        query.awaitTermination()

    orders = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "4")
        .load()
    )
    # 1. Three batches. The columns of the source are those of the sink.
    start(orders.drop("partition", "topic"))
    assert values(running) == expected
    # 2. Spark's commit log is lost, as in a crash behind the commit: the batch runs again and is not written again.
    last = max((tmp_path / "copy" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    start(orders.select("value"))
    assert values(running) == expected
    # 3. A batch of one partition is one transaction; of several, only if it is allowed to be more.
    frame = spark.createDataFrame([("k", f"b{n}") for n in range(4)], "key string, value string")
    writer = frame.repartition(2).write.format("headrace").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", "orders")
    with pytest.raises(PySparkException, match="more than one partition"):
        writer.save()
    assert values(running, "orders") == expected
    writer.option("atomic", "false").save()
    assert values(running, "orders") == sorted([*expected, "b0", "b1", "b2", "b3"])
    with NetworkClient(servers) as client:
        assert open_transactions(client, "headrace-") == []


@pytest.mark.spark
def test_the_program_of_the_page_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    activate(spark)
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "JFK" in printed
    assert "EWR" not in printed
