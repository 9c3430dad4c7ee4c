"""The sink against a broker: records of rows, commits of runs that die at any request, and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType
from tests.harness.polling import wait_until
from tests.spark.data_source.sink_queries import Crash, Query, open_ids, options_of, rows

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, ConfigError, Fenced, HeadraceError, RecordError, SinkError
from headrace.spark.data_source.commit_record import group_of
from headrace.spark.data_source.commit_steps import Batch, abort_batch, commit_batch, commit_once
from headrace.spark.data_source.row_writer import write_task
from headrace.spark.data_source.sink_options import OPTIONS, SinkOptions, check_columns
from headrace.spark.data_source.sink_transactions import SinkTransactions, open_transactions, read_record
from headrace.spark.data_source.source import HeadraceDataSource

QUERY = "4d2c17a3-89ab-4ac1-84ae-cc61aaac406e"


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"orders": 4}) as broker:
        yield broker


def query_on(broker: EmbeddedBroker, run: str, **options: str) -> Query:
    return Query(broker.bootstrap_servers, run, query_id=QUERY, **options)


def read(broker: EmbeddedBroker, topic: str = "orders") -> list[str]:
    return sorted(each.value.decode() for each in broker.records(topic) if each.value is not None)


def ids_open_on(broker: EmbeddedBroker) -> list[str]:
    return open_ids(broker.bootstrap_servers, QUERY)


def test_rows_are_visible_when_the_batch_is_committed(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1")
    reports = query.write(0, ["a", "b"], [], ["c"])
    assert [each.records for each in reports] == [2, 0, 1]
    assert read(running) == []
    query.commit(0, reports)
    assert read(running) == ["a", "b", "c"]
    query.commit(1, query.write(1, ["d"]))
    assert read(running) == ["a", "b", "c", "d"]
    with NetworkClient(running.bootstrap_servers) as client:
        found = read_record(client, QUERY, "orders")
    assert found is not None
    where, record = found
    assert (where, record.batch_id, record.run_id, record.incarnation) == (("orders", 0), 1, "run1", 0)


def test_a_batch_without_rows_leaves_no_trace_except_the_first(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1")
    query.commit(0, query.write(0, [], []))
    query.commit(1, query.write(1, []))
    # Without the record of batch 0, batch 2 could not be told from one whose record has expired.
    query.commit(2, query.write(2, ["a"]))
    assert read(running) == ["a"]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("effects", range(1, 8))
def test_a_driver_that_died_at_any_request_commits_each_row_once(
    running: EmbeddedBroker, effects: int, applied: bool
) -> None:
    first = query_on(running, "run1")
    first.commit(0, first.write(0, ["a"], ["b"]))
    with pytest.raises(Crash):
        first.commit(1, first.write(1, ["c"], ["d"]), effects=effects, applied=applied)
    second = query_on(running, "run2")
    # The second run has the same rows, in other tasks.
    second.commit(1, second.write(1, ["d"], [], ["c"]))
    assert read(running) == ["a", "b", "c", "d"]
    third = query_on(running, "run3")
    third.commit(2, third.write(2, ["e"]))
    assert read(running) == ["a", "b", "c", "d", "e"]
    assert ids_open_on(running) == []


def test_transactions_of_failed_attempts_and_runs_are_aborted(running: EmbeddedBroker) -> None:
    dead = query_on(running, "run1")
    dead.write(0, ["a"], ["b"])
    query = query_on(running, "run2")
    query.write(0, ["a"])
    reports = query.write(0, ["a"], attempt=1) + query.write(0, [], ["b"])[1:]
    assert len(ids_open_on(running)) == 5
    query.commit(0, reports)
    assert ids_open_on(running) == []
    assert read(running) == ["a", "b"]


def test_a_failed_batch_is_aborted_and_a_decided_one_is_not(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1")
    reports = query.write(0, ["a"], ["b"])
    query.abort(0, reports[:1])
    assert ids_open_on(running) == []
    reports = query.write(0, ["a"], ["b"])
    with pytest.raises(Crash):
        query.commit(0, reports, effects=5, applied=True)  # the record is written
    query.abort(0, reports)
    assert len(ids_open_on(running)) == 2
    again = query_on(running, "run2")
    again.commit(0, again.write(0, ["a"], ["b"]))
    assert read(running) == ["a", "b"]


def test_a_run_that_was_overtaken_is_refused(running: EmbeddedBroker) -> None:
    slow, fast = query_on(running, "slow"), query_on(running, "fast")
    late = slow.write(0, ["a"])
    fast.commit(0, fast.write(0, ["a"]))
    with pytest.raises(Fenced, match="another run has decided") as caught:
        slow.commit(0, late)
    assert caught.value.code == "query-replaced"
    slow.abort(0, late)
    fast.commit(1, fast.write(1, ["b"]))
    with pytest.raises(Fenced, match="batch 1 is committed already"):
        slow.write(0, ["a"])
    assert read(running) == ["a", "b"]


def test_a_lock_that_was_taken_writes_no_record(running: EmbeddedBroker) -> None:
    class Overtaken(SinkTransactions):
        def _take_lock(self) -> None:
            super()._take_lock()
            with pytest.raises(Crash):
                other.commit(0, reports_of_other, effects=5, applied=True)  # the record is written

    query, other = query_on(running, "run1"), query_on(running, "run2")
    reports, reports_of_other = query.write(0, ["a"]), other.write(0, ["other"])

    class Late(Overtaken):
        def _read_record(self) -> Any:
            return None  # as it was before the other run decided

    with NetworkClient(running.bootstrap_servers) as client:
        cluster = Late(client, query.options, query.batch(0), ["orders"])
        with pytest.raises(Fenced, match="another run"):
            cluster.run(commit_batch(query.batch(0), reports))
    last = query_on(running, "run3")
    last.commit(0, last.write(0, ["last"]))
    assert read(running) == ["other"]


def test_a_decided_batch_whose_transactions_timed_out_is_written_again(running: EmbeddedBroker) -> None:
    quick = {"kafka.transaction.timeout.ms": "1000"}
    query = query_on(running, "run1", **quick)
    with pytest.raises(Crash):
        query.commit(0, query.write(0, ["a"], ["b"]), effects=5, applied=True)
    wait_until(lambda: not ids_open_on(running), "the time-out", timeout_s=30)
    second = query_on(running, "run2", **quick)
    with pytest.raises(SinkError, match="No row of it is in the topic") as caught:
        second.commit(0, second.write(0, ["a"], ["b"]))
    assert caught.value.code == "sink-failed"
    third = query_on(running, "run3", **quick)
    third.commit(0, third.write(0, ["a"], ["b"]))
    assert read(running) == ["a", "b"]


def test_a_batch_that_timed_out_in_part_is_refused_until_it_is_named(running: EmbeddedBroker) -> None:
    class Half(SinkTransactions):
        def _commit(self, ids: Any) -> Any:
            super()._commit(dict(list(ids.items())[:1]))
            raise Crash

    quick = {"kafka.transaction.timeout.ms": "1000"}
    query = query_on(running, "run1", **quick)
    reports = query.write(0, ["a"], ["b"])
    with NetworkClient(running.bootstrap_servers) as client, pytest.raises(Crash):
        Half(client, query.options, query.batch(0), ["orders"]).run(commit_batch(query.batch(0), reports))
    wait_until(lambda: not ids_open_on(running), "the time-out", timeout_s=30)
    for run in ("run2", "run3"):
        again = query_on(running, run, **quick)
        with pytest.raises(SinkError, match="1 of 2 transactions") as caught:
            again.commit(0, again.write(0, ["a"], ["b"]))
        assert caught.value.code == "batch-undecided"
        assert 'rewriteBatchId", "0"' in caught.value.fix
    for run in ("run4", "run5"):  # the second one skips what the first has written
        named = query_on(running, run, rewriteBatchId="0", **quick)
        named.commit(0, named.write(0, ["a"], ["b"]))
    assert read(running) == ["a", "a", "b"]


def test_a_batch_that_took_too_long_is_refused_before_anything_is_committed(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1", **{"kafka.transaction.timeout.ms": "1000"})
    reports = query.write(0, ["a"], ["b"])
    wait_until(lambda: not ids_open_on(running), "the time-out", timeout_s=30)
    with pytest.raises(SinkError, match=r"task 0, 1 are not open any more") as caught:
        query.commit(0, reports)
    assert "kafka.transaction.timeout.ms" in caught.value.fix
    query.commit(0, query.write(0, ["a"], ["b"]))
    assert read(running) == ["a", "b"]


def test_a_lost_answer_to_an_end_is_asked_for_again(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1")
    reports = query.write(0, ["a"], ["b"])
    with running.faults.disconnect("EndTxn", handled=True, times=2) as lost:
        query.commit(0, reports)
    assert lost.hits == 2
    assert read(running) == ["a", "b"]


def test_a_record_that_expired_is_refused_until_the_batch_is_named(running: EmbeddedBroker) -> None:
    query = query_on(running, "run1")
    query.commit(0, query.write(0, ["a"]))
    with Admin(running.bootstrap_servers) as admin:
        admin.delete_groups([group_of(QUERY)])
    with pytest.raises(SinkError, match=r"offsets\.retention\.minutes"):
        query.write(1, ["b"])
    named = query_on(running, "run2", rewriteBatchId="1")
    named.commit(1, named.write(1, ["b"]))
    assert read(running) == ["a", "b"]


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


def test_a_batch_query_is_committed_as_a_whole(running: EmbeddedBroker) -> None:
    options = options_of(running.bootstrap_servers)
    batch = Batch(query_id="w", run_id="w", batch_id=0, is_recorded=False)
    reports = [write_task(rows(value), options, batch, task=at, attempt=0) for at, value in enumerate("ab")]
    assert read(running) == []
    with NetworkClient(running.bootstrap_servers) as client:
        SinkTransactions(client, options, batch, ["orders"]).run(commit_once(batch, reports))
        assert read(running) == ["a", "b"]
        more = [write_task(rows("c"), options, batch, task=0, attempt=0)]
        SinkTransactions(client, options, batch, ["orders"]).run(abort_batch(batch, more))
        assert open_transactions(client, "headrace-w-") == []
    assert read(running) == ["a", "b"]


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
