"""Queries that write by `format("headrace")`: a stream and batches in one session, and kills of the driver."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.harness.polling import wait_until
from tests.longer import longer
from tests.spark.runtime.test_clusters import spark_home

import headrace.spark
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient
from headrace.spark.data_source.sink_transactions import open_transactions
from headrace.spark.spark_internals import activate

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "spark-sink.md"

PROGRAM = Path(__file__).with_name("copy_program.py")
# Requests at which the application is killed: before the broker has it, or behind that, without an answer.
KILLS = (
    ("before", "Produce", 0),
    ("behind", "Produce", 0),
    ("before", "TxnOffsetCommit", 0),
    ("behind", "TxnOffsetCommit", 0),
    ("before", "EndTxn", 0),  # of the record
    ("behind", "EndTxn", 0),
    ("before", "EndTxn", 1),  # of the first task
    ("before", "EndTxn", 2),  # of the second task
    ("behind", "EndTxn", 2),  # all are committed, Spark's commit log is not written
    ("before", "ListTransactions", 0),
)


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


def command(broker: EmbeddedBroker, directory: Path, master: str, **more: Any) -> list[str]:
    options = {"servers": broker.bootstrap_servers, "directory": str(directory), "master": master} | more
    return [sys.executable, str(PROGRAM), json.dumps(options)]


@longer
@pytest.mark.spark
@pytest.mark.slow
def test_a_query_that_is_killed_at_any_request_writes_each_row_once(running: EmbeddedBroker, tmp_path: Path) -> None:
    written: list[str] = []
    for moment, api, after in KILLS:
        more = [f"{len(written) + n:04}" for n in range(20)]
        for partition in (0, 1):
            running.produce("orders", more[partition::2], partition=partition)
        written += more
        fault = (
            running.faults.delay(api, 600.0, after=after, times=1)
            if moment == "before"
            else running.faults.drop(api, after=after, times=1)
        )
        with subprocess.Popen(command(running, tmp_path, "local[2]"), start_new_session=True) as driver:
            try:
                wait_until(lambda: fault.hits or driver.poll() is not None, f"{moment} {api}", timeout_s=300)  # noqa: B023
                assert driver.poll() is None, f"{moment} {api} {after}: the application ended"
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
        # A request that waited takes effect although its sender is dead.
        running.faults.clear()
        found = values(running)
        assert len(set(found)) == len(found), f"{moment} {api} {after}"
    subprocess.run(command(running, tmp_path, "local[2]"), check=True, timeout=600)
    assert values(running) == written
    with NetworkClient(running.bootstrap_servers) as client:
        assert open_transactions(client, "headrace-") == []


@longer
@pytest.mark.spark
@pytest.mark.slow
def test_tasks_that_run_again_on_a_cluster_write_each_row_once(running: EmbeddedBroker, tmp_path: Path) -> None:
    expected = [f"{n:04}" for n in range(60)]
    for partition in (0, 1):
        running.produce("orders", expected[partition::2], partition=partition)
    subprocess.run(
        command(running, tmp_path, "local-cluster[2,1,1024]", incidents=["raise", "kill"]),
        env=os.environ | {"SPARK_HOME": str(spark_home(tmp_path))},
        check=True,
        timeout=600,
    )
    assert (tmp_path / "raise").exists()
    assert (tmp_path / "kill").exists()
    assert values(running) == expected
    with NetworkClient(running.bootstrap_servers) as client:
        assert open_transactions(client, "headrace-") == []
