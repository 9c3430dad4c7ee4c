"""Exactly once in one process: what readers of committed records see after things went wrong, and what may change."""

import json
import logging
import threading

import pytest
from tests.harness.values import instance_of
from tests.longer import longer

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.errors import CannotConnect
from headrace.spark.runtime import task_opener
from headrace.spark.topology.nodes import DeadLetter

pytestmark = pytest.mark.spark


def values(broker, topic):
    return [json.loads(record.value) for record in broker.records(topic)]


def each_by_number(app, topic="each"):
    """One row per flight, so that a repeat is seen as such."""
    from pyspark.sql import functions as F

    rows = app.stream("flights", schema="origin string, n bigint")
    rows.groupBy("n").agg(F.count("*").alias("times")).to_topic(topic, partitions=2)
    return app


def assert_each_once(broker, numbers, topic="each"):
    rows = values(broker, topic)
    assert sorted(row["n"] for row in rows) == sorted(numbers)
    assert {row["times"] for row in rows} == {1}


def test_a_cancelled_job_leaves_nothing_behind(broker, make_app, running, flights):
    app = make_app("slow")
    flights.count_slowly(app)
    started = running(app)
    started.wait_until("running", timeout=60)
    [runner] = started._runtime.runners.values()
    for start in range(0, 600, 200):
        flights.send_keyed(broker, range(start, start + 200))
        started._wait(lambda: runner.batch_since is not None, None, "in a batch")
        runner.cancel()
        started.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(600))
    totals = [row["flights"] for row in values(broker, "by-origin")]
    assert len(totals) <= 3 * len(started.recentProgress), "one row per key and committed batch"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_end_of_transaction_is_resolved_by_the_offsets(broker, make_app, running, flights, monkeypatch, when):
    """The offsets tell how it went: the batch is taken as committed, or it runs again."""
    end = Transactions.end
    lost = threading.Event()

    def deaf(self, identities, *, commit, timeout_ms=None):
        identities = list(identities)
        if not commit or not self.renews_identities or lost.is_set():
            return end(self, identities, commit=commit, timeout_ms=timeout_ms)
        lost.set()
        if when == "after":
            end(self, identities, commit=commit)
        error = CannotConnect("broker-unreachable", "nobody answered", "a test")
        return {identity.transactional_id: error for identity in identities}

    monkeypatch.setattr(Transactions, "end", deaf)
    flights.send(broker, range(200))
    app = running(each_by_number(make_app("each")))
    app.wait_until("caught-up", timeout=60)
    assert lost.is_set()
    flights.send(broker, range(200, 400))
    app.wait_until("caught-up", timeout=60)
    assert_each_once(broker, range(400))


def test_the_guarantee_can_change_and_state_is_kept(broker, make_app, running, flights):
    """In one state directory, there and back; every turn goes on with what the one before left."""
    sent = 0
    for guarantee in ("at_least_once", "exactly_once_v2", "at_least_once", "exactly_once_v2"):
        flights.send(broker, range(sent, sent + 100))
        sent += 100
        with each_by_number(make_app("each", processing_guarantee=guarantee)).start() as app:
            app.wait_until("caught-up", timeout=60)
    assert_each_once(broker, range(sent))
    # and a count that is carried through all of them
    with flights.count_by_origin(make_app("sum", instance="b")).start() as app:
        app.wait_until("caught-up", timeout=60)
    flights.send(broker, range(sent, sent + 50))
    with flights.count_by_origin(make_app("sum", instance="b", processing_guarantee="at_least_once")).start() as app:
        app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(sent + 50))


def test_two_branches_and_dead_letters_share_a_topic_in_one_transaction(broker, make_app, running):
    """Several stages of a slot write the same topic: their sequence numbers go on from one to the other."""
    broker.create_topics({"numbers": 2, "rest": 1})
    texts = ["{broken"] + [json.dumps({"text": str(n)}) for n in range(100)] + ["{broken too"]
    for partition in (0, 1):
        broker.produce("numbers", texts, partition=partition)
    app = make_app("shared")
    rows = app.stream("numbers", schema="text string", on_error=DeadLetter("rest"))
    rows.where("cast(text as int) < 50").selectExpr("concat('low ', text) as text").to_topic("rest")
    rows.where("cast(text as int) >= 50").selectExpr("concat('high ', text) as text").to_topic("rest")
    started = running(app)
    started.wait_until("caught-up", timeout=60)
    found = [record.value for record in broker.records("rest")]
    assert sorted(value for value in found if value.startswith(b"{broken")) == sorted([b"{broken", b"{broken too"] * 2)
    told = sorted(json.loads(value)["text"] for value in found if not value.startswith(b"{broken"))
    assert told == sorted([f"{'low' if n < 50 else 'high'} {n}" for n in range(100)] * 2)


@longer  # `test_batch_runner` has one, and state that goes back with it
def test_an_sql_error_leaves_no_row_of_the_failed_attempt(broker, make_app, running):
    broker.create_topics({"numbers": 2})
    for partition in (0, 1):
        texts = [str(n) for n in range(partition * 100, partition * 100 + 100)]
        texts[50] = "many"
        broker.produce("numbers", [json.dumps({"text": text}) for text in texts], partition=partition)
    app = make_app("casts")
    rows = app.stream("numbers", schema="text string", on_error="skip")
    rows.selectExpr("cast(text as int) AS number").to_topic("out", partitions=1)
    started = running(app)
    started.wait_until("caught-up", timeout=60)
    assert sorted(row["number"] for row in values(broker, "out")) == [n for n in range(200) if n % 100 != 50]


def test_undecided_offsets_of_another_owner_are_waited_for(broker, make_app, running, flights, caplog, monkeypatch):
    """However long: a transaction may be open for minutes when driver and guardian died at once."""
    monkeypatch.setattr(task_opener, "STABLE_WAIT_MS", 100)
    caplog.set_level(logging.WARNING, "headrace.spark")
    flights.send(broker, range(200))
    with NetworkClient(broker.bootstrap_servers) as client:
        of_the_dead = Transactions(client, transaction_timeout_ms=800_000)
        [outcome] = of_the_dead.initialise(["each-dead-flights-0"]).values()
        identity = instance_of(TransactionalIdentity, outcome)
        pending = {("flights", partition): 0 for partition in range(4)}
        told = of_the_dead.commit_offsets("each", {identity: pending}, member_id="", member_epoch=-1)
        assert set(told.values()) == {None}
        app = running(each_by_number(make_app("each")))
        app._wait(lambda: caplog.text.count("UNSTABLE_OFFSET_COMMIT; trying again") > 1, None, "said twice")
        of_the_dead.initialise(["each-dead-flights-0"])
    app.wait_until("caught-up", timeout=60)
    assert_each_once(broker, range(200))


def test_an_older_transaction_version(broker, make_app, running, flights):
    with Admin(broker.bootstrap_servers) as admin:
        admin.update_features({"transaction.version": 1}, upgrade_type="safe_downgrade")
    app = running(each_by_number(make_app("each")))
    for start in range(0, 300, 100):
        flights.send(broker, range(start, start + 100))
        app.wait_until("caught-up", timeout=60)
    assert_each_once(broker, range(300))


def test_a_batch_that_outlives_its_transaction_runs_again_and_is_smaller(broker, make_app, running, flights):
    """The coordinator aborts what takes too long; the same batch again would take as long."""
    import time

    import pandas as pd
    from pyspark.sql import functions as F

    @F.pandas_udf("long")
    def slowly(numbers: pd.Series) -> pd.Series:
        time.sleep(0.03 * len(numbers))
        return numbers

    texts = [json.dumps(flights.flight(number)) for number in range(120)]
    broker.create_topics({"rest": 1})
    broker.produce("flights", [*texts[:60], "{broken", *texts[60:]], partition=0)
    app = make_app("slow", config={"transaction.timeout.ms": 2000})
    rows = app.stream("flights", schema="origin string, n bigint", on_error=DeadLetter("rest"))
    # written before it is slow: the transaction is open by then
    rows.select("origin", "n").to_topic("early", partitions=1)
    rows.withColumn("n", slowly("n")).select("origin", "n").to_topic("late", partitions=1)
    started = running(app)
    started.wait_until("caught-up", timeout=120)
    for topic in ("early", "late"):
        assert sorted(row["n"] for row in values(broker, topic)) == list(range(120))
    assert [record.value for record in broker.records("rest")] == [b"{broken"], "buried with its batch, once"
    [runner] = started._runtime.runners.values()
    assert runner.progress.records == 121
    assert max(row["numInputRows"] for row in started.recentProgress) < 121, (
        "the first attempt was all of them, and its transaction was over before it was"
    )


@longer
def test_an_identity_that_was_taken_away_is_replaced(broker, make_app, running, flights):
    """The guardian knows the ids; what it would do at the death of the driver is done here while that lives."""
    app = running(flights.count_by_origin(make_app("sum")))
    flights.send(broker, range(100))
    app.wait_until("caught-up", timeout=60)
    link = app._runtime._link
    assert link._ending_ids
    with NetworkClient(broker.bootstrap_servers) as client:
        known = Transactions(client, transaction_timeout_ms=10_000).initialise(link._ending_ids[:1])
    [identity] = known.values()
    assert instance_of(TransactionalIdentity, identity).producer_id >= 0
    # what now runs with the older identity is shut out, and the application finds its way back
    flights.send(broker, range(100, 200))
    app.wait_until("caught-up", timeout=60)
    assert flights.newest(broker, "by-origin") == flights.counted(range(200))
