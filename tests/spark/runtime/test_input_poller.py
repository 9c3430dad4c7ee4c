"""What ends the wait between two micro-batches: committed records, a word, a broker that is gone. Our broker.

A Fetch stands for a minute here, so that only what is meant to end a wait can end it in time.
"""

import threading
from contextlib import contextmanager

import pyarrow as pa
import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.values import instance_of

from headrace.client.network_client import NetworkClient
from headrace.client.producer import Producer
from headrace.client.selector import wait_for
from headrace.client.sender import TransactionalIdentity
from headrace.client.transactions import Transactions
from headrace.spark.runtime import input_poller
from headrace.spark.runtime.input_poller import InputPoller

MINUTE_MS = 60_000
ENDS_S, LASTS_S = 20.0, 0.3
FIRST, SECOND = ("in", 0), ("in", 1)


@pytest.fixture(autouse=True)
def _long_standing(monkeypatch):
    monkeypatch.setattr(input_poller, "FETCH_WAIT_MS", MINUTE_MS)


broker = broker_fixture({"in": 2})


@pytest.fixture
def watch(broker):
    made = InputPoller(NetworkClient(broker.bootstrap_servers))
    yield made
    made.close()


@contextmanager
def waiting(watch, *positions):
    """The wait in a thread of its own: the event that it sets when it ends. It has to have ended at the end."""
    ended = threading.Event()

    def wait():
        watch.wait(positions)
        ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield ended
    assert ended.wait(ENDS_S), "it waits for ever"
    thread.join()


def test_a_record_ends_the_wait(broker, watch):
    with waiting(watch, {FIRST: 0}, {SECOND: 0}) as ended:
        assert not ended.wait(LASTS_S), "there is nothing"
        broker.produce("in", ["one"], partition=1)


def test_existing_records_end_the_wait_at_once(broker, watch):
    broker.produce("in", ["one"], partition=0)
    with waiting(watch, {FIRST: 0, SECOND: 0}):
        pass
    with waiting(watch, {FIRST: 1, SECOND: 0}) as ended:
        assert not ended.wait(LASTS_S), "that one was taken"
        broker.produce("in", ["two"], partition=0)


def test_a_transaction_counts_when_it_is_committed(broker, watch):
    with NetworkClient(broker.bootstrap_servers) as client:
        transactions = Transactions(client, transaction_timeout_ms=MINUTE_MS)
        identity = instance_of(TransactionalIdentity, transactions.initialise(["t"])["t"])
        with waiting(watch, {FIRST: 0}) as ended:
            writer = Producer(client, identity=identity)
            writer.send("in", 0, None, pa.array([b"one"]))
            writer.flush()
            assert not ended.wait(LASTS_S), "it is open"
            transactions.end([identity], commit=True)


def test_wake_ends_the_wait_and_is_kept_for_the_next_one(watch):
    with waiting(watch, {FIRST: 0}) as ended:
        assert not ended.wait(LASTS_S)
        watch.wake()
    watch.wake()
    with waiting(watch, {FIRST: 0}):
        pass
    with waiting(watch) as ended:  # no tasks
        assert not ended.wait(LASTS_S)
        watch.wake()


def test_other_places_are_asked_for_while_the_old_ones_stand(broker, watch):
    with waiting(watch, {FIRST: 0}):
        watch.wake()
    with waiting(watch, {SECOND: 0}) as ended:
        broker.produce("in", ["not mine any more"], partition=0)
        assert not ended.wait(LASTS_S)
        broker.produce("in", ["mine"], partition=1)


def test_records_that_stay_untaken_end_the_wait_only_after_a_pause(broker, watch, monkeypatch):
    """A task may stand before a record that nobody takes: that must not become a loop without rest."""
    pauses = []

    def counted_wait(*given):
        pauses.append(given[-1])
        return wait_for(*given)

    monkeypatch.setattr(input_poller, "wait_for", counted_wait)

    broker.produce("in", ["one"], partition=0)
    for _ in range(6):
        with waiting(watch, {FIRST: 0}):
            pass
    assert pauses.count(input_poller.POLL_S) == 3, "every other time"


def test_positions_beyond_the_log_do_not_spin(broker, watch):
    """Behind the end of the log, as after a loss; the broker refuses, and whoever looks at the ends will tell."""
    broker.produce("in", ["one"], partition=0)
    for _ in range(4):
        with waiting(watch, {FIRST: 100}):
            pass


def test_a_broker_that_goes_and_comes_back(broker, watch):
    with waiting(watch, {FIRST: 0}) as ended:
        assert not ended.wait(LASTS_S)
        broker.kill()
    with waiting(watch, {FIRST: 0}):
        watch.wake()
    broker.restart()
    broker.produce("in", ["one"], partition=0)
    for _ in range(2):
        with waiting(watch, {FIRST: 0}):
            pass


def test_the_end_of_the_application_ends_it(watch):
    with waiting(watch, {FIRST: 0}) as ended:
        assert not ended.wait(LASTS_S)
        watch.end()
