"""`Consumer` and `AsyncConsumer` on the embedded broker, without a group's help: reading, seeking, committing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin_results import CommittedOffset
from headrace.client.consumer.async_consumer import AsyncConsumer
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_settings import ConsumerConfiguration
from headrace.client.consumer.consumer_types import OffsetReset, TopicPartition
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce
from headrace.errors import BrokerError, ConfigError

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(topics={"t": 2, "empty": 1}) as broker, NetworkClient(broker.bootstrap_servers) as client:
        for number in range(2):
            records = [
                PlainRecord(key=b"k%d" % n, value=b"v%d" % n, timestamp_ms=1_000 * n, headers=(("h", b"x"),))
                for n in range(100)
            ]
            produce(client, "t", records, partition=number, compression="lz4" if number else "none")
        yield broker


Make = Callable[..., Consumer]


@pytest.fixture
def make(shared_broker: EmbeddedBroker) -> Iterator[Make]:
    made: list[Consumer] = []

    def new(**settings: Any) -> Consumer:
        settings.setdefault("auto_offset_reset", "earliest")
        made.append(Consumer(bootstrap_servers=shared_broker.bootstrap_servers, **settings))
        return made[-1]

    yield new
    for consumer in made:
        consumer.close()


def read_all(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll_records(1.0)
    return found


def test_arrow_batches_hold_everything(make: Make) -> None:
    consumer = make()
    consumer.assign([T0, T1])
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while len(rows) < 200 and time.monotonic() < deadline:
        rows += consumer.poll().to_pylist()
    assert {(row["topic"], row["partition"], row["offset"]) for row in rows} == {
        ("t", number, offset) for number in range(2) for offset in range(100)
    }
    row = next(row for row in rows if row["offset"] == 7)
    assert (row["key"], row["value"], row["timestamp_type"]) == (b"k7", b"v7", 0)
    assert row["timestamp"].timestamp() == 7.0
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    assert consumer.poll(0).num_rows == 0
    assert consumer.lag() == {T0: 0, T1: 0}


def test_records_are_the_same_and_both_faces_may_take_turns(make: Make) -> None:
    consumer = make(max_poll_records=7)
    consumer.assign([T0])
    offsets: list[int] = []
    deadline = time.monotonic() + 20
    while len(offsets) < 100 and time.monotonic() < deadline:
        offsets += consumer.poll().column("offset").to_pylist()
        offsets += [record.offset for record in consumer.poll_records(1.0, max_records=3)]
    assert offsets == list(range(100))


def test_one_record_in_full(make: Make) -> None:
    consumer = make()
    consumer.assign([T1])
    record = next(iter(consumer.records(timeout=10)))
    assert record == ("t", 1, 0, b"k0", b"v0", (("h", b"x"),), 0, 0)


def test_seeking(make: Make) -> None:
    consumer = make()
    consumer.assign([T0])
    consumer.seek(T0, 42)
    assert consumer.position(T0) == 42
    assert consumer.poll_records(5)[0].offset == 42
    consumer.seek_to_beginning([T0])
    assert consumer.poll_records(5)[0].offset == 0
    consumer.seek_to_time(30_500)
    assert consumer.poll_records(5)[0].offset == 31
    consumer.seek_to_time(10**12)
    assert consumer.position(T0) == 100
    consumer.seek_to_beginning()
    consumer.seek_to_end()
    assert consumer.position(T0) == 100


def test_paused_partitions_give_nothing_and_lose_nothing(make: Make) -> None:
    consumer = make(max_poll_records=10)
    consumer.assign([T0, T1])
    consumer.pause([T0])
    assert {record.partition for record in read_all(consumer, 100)} == {1}
    assert consumer.paused() == (T0,)
    consumer.resume([T0])
    assert [record.offset for record in read_all(consumer, 100)] == list(range(100))


def test_where_to_begin(make: Make) -> None:
    latest = make(auto_offset_reset="latest")
    latest.assign([T0])
    assert latest.position(T0) == 100
    none = make(auto_offset_reset="none", group_id="begin")
    none.assign([T0])
    with pytest.raises(BrokerError) as raised:
        none.poll_records(1)
    assert raised.value.code == "no-offset"
    # All records are older than an hour: as with latest. Fifty-odd years ago everything lies ahead.
    for duration, expected in [("PT1H", 100), ("P40000D", 0)]:
        recent = make(auto_offset_reset=f"by_duration:{duration}")
        recent.assign([T0])
        assert recent.position(T0) == expected


def test_an_offset_that_is_not_there(make: Make) -> None:
    consumer = make()
    consumer.assign([T0])
    consumer.seek(T0, 5_000)
    assert read_all(consumer, 1)[0].offset == 0
    strict = make(auto_offset_reset="none")
    strict.assign([T0])
    strict.seek(T0, 5_000)
    with pytest.raises(BrokerError) as raised:
        read_all(strict, 1)
    assert raised.value.code == "offset-out-of-range"


def test_commits_without_members(make: Make) -> None:
    consumer = make(group_id="alone", enable_auto_commit=False)
    consumer.assign([T0, T1])
    assert consumer.committed() == {T0: None, T1: None}
    consumer.seek(T0, 10)
    consumer.seek(T1, 20)
    consumer.commit()
    consumer.commit({T1: CommittedOffset(offset=21, metadata="half")}, wait=False)
    consumer.commit({T0: 11})  # behind the one in the background
    found = consumer.committed()
    assert found[T0] == CommittedOffset(offset=11)
    assert found[T1] == CommittedOffset(offset=21, metadata="half")
    again = make(group_id="alone")
    again.assign([T0, T1])
    assert (again.position(T0), again.position(T1)) == (11, 21)


def test_auto_commit_commits_what_was_returned_when_it_closes(make: Make) -> None:
    consumer = make(group_id="auto", max_poll_records=30)
    consumer.assign([T0])
    assert len(consumer.poll_records(5)) == 30
    consumer.close()
    again = make(group_id="auto")
    again.assign([T0])
    assert again.position(T0) == 30


def test_asking_about_topics(make: Make) -> None:
    consumer = make()
    assert consumer.partitions_for("t") == (T0, T1)
    assert consumer.beginning_offsets([T0]) == {T0: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: 100, T1: 100}
    assert consumer.offsets_for_times({T0: 500, T1: 10**12}) == {T0: 1, T1: None}


def test_a_wakeup_ends_a_poll_that_waits(make: Make) -> None:
    consumer = make()
    consumer.assign([("empty", 0)])
    consumer.poll_records(0)
    consumer.wakeup()
    began = time.monotonic()
    assert consumer.poll_records(60) == []
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda c: c.poll(), "reads nothing"),
        (lambda c: c.subscribe("t"), "group"),
        (lambda c: c.commit({T0: 1}), "group"),
        (lambda c: c.seek(T0, 1), "not assigned"),
        (lambda c: c.seek(T0, -1), "cannot be"),
        (lambda c: (c.close(), c.assign([T0])), "closed"),
    ],
)
def test_wrong_usage_is_told(make: Make, wrong: Callable[[Consumer], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong(make())


def test_two_threads_are_told() -> None:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    consumer.assign([T0])
    with consumer._core._alone():
        import threading

        errors: list[BaseException] = []

        def other() -> None:
            try:
                consumer.poll_records(0)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert isinstance(errors[0], ConfigError)
    consumer.close()


def test_records_need_no_arrow() -> None:
    code = (
        "import sys, headrace; from headrace import Consumer; import headrace.client.consumer.record_collector;"
        "Consumer(bootstrap_servers='127.0.0.1:1').close();"
        "print([n for n in ('pyarrow', 'numpy', 'numba') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"


def test_settings_have_kafkas_names() -> None:
    made = ConsumerConfiguration({"fetch.min.bytes": "7", "key.deserializer": "x"}, environment={}, group_id="g")
    assert (made["fetch.min.bytes"], made["group.id"], made.source("group.id")) == (7, "g", "argument")
    assert (made["isolation.level"], made["group.protocol"]) == ("read_committed", "consumer")
    with pytest.raises(ConfigError, match="which is not a setting"):
        ConsumerConfiguration({"fetch.min.byte": 1}, environment={})
    from_environment = ConsumerConfiguration(environment={"HEADRACE_MAX_POLL_RECORDS": "5"})
    assert from_environment["max.poll.records"] == 5


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("by_duration:PT1H", 3_600_000), ("by_duration:P1DT2M", 86_520_000), ("BY_DURATION:pt0.5s", 500)],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert OffsetReset.parsed(text) == OffsetReset("by_duration", duration_ms)


@pytest.mark.parametrize("text", ["", "early", "by_duration:", "by_duration:P", "by_duration:-PT1H", "by_duration:1h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ConfigError):
        OffsetReset.parsed(text)


async def test_the_async_consumer(shared_broker: EmbeddedBroker) -> None:
    async with AsyncConsumer(
        bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest", max_poll_records=10
    ) as consumer:
        await consumer.assign([T0])
        assert (await consumer.poll_records(5))[0].offset == 0
        assert (await consumer.poll(5)).column("offset").to_pylist() == list(range(10, 20))
        assert await consumer.position(T0) == 20
        offsets = [record.offset async for record in consumer.records(timeout=0.2)]
        assert offsets == list(range(20, 100))
        waiting = asyncio.create_task(consumer.poll_records(60))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await consumer.seek(T0, 0)
        assert (await consumer.poll_records(5))[0].offset == 0


async def test_a_cancelled_poll_loses_nothing(shared_broker: EmbeddedBroker) -> None:
    async with AsyncConsumer(
        bootstrap_servers=shared_broker.bootstrap_servers, auto_offset_reset="earliest", max_poll_records=40
    ) as consumer:
        await consumer.assign([T0])
        seen: set[tuple[int, int]] = set()
        for attempt in range(100):
            polling = asyncio.create_task(consumer.poll_records(1.0) if attempt % 2 else consumer.poll(1.0))
            await asyncio.sleep(0 if attempt % 3 else 0.002)
            if attempt % 3:
                polling.cancel()
            try:
                rows: Any = await polling
            except asyncio.CancelledError:
                continue
            if isinstance(rows, list):
                seen |= {(record.partition, record.offset) for record in rows}
            else:
                seen |= set(zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True))
            if len(seen) == 100:
                break
        assert len(seen) == 100
