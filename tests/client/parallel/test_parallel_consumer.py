"""`ParallelConsumer` on the embedded broker: order, commits, failures, buffers, revocations, and what cannot be."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.client.running_consumers import RunningConsumer
from tests.client.running_pipelines import Journal, RunningPipeline
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace import Consumer, DeadLetter, EmbeddedBroker, ParallelConsumer, Retry
from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.consumer_types import ConsumerRecord
from headrace.client.network_client import NetworkClient
from headrace.client.parallel.offset_tracker import decode_finished
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import BrokerError, ConfigError, UserCodeError

_numbers = itertools.count()
FAST = Retry(attempts=3, first_delay=0.01)


broker = broker_fixture({"buried": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module")


class Topic:
    """A topic and a group of its own."""

    def __init__(self, broker: EmbeddedBroker, partitions: int, records: int, keys: int) -> None:
        self.name = f"t{next(_numbers)}"
        self.servers = broker.bootstrap_servers
        broker.create_topics({self.name: partitions})
        self.records = [PlainRecord(key=b"k%d" % (n % keys), value=b"v%d" % n) for n in range(records)]
        with NetworkClient(self.servers) as client:
            self.ends = {key: last + 1 for key, last in produce(client, self.name, self.records).items()}

    def running(self, handler: Any, **settings: Any) -> RunningPipeline:
        return RunningPipeline(self.name, f"g-{self.name}", self.servers, handler, **settings)

    def run(self, handler: Any, **settings: Any) -> ParallelConsumer:
        """To the end of the topic."""
        consumer = Consumer(
            self.name, group_id=f"g-{self.name}", bootstrap_servers=self.servers, auto_offset_reset="earliest"
        )
        pipeline = ParallelConsumer(consumer, handler, **settings)
        pipeline.run(until="caught-up")
        return pipeline

    def committed(self) -> dict[Any, CommittedOffset | None]:
        with Consumer(group_id=f"g-{self.name}", bootstrap_servers=self.servers) as asking:
            return dict(asking.committed(self.ends))

    @property
    def topic_id(self) -> UUID | None:
        with NetworkClient(self.servers) as client:
            return client.known_topics([self.name]).topics[self.name].topic_id

    def commit(self, offset: int, metadata: str) -> None:
        with Consumer(group_id=f"g-{self.name}", bootstrap_servers=self.servers) as consumer:
            consumer.commit({(self.name, 0): CommittedOffset(offset=offset, metadata=metadata)})

    @property
    def is_committed(self) -> bool:
        return {tuple(key): found and found.offset for key, found in self.committed().items()} == self.ends


Make = Callable[..., Topic]


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Make:
    return lambda partitions=1, records=0, keys=5: Topic(broker, partitions, records, keys)


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


def test_a_full_buffer_pauses_and_polls_go_on(topic: Make) -> None:
    there = topic(partitions=2, records=100, keys=100)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=3, buffer_records=10) as running:
        wait_until(lambda: running.pipeline.stats.paused_partitions == 2, "it is full")
        polls = running.consumer.metrics()["polls"]
        wait_until(lambda: running.consumer.metrics()["polls"] > polls + 2, "polls go on")
        stats = running.pipeline.stats
        assert (stats.in_flight, stats.buffered) == (3, 7)
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 100, "everything is processed")
    assert running.error is None
    assert len(set(journal.places)) == 100
    assert there.is_committed


def test_a_buffer_of_bytes(topic: Make) -> None:
    there = topic(records=50, keys=50)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=1, buffer_bytes=1) as running:
        wait_until(lambda: running.pipeline.stats.paused_partitions == 1, "it is full")
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 50, "everything is processed")
    assert there.is_committed


def test_one_that_hangs_holds_nobody_up_but_its_own_key(topic: Make) -> None:
    there = topic(records=30, keys=3)
    journal = Journal(holds=lambda record: record.offset == 0)
    with there.running(journal, workers=4, commit_interval=0.0) as running:
        wait_until(lambda: len(journal.ended) == 20, "the other keys are done")
        wait_until(lambda: running.pipeline.stats.uncommitted == 0, "and committed")
        (committed,) = there.committed().values()
        assert committed is not None
        assert committed.offset == 0
        runs = decode_finished(0, committed.metadata, there.topic_id)
        assert runs is not None
        assert sum(end - start for start, end in runs) == 20
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 30, "its key goes on")
    assert there.is_committed


def test_a_time_limit_for_threads(topic: Make) -> None:
    there = topic(records=10)
    journal = Journal(holds=lambda record: record.offset == 3)
    with there.running(journal, workers=2, handler_timeout=0.3, on_failure="skip") as running:
        wait_until(lambda: len(journal.ended) == 9 and running.pipeline.stats.skipped == 1, "it is given up")
        wait_until(lambda: there.is_committed, "and committed")
        journal.gate.set()
        wait_until(lambda: len(journal.ended) == 10, "it returns after all")
        assert running.pipeline.stats.done == 9
    assert running.error is None


def test_too_many_threads_that_hang_stop_it(topic: Make) -> None:
    there = topic(records=30, keys=30)
    journal = Journal(holds=lambda _: True)
    with there.running(journal, workers=2, handler_timeout=0.05, on_failure="skip", drain_timeout=0.1) as running:
        running.wait()
        journal.gate.set()
    assert isinstance(running.error, UserCodeError)
    assert "still run" in running.error.message


def test_a_time_limit_for_coroutines(topic: Make) -> None:
    there = topic(records=10)
    done: list[int] = []

    async def handler(record: ConsumerRecord) -> None:
        if record.offset == 3 and done.count(-3) < 1:
            done.append(-3)
            await asyncio.sleep(60)
        done.append(record.offset)

    stats = there.run(handler, handler_timeout=0.2, retry=FAST).stats
    assert sorted(done) == [-3, *range(10)]
    assert (stats.done, stats.retried) == (10, 1)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_what_is_revoked_is_drained_and_committed(topic: Make, protocol: str) -> None:
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


def test_who_returns_after_his_partition_went_commits_nothing(topic: Make) -> None:
    there = topic(partitions=1, records=5, keys=5)
    journal = Journal(holds=lambda record: record.offset == 2)
    with there.running(journal, drain_timeout=0.1, commit_interval=0.0) as late:
        wait_until(lambda: len(journal.ended) == 4, "all but one are done")
        late.pipeline.stop()
        late.wait()  # one hangs: the group is left without it
        again = Journal(holds=lambda _: True)
        with there.running(again, commit_interval=0.0) as successor:
            wait_until(lambda: len(again.began) == 1, "who follows has what is left")
            journal.gate.set()
            wait_until(lambda: len(journal.ended) == 5, "the late one returns")
            assert there.committed()[there.name, 0].offset == 2  # type: ignore[union-attr]
            again.gate.set()
            wait_until(lambda: there.is_committed, "the successor commits")
            assert successor.pipeline.stats.known_finished == 2
    assert again.places == [(0, 2)]


def test_what_is_lost_is_dropped_and_told(topic: Make) -> None:
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


def test_metadata_of_others_begins_at_the_offset(topic: Make) -> None:
    there = topic(records=5)
    there.commit(3, "somebody else's")
    journal = Journal()
    there.run(journal)
    assert journal.places == [(0, 3), (0, 4)]


def test_a_poll_does_not_wait_past_the_next_commit(topic: Make) -> None:
    """Else a crash repeats what was finished in up to two intervals."""
    waited: list[tuple[float, float]] = []
    there = topic(records=4, keys=4)
    with there.running(lambda _: None, commit_interval=30.0) as running:
        wait_until(lambda: running.pipeline.stats.done == 4, "the first commit has begun the interval")
        commits = running.pipeline._commits
        waited += [(longest_s, commits.poll_timeout_s(longest_s)) for longest_s in (0.5, 60.0)]
    (short, as_long), (long, until_due) = waited
    assert as_long == short
    assert 0 <= until_due <= 30.0 < long


def test_a_repeat_limit_bounds_what_is_not_committed(topic: Make) -> None:
    there = topic(records=40, keys=40)
    most: list[int] = []
    journal = Journal()

    def handler(record: ConsumerRecord) -> None:
        stats = running.pipeline.stats
        most.append(stats.in_flight + stats.uncommitted)
        journal(record)

    with there.running(handler, workers=8, repeat_limit=3, commit_interval=60.0) as running:
        wait_until(lambda: len(journal.ended) == 40, "everything is processed, commits press")
    assert max(most) <= 3
    assert there.is_committed


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
