"""Our consumers in groups of our own broker, in both protocols; the same and more on Apache Kafka in tests/interop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from tests.client.running_consumers import RunningConsumer, wait_until

from penstock.broker.embedded import EmbeddedBroker
from penstock.client.consumer.async_consumer import AsyncConsumer, AsyncRebalanceListener
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.consumer_types import RebalanceListener, TopicPartition
from penstock.errors import BrokerError, UserCodeError

EVERY = {("t", number) for number in range(4)}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"t": 4}, config={"group.initial.rebalance.delay.ms": 0}) as running:
        for number in range(40):
            running.produce("t", [b"v%d" % number])
        yield running


@pytest.mark.parametrize(
    ("protocol", "strategy"), [("consumer", None), ("classic", "range"), ("classic", "cooperative-sticky")]
)
def test_members_share_and_take_over(broker: EmbeddedBroker, protocol: str, strategy: str | None) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.protocol": protocol, "heartbeat.interval.ms": 200}
    more = {"config": settings, "group_id": f"share-{protocol}-{strategy}", "partition_assignment_strategy": strategy}
    with RunningConsumer("t", **more) as first:
        wait_until(lambda: first.assigned == EVERY, "the first takes everything")
        with RunningConsumer("t", **more) as second:
            wait_until(lambda: len(first.assigned) == len(second.assigned) == 2, "the two share")
        wait_until(lambda: first.assigned == EVERY, "who stays takes over")
        wait_until(lambda: len(first.read) + len(second.read) >= 40, "everything is read")
    assert not first.errors + second.errors
    assert len({*first.read, *second.read}) == len(first.read) + len(second.read) == 40


def test_what_a_listener_raises_comes_out_of_the_poll_and_the_rebalance_went_on(broker: EmbeddedBroker) -> None:
    class Fails(RebalanceListener):
        def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError(len(partitions))

    with Consumer("t", group_id="fails", bootstrap_servers=broker.bootstrap_servers, listener=Fails()) as consumer:
        with pytest.raises(ZeroDivisionError):
            poll_for_ever(consumer)
        assert set(consumer.assignment()) == EVERY
        consumer.poll_records(0)


def test_a_listener_that_takes_too_long_is_named(broker: EmbeddedBroker) -> None:
    class Slow(RebalanceListener):
        def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            import time

            time.sleep(0.02)

    consumer = Consumer(
        "t", group_id="slow", bootstrap_servers=broker.bootstrap_servers, listener=Slow(), listener_timeout_ms=5
    )
    with consumer, pytest.raises(UserCodeError, match="on_assigned"):
        poll_for_ever(consumer)


def test_what_ended_the_membership_is_said_by_every_poll(broker: EmbeddedBroker) -> None:
    with Consumer("t", group_id="kind", bootstrap_servers=broker.bootstrap_servers, group_protocol="classic") as there:
        while not there.assignment():
            there.poll_records(0.1)
        other = Consumer(
            "t",
            group_id="kind",
            bootstrap_servers=broker.bootstrap_servers,
            group_protocol="classic",
            partition_assignment_strategy="roundrobin",
        )
        with other:
            for _ in range(2):
                with pytest.raises(BrokerError) as raised:
                    poll_for_ever(other)
                assert raised.value.code == "assignors-differ"


async def test_coroutines_listen_and_may_commit_and_seek(broker: EmbeddedBroker) -> None:
    heard: list[str] = []

    class Listener(AsyncRebalanceListener):
        async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append("assigned")
            for each in partitions:
                await consumer.seek(each, 3)

        async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            heard.append("revoked")
            await consumer.commit(dict.fromkeys(partitions, 7))

    consumer = AsyncConsumer(
        "t", group_id="async", bootstrap_servers=broker.bootstrap_servers, listener=Listener(), enable_auto_commit=False
    )
    async with consumer:
        records = []
        while not records:
            records = await consumer.poll_records(0.5)
        assert {record.offset for record in records if record.offset < 3} == set()
    assert heard == ["assigned", "revoked"]
    async with AsyncConsumer(group_id="async", bootstrap_servers=broker.bootstrap_servers) as after:
        found = await after.committed(EVERY)
    assert {committed.offset for committed in found.values() if committed is not None} == {7}


def poll_for_ever(consumer: Consumer) -> None:
    for _ in range(300):
        consumer.poll_records(0.2)
