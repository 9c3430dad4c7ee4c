"""Commits of `writeStream.format("headrace")` on Apache Kafka: runs that die at any request, time-outs, leftovers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker
from tests.spark.data_source.sink_queries import Crash, Query, open_ids, read_committed

from headrace.client.admin import Admin
from headrace.errors import BrokerError, Fenced, SinkError

pytestmark = [pytest.mark.interop, pytest.mark.slow]


class Sink:
    """A topic of its own on a shared cluster, and a query that writes to it."""

    def __init__(self, servers: str) -> None:
        self.servers, self.query_id, self.topic = servers, str(uuid.uuid4()), f"sink-{uuid.uuid4().hex[:8]}"

    def start(self, run: str, **options: str) -> Query:
        return Query(self.servers, run, query_id=self.query_id, **({"topic": self.topic} | options))

    def read(self) -> list[str]:
        return read_committed(self.servers, self.topic)

    def open_ids(self) -> list[str]:
        return open_ids(self.servers, self.query_id)


@pytest.fixture
def sink(kafka: KafkaBroker) -> Iterator[Sink]:
    made = Sink(kafka.bootstrap_servers)
    with Admin(kafka.bootstrap_servers) as admin:
        admin.create_topics({made.topic: 4})
        yield made
        admin.delete_topics([made.topic])


def test_a_driver_that_died_at_any_request_commits_each_row_once(sink: Sink) -> None:
    query = sink.start("run0")
    query.commit(0, query.write(0, ["0"]))
    expected = ["0"]
    for effects in range(1, 8):
        for applied in (False, True):
            number = len(expected) // 2 + 1
            rows = [f"{number}a", f"{number}b"]
            dead, later = sink.start(f"dead{number}"), sink.start(f"later{number}")
            with pytest.raises(Crash):
                dead.commit(number, dead.write(number, rows[:1], rows[1:]), effects=effects, applied=applied)
            later.commit(number, later.write(number, rows))
            expected += rows
            assert sink.read() == sorted(expected), (effects, applied)
    last = sink.start("last")
    last.commit(len(expected), last.write(len(expected), ["z"]))
    assert sink.open_ids() == []


def test_leftovers_are_aborted_and_runs_overtake_each_other(sink: Sink) -> None:
    dead, slow, fast = sink.start("dead"), sink.start("slow"), sink.start("fast")
    dead.write(0, ["a"], ["b"])
    late = slow.write(0, ["a"])
    fast.write(0, ["a"])
    assert len(sink.open_ids()) == 4
    fast.commit(0, fast.write(0, ["a"], attempt=1))
    assert sink.open_ids() == []
    with pytest.raises(Fenced, match="another run has decided"):
        slow.commit(0, late)
    slow.abort(0, late)
    assert sink.read() == ["a"]


def test_time_outs_end_in_whole_batches_or_in_a_refusal(sink: Sink) -> None:
    quick = {"kafka.transaction.timeout.ms": "1000"}
    first = sink.start("run1", **quick)
    # Kafka looks for overdue transactions every ten seconds.
    reports = first.write(0, ["a"], ["b"])
    other = Sink(sink.servers)
    other.topic = sink.topic
    begun = other.start("run1", **quick)
    with pytest.raises(Crash):
        begun.commit(0, begun.write(0, ["c"]), effects=5, applied=True)
    wait_until(lambda: not sink.open_ids() and not other.open_ids(), "the time-outs", timeout_s=60)
    with pytest.raises(SinkError, match="not open any more"):
        first.commit(0, reports)
    first.commit(0, first.write(0, ["a"], ["b"]))
    second = other.start("run2", **quick)
    with pytest.raises(SinkError, match="No row of it is in the topic"):
        second.commit(0, second.write(0, ["c"]))
    third = other.start("run3", **quick)
    third.commit(0, third.write(0, ["c"]))
    assert sink.read() == ["a", "b", "c"]


def test_what_the_broker_refuses_is_an_error_of_the_task(sink: Sink) -> None:
    with pytest.raises(BrokerError) as caught:
        sink.start("run1").write(0, ["x" * 2_000_000])
    assert caught.value.code == "record-too-large"
    with pytest.raises(BrokerError) as caught:
        sink.start("run1", topic="missing").write(0, ["a"])
    assert caught.value.code == "topic-missing"
    assert sink.open_ids() == []
