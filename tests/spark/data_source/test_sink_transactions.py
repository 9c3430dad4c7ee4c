"""Commits against a broker, by runs that die at any request, are overtaken, or are too late."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.spark.data_source.sink_queries import (
    QUERY,
    Crash,
    ids_open_on,
    options_of,
    query_on,
    read,
    rows,
)

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.errors import Fenced, SinkError
from headrace.spark.data_source.commit_record import group_of
from headrace.spark.data_source.commit_steps import Batch, abort_batch, commit_batch, commit_once
from headrace.spark.data_source.row_writer import write_task
from headrace.spark.data_source.sink_transactions import SinkTransactions, open_transactions, read_record


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
