"""Rebalance listeners: their errors, their time limit, coroutines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.client.consumer.group_listeners import EVERY, poll_for_ever
from tests.client.running_consumers import write_forty_records
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS, broker_fixture

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.async_consumer import AsyncConsumer, AsyncRebalanceListener
from headrace.client.consumer.consumer import Consumer
from headrace.client.consumer.consumer_types import ConsumerRecord, RebalanceListener, TopicPartition
from headrace.errors import UserCodeError

broker = broker_fixture(
    {"t": 4, "beside": 1}, config=CLASSIC_GROUPS_WITHOUT_DELAYS, scope="module", setup=write_forty_records
)


def test_listener_error_is_raised_by_poll_after_the_rebalance(broker: EmbeddedBroker) -> None:
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
        records: list[ConsumerRecord] = []
        while not records:
            records = await consumer.poll_records(0.5)
        assert {record.offset for record in records if record.offset < 3} == set()
    assert heard == ["assigned", "revoked"]
    async with AsyncConsumer(group_id="async", bootstrap_servers=broker.bootstrap_servers) as after:
        found = await after.committed(EVERY)
    assert {committed.offset for committed in found.values() if committed is not None} == {7}
