"""`AsyncConsumer`: polls, and polls that are cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.consumer.consumed_records import T0

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.consumer.async_consumer import AsyncConsumer


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
