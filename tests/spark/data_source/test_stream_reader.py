"""Streaming queries by `readStream.format("headrace")`: batches, losses, commits to a group, kills of the driver."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from tests.harness.polling import wait_until

import headrace.spark
from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.consumer.consumer import Consumer
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError
from headrace.spark.data_source.source import HeadraceDataSource
from headrace.spark.data_source.stream_reader import TopicsStreamReader

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "how-to" / "spark-streaming-jobs.md"


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"orders": 2}) as broker:
        yield broker


@pytest.fixture
def open_reader(running: EmbeddedBroker) -> Iterator[Callable[..., TopicsStreamReader]]:
    with contextlib.ExitStack() as stack:

        def build(**options: str) -> TopicsStreamReader:
            given = {"kafka.bootstrap.servers": running.bootstrap_servers, "subscribe": "orders"} | options
            made = HeadraceDataSource({name: value for name, value in given.items() if value})
            schema = made.schema()
            assert not isinstance(schema, str)
            reader = made.streamReader(schema)
            assert isinstance(reader, TopicsStreamReader)
            stack.callback(reader.stop)
            return reader

        yield build


def advance(reader: TopicsStreamReader, start: Any = None, limit: ReadLimit | None = None) -> Any:
    """The next offset as Spark sees it: through the text of a checkpoint."""
    start = reader.initialOffset() if start is None else start
    return json.loads(json.dumps(reader.latestOffset(start, limit or reader.getDefaultReadLimit())))


def values(reader: TopicsStreamReader, start: Any, end: Any) -> list[str]:
    tasks = reader.partitions(reader.initialOffset() if start is None else start, end)
    return sorted(v.decode() for task in tasks for b in reader.read(task) for v in b.column("value").to_pylist())


def produce(broker: EmbeddedBroker, *texts: str, partition: int = 0) -> None:
    broker.produce("orders", list(texts), partition=partition)


def test_batches_follow_each_other_without_gaps(running: EmbeddedBroker, open_reader: Any) -> None:
    reader = open_reader(startingOffsets="earliest")
    produce(running, "a", "b")
    first = advance(reader)
    assert advance(reader, first) == first
    produce(running, "c", partition=1)
    second = advance(reader, first)
    assert (values(reader, None, first), values(reader, first, second)) == (["a", "b"], ["c"])
    assert reader.reportLatestOffset()["offsets"] == {"orders": {"0": 2, "1": 1}}


def test_the_default_is_latest_and_the_first_batch_keeps_where_the_query_began(
    running: EmbeddedBroker, open_reader: Any
) -> None:
    produce(running, "old")
    first = advance(open_reader())
    produce(running, "new")
    after_a_crash = open_reader()
    assert values(after_a_crash, None, first) == []
    assert values(after_a_crash, first, advance(after_a_crash, first)) == ["new"]


def test_the_first_batch_runs_again_with_the_same_records(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a", "b", "c")
    options = {"startingOffsets": "committed", "group.id": "billing"}
    with NetworkClient(running.bootstrap_servers) as client:
        commit_offsets(client, "billing", {("orders", 0): 1})
        first = advance(open_reader(**options))
        commit_offsets(client, "billing", {("orders", 0): 3})
    assert values(open_reader(**options), None, first) == ["b", "c"]


def test_a_batch_has_at_most_the_offsets_of_the_option(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, *(f"a{n}" for n in range(6)))
    produce(running, "b", partition=1)
    reader = open_reader(startingOffsets="earliest", maxOffsetsPerTrigger="3")
    ends = [advance(reader)]
    for _ in range(3):
        ends.append(advance(reader, ends[-1]))
    batches = [values(reader, start, end) for start, end in zip([None, *ends], ends, strict=False)]
    assert [len(batch) for batch in batches] == [3, 3, 1, 0]
    assert sorted(text for batch in batches for text in batch) == [*(f"a{n}" for n in range(6)), "b"]
    # Trigger.Once reads everything.
    assert len(values(reader, None, advance(reader, limit=ReadAllAvailable()))) == 7


def test_a_batch_waits_for_the_least_number_of_offsets(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a")
    patient = open_reader(startingOffsets="earliest", minOffsetsPerTrigger="2")
    hasty = open_reader(startingOffsets="earliest", minOffsetsPerTrigger="2", maxTriggerDelay="1ms")
    first, other = advance(patient), advance(hasty)
    produce(running, "b")
    assert advance(patient, first) == first
    time.sleep(0.01)
    assert advance(hasty, other) != other
    produce(running, "c")
    assert values(patient, first, advance(patient, first)) == ["b", "c"]


def test_available_now_ends_where_the_log_ended(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a", "b", "c")
    reader = open_reader(startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    reader.prepareForTriggerAvailableNow()
    produce(running, "too late")
    with Admin(running.bootstrap_servers) as admin:
        admin.create_partitions({"orders": 3})
    produce(running, "too late as well", partition=2)
    first = advance(reader)
    second = advance(reader, first)
    assert values(reader, None, first) + values(reader, first, second) == ["a", "b", "c"]
    assert advance(reader, second) == second
    next_run = open_reader()
    next_run.prepareForTriggerAvailableNow()
    assert values(next_run, second, advance(next_run, second)) == ["too late", "too late as well"]


def test_new_partitions_and_topics_are_read_from_their_beginning(running: EmbeddedBroker, open_reader: Any) -> None:
    reader = open_reader(subscribe="", subscribePattern="orders.*")
    first = advance(reader)
    with Admin(running.bootstrap_servers) as admin:
        admin.create_partitions({"orders": 3})
    running.create_topics({"orders-eu": 1})
    produce(running, "grown", partition=2)
    running.produce("orders-eu", ["new topic"])
    assert values(reader, first, advance(reader, first)) == ["grown", "new topic"]


def test_a_topic_that_was_created_again_fails_the_query(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a", "b")
    first = advance(open_reader(startingOffsets="earliest"))
    running.delete_topics(["orders"])
    running.create_topics({"orders": 2})
    produce(running, "other", "more", "most")
    with pytest.raises(HeadraceError, match="deleted and created again") as caught:
        advance(open_reader(), first)
    assert "failOnDataLoss" in caught.value.fix
    lenient = open_reader(failOnDataLoss="false")
    assert values(lenient, first, advance(lenient, first)) == ["more", "most", "other"]


def test_records_that_retention_deleted_fail_the_query(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a")
    first = advance(open_reader(startingOffsets="earliest"))
    produce(running, "b", "c")
    with Admin(running.bootstrap_servers) as admin:
        admin.delete_records({("orders", 0): 2})
    with pytest.raises(HeadraceError, match="Records may have been lost"):
        advance(open_reader(), first)
    lenient = open_reader(failOnDataLoss="false")
    assert values(lenient, first, advance(lenient, first)) == ["c"]
    running.delete_topics(["orders"])
    gone = advance(lenient, first)
    assert gone["offsets"] == {}
    assert advance(lenient, gone) == gone


def test_finished_batches_are_committed_to_the_group(running: EmbeddedBroker, open_reader: Any) -> None:
    produce(running, "a", "b")
    reader = open_reader(startingOffsets="earliest", **{"group.id": "billing"})
    partitions = [("orders", 0), ("orders", 1)]
    with NetworkClient(running.bootstrap_servers) as client:
        first = advance(reader)
        assert fetch_offsets(client, "billing", partitions) == dict.fromkeys(partitions, -1)
        # The next batch is planned when the first has finished, and there may be none.
        assert advance(reader, first) == first
        assert fetch_offsets(client, "billing", partitions) == {("orders", 0): 2, ("orders", 1): 0}
        produce(running, "c", partition=1)
        advance(reader, advance(reader, first))
        assert fetch_offsets(client, "billing", partitions) == {("orders", 0): 2, ("orders", 1): 1}


def test_a_group_with_members_is_refused(running: EmbeddedBroker, open_reader: Any) -> None:
    with Consumer("orders", bootstrap_servers=running.bootstrap_servers, group_id="billing") as consumer:
        wait_until(lambda: (consumer.poll(0.1), consumer.assignment())[1])
        reader = open_reader(startingOffsets="earliest", **{"group.id": "billing"})
        with pytest.raises(HeadraceError, match="the group has members"):
            advance(reader, advance(reader))


def test_options_of_batch_queries_are_refused(open_reader: Any) -> None:
    with pytest.raises(HeadraceError, match="endingOffsets has no meaning in a streaming query"):
        open_reader(endingOffsets="latest")


PROGRAM = """
import os, sys, time
import headrace.spark
from headrace.spark.spark_session import session

servers, directory, hold = sys.argv[1:]
spark = session("killed", master="local[2]")
headrace.spark.register(spark)

def slow(batches):
    for batch in batches:
        if os.path.exists(hold) and max(batch.column("offset").to_pylist()) >= int(open(hold).read()):
            open(hold + ".reached", "w").close()
            time.sleep(600)
        yield batch

rows = (
    spark.readStream.format("headrace").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
    .option("startingOffsets", "committed").option("group.id", "billing").option("maxOffsetsPerTrigger", "40").load()
)
rows.select("partition", "offset", "value").mapInArrow(slow, "partition int, offset long, value binary") \\
    .writeStream.format("parquet").option("path", directory + "/out") \\
    .option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_killed_driver_reads_every_record_exactly_once(running: EmbeddedBroker, tmp_path: Path) -> None:
    hold, program = tmp_path / "hold", tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), running.bootstrap_servers, str(tmp_path), str(hold)]
    expected = [f"{n:03}" for n in range(120)]
    produce(running, *expected[:100])
    produce(running, *expected[100:], partition=1)
    # Killed in the first batch, then in the second, then not at all.
    for first_offset in (0, 50):
        hold.write_text(f"{first_offset}")
        with subprocess.Popen(command, start_new_session=True) as driver:
            try:
                reached = Path(f"{hold}.reached")
                wait_until(lambda: reached.exists() or driver.poll() is not None, "a batch", timeout_s=300)  # noqa: B023
                assert driver.poll() is None
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
        reached.unlink()
        # A source that looked for its start again would begin behind the records of the killed batch.
        with NetworkClient(running.bootstrap_servers) as client:
            commit_offsets(client, "billing", {("orders", 0): 90})
    hold.unlink()
    subprocess.run(command, check=True, timeout=600)
    # Spark's file sink lists in its log the files that count.
    entries = [
        json.loads(line)
        for log in (tmp_path / "out" / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()[1:]
    ]
    files = {entry["path"].removeprefix("file://") for entry in entries}
    found = [value.decode() for file in files for value in pq.read_table(file).column("value").to_pylist()]
    assert sorted(found) == sorted(expected)


@pytest.mark.spark
def test_spark_runs_a_query_and_its_group_shows_no_lag(
    spark: SparkSession, running: EmbeddedBroker, tmp_path: Path
) -> None:
    headrace.spark.register(spark)
    produce(running, *(f"{n}" for n in range(7)))

    def run() -> int:
        rows = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", running.bootstrap_servers)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "3")
            .option("group.id", "billing")
            .schema("value binary, offset bigint")
            .load()
        )
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.read.parquet(str(tmp_path / "out")).count()

    assert run() == 7
    with NetworkClient(running.bootstrap_servers) as client:
        assert fetch_offsets(client, "billing", [("orders", 0)]) == {("orders", 0): 7}
    produce(running, "8", "9", partition=1)
    assert run() == 9
    running.delete_topics(["orders"])
    running.create_topics({"orders": 2})
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run()


@pytest.mark.spark
def test_the_program_of_the_page_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(program, str(PAGE), "exec"), {"__name__": "__main__"})
    assert "EWR" in capsys.readouterr().out
