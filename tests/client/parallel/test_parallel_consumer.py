"""`ParallelConsumer` on the embedded broker: order, commits, failures, buffers, revocations, and what cannot be."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.client.parallel.parallel_handlers import FAST, Make
from tests.client.running_consumers import RunningConsumer
from tests.client.running_pipelines import Journal
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace import Consumer, DeadLetter, EmbeddedBroker, ParallelConsumer, Retry
from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.network_client import NetworkClient
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.errors import BrokerError, ConfigError, UserCodeError

broker = broker_fixture({"buried": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module")


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_everything_is_processed_once_and_in_order(topic: Make, order: str) -> None:
    there = topic(partitions=3, records=300)
    journal = Journal()
    stats = there.run(journal, order=order).stats
    assert sorted(journal.places) == sorted((p, o) for (_, p), end in there.ends.items() for o in range(end))
    lanes: dict[Any, list[int]] = {}
    for record in journal.ended:
        lanes.setdefault((record.partition, record.key if order == "key" else None), []).append(record.offset)
    if order != "none":
        assert all(offsets == sorted(offsets) for offsets in lanes.values())
        assert not journal.overlaps
    assert there.is_committed
    assert (stats.done, stats.in_flight, stats.buffered, stats.uncommitted) == (300, 0, 0, 0)


def test_coroutines_run_side_by_side(topic: Make) -> None:
    there = topic(records=40, keys=20)
    at_once: list[int] = []
    running = 0

    async def handler(record: ConsumerRecord) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.01)
        running -= 1

    there.run(handler, workers=10)
    assert len(at_once) == 40
    assert 1 < max(at_once) <= 10
    assert there.is_committed


def test_batches_hold_one_key_and_a_poisonous_record_is_found(topic: Make) -> None:
    there = topic(records=60, keys=3)
    gate = threading.Event()
    batches: list[list[ConsumerRecord]] = []

    def handler(records: list[ConsumerRecord]) -> None:
        assert gate.wait(30)
        if any(record.value == b"v31" for record in records):
            raise ValueError("poison")
        batches.append(records)

    with there.running(handler, batch_size=5, workers=2, retry=FAST, on_failure=DeadLetter("buried")) as running:
        wait_until(lambda: running.pipeline.stats.polled == 60, "all are polled")
        gate.set()
        wait_until(lambda: running.pipeline.stats.done == 59, "all but one are done")
        wait_until(lambda: running.pipeline.stats.dead_letters == 1, "the other is buried")
    assert all(len({record.key for record in batch}) == 1 and len(batch) <= 5 for batch in batches)
    assert any(len(batch) > 1 for batch in batches)
    assert sorted(r.offset for batch in batches for r in batch) == [n for n in range(60) if n != 31]
    assert there.is_committed


def test_a_handler_that_fails_and_then_does_not(topic: Make) -> None:
    there = topic(records=5)
    tried: list[int] = []

    def handler(record: ConsumerRecord) -> None:
        tried.append(record.offset)
        if record.offset == 2 and tried.count(2) < 3:
            raise OSError("not yet")

    stats = there.run(handler, retry=FAST).stats
    assert sorted(tried) == [0, 1, 2, 2, 2, 3, 4]
    assert (stats.done, stats.retried, stats.failed) == (5, 2, 0)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_a_handler_that_fails_for_good_stops_it_and_loses_nothing(topic: Make, error: BaseException) -> None:
    there = topic(records=20, keys=20)
    journal = Journal()

    def handler(record: ConsumerRecord) -> None:
        if record.offset == 7:
            wait_until(lambda: len(journal.ended) == 19, "the others are done")
            raise error
        journal(record)

    with pytest.raises(UserCodeError, match=rf"{there.name}-0@7: {type(error).__name__}") as raised:
        there.run(handler, retry=Retry(attempts=2, first_delay=0, on=(OSError,)))
    assert raised.value.__cause__ is error
    assert raised.value.facts["offset"] == 7
    (committed,) = there.committed().values()
    assert committed is not None
    assert committed.offset == 7
    assert decode_finished(7, committed.metadata, there.topic_id) == ((8, 20),)
    again = Journal()
    stats = there.run(again).stats
    assert again.places == [(0, 7)]
    assert stats.known_finished == 12
    assert there.is_committed


def test_skipped_and_buried_records_do_not_stop_anybody(topic: Make, broker: EmbeddedBroker) -> None:
    there = topic(records=6)

    def handler(record: ConsumerRecord) -> None:
        if record.offset in (1, 4):
            raise KeyError(record.offset)

    assert there.run(handler, retry=FAST, on_failure="skip").stats.skipped == 2
    assert there.is_committed
    other = topic(records=6)
    stats = other.run(handler, retry=FAST, on_failure=DeadLetter("buried")).stats
    assert (stats.dead_letters, stats.done, stats.failed) == (2, 4, 2)
    letters = [dict(r.headers) | {"value": r.value} for r in broker.records("buried")]
    mine = [letter for letter in letters if letter.get("headrace.topic") == other.name.encode()]
    assert {letter["headrace.offset"] for letter in mine} == {b"1", b"4"}
    assert {letter["value"] for letter in mine} == {b"v1", b"v4"}
    assert {letter["headrace.attempts"] for letter in mine} == {b"3"}
    assert all(not_none(letter["headrace.reason"]).startswith(b"KeyError") for letter in mine)


def test_a_dead_letter_topic_that_is_missing_is_told_at_once(topic: Make) -> None:
    there = topic(records=1)
    journal = Journal()
    with pytest.raises(BrokerError) as raised:
        there.run(journal, on_failure=DeadLetter("nowhere"))
    assert raised.value.code == "topic-missing"
    assert not journal.began


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_revoked_partitions_are_drained_and_committed(topic: Make, protocol: str) -> None:
    there = topic(partitions=2, records=200, keys=200)
    journal = Journal(holds=lambda record: record.offset == 5)
    settings = {
        "group_protocol": protocol,
        "partition_assignment_strategy": "cooperative-sticky",
        "config": {"heartbeat.interval.ms": 100},
    }
    with there.running(journal, workers=4, buffer_records=20, consumer=settings, order="none") as running:
        wait_until(
            lambda: sum(record.offset == 5 for record in journal.began) == 2, "both partitions have one that waits"
        )
        first = Journal()
        with there.running(first, consumer=settings) as other:
            threading.Timer(0.2, journal.gate.set).start()
            wait_until(lambda: len(other.consumer.assignment()) == 1, "one of them moves")
            wait_until(lambda: len(journal.ended) + len(first.ended) == 200, "all are processed")
    assert len({*journal.places, *first.places}) == 200, "and none twice"
    assert there.is_committed
    assert len(running.heard.named("revoked")) >= 1


def test_lost_partitions_are_dropped_and_reported(topic: Make) -> None:
    there = topic(records=5, keys=5)
    journal = Journal(holds=lambda record: record.offset == 2)
    settings = {"group_protocol": "classic", "config": {"heartbeat.interval.ms": 100}}
    with there.running(journal, consumer=settings, commit_interval=0.0) as running:
        wait_until(lambda: len(journal.ended) == 4, "all but one are done")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
        with NetworkClient(there.servers) as client:
            remove_from_group(client, f"g-{there.name}", running.consumer.member_id)
        wait_until(lambda: running.heard.named("lost"), "it is told that everything is lost")
        wait_until(lambda: running.consumer.assignment(), "it has joined again")
        wait_until(lambda: running.pipeline.stats.buffered == 1, "the record is back, and waits for its late handler")
        assert running.pipeline.stats.late == 1
        journal.gate.set()
        wait_until(lambda: there.is_committed, "it is processed again, and committed")
    assert sorted(journal.places) == [(0, 0), (0, 1), (0, 2), (0, 2), (0, 3), (0, 4)]
    assert not journal.overlaps


def remove_from_group(client: NetworkClient, group_id: str, member_id: str) -> None:
    from headrace.client.membership.group_events import GroupIdentity
    from headrace.client.membership.group_requests import leave_group_request

    client.call_coordinator(
        group_id, leave_group_request(group_id, GroupIdentity(member_id=member_id), "test"), lambda _: ()
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": 0}, "workers"),
        ({"batch_size": 0}, "batch_size"),
        ({"buffer_records": 0}, "buffer_records"),
        ({"buffer_bytes": -1}, "buffer_bytes"),
        ({"order": "time"}, "order"),
        ({"executor": "gpu"}, "executor"),
        ({"executor": "asyncio"}, "plain function"),
        ({"executor": "processes"}, "another process"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"handler_timeout": 0}, "handler_timeout"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"repeat_limit": 0}, "repeat_limit"),
    ],
)
def test_values_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with Consumer("t", group_id="g", bootstrap_servers="127.0.0.1:1") as consumer:
        with pytest.raises(ConfigError) as raised:
            ParallelConsumer(consumer, lambda record: None, **settings)
        assert says in raised.value.message + raised.value.fix


def test_a_retry_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="at least one attempt"):
        Retry(attempts=0)


def test_without_a_group_and_a_second_run(topic: Make) -> None:
    with Consumer(bootstrap_servers="127.0.0.1:1") as consumer, pytest.raises(ConfigError, match="group"):
        ParallelConsumer(consumer, print)
    pipeline = topic(records=1).run(lambda record: None)
    with pytest.raises(ConfigError, match="once"):
        pipeline.run()


def test_partitions_assigned_by_hand(topic: Make) -> None:
    there = topic(partitions=2, records=20)
    consumer = Consumer(group_id=f"g-{there.name}", bootstrap_servers=there.servers, auto_offset_reset="earliest")
    consumer.assign(there.ends)
    journal = Journal()
    ParallelConsumer(consumer, journal).run(until="caught-up")
    assert len(journal.ended) == 20
    assert there.is_committed


def test_a_member_beside_plain_consumers(topic: Make) -> None:
    there = topic(partitions=4, records=40)
    journal = Journal()
    with there.running(journal) as running:
        wait_until(lambda: len(journal.ended) == 40, "all are processed")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
        with RunningConsumer(there.name, group_id=f"g-{there.name}", bootstrap_servers=there.servers) as plain:
            wait_until(lambda: len(plain.assigned) == 2, "they share")
        assert plain.read == []
