"""Turns of expensive requests: one at a time, fair between clients, never lost when a connection ends."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from tests.fuzz.request_cost import BYSTANDER, ROOT, MeteredBroker, connect, read_frame
from tests.fuzz.wide_requests import framed, wide_request

from headrace.broker.network.fair_queue import FairQueue, decode_cheap_request
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.protocol.request_codec import MalformedRequest, OversizedRequest, decode_response, encode_request

MOST_ITEMS = 100_000


class Seconds:
    """Mutable: a clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def _requests(queue: FairQueue, clock: Seconds, client: str, costs: list[float], order: list[str]) -> None:
    """Requests of one connection, each sent when the one before is answered."""
    for cost in costs:
        async with queue.turn(client):
            order.append(client)
            clock.now += cost
            await asyncio.sleep(0)


def test_many_connections_do_not_make_a_larger_share() -> None:
    async def run() -> list[str]:
        clock, order = Seconds(), list[str]()
        queue = FairQueue(clock)
        hostile = [_requests(queue, clock, "hostile", [0.1] * 20, order) for _ in range(20)]
        await asyncio.gather(*hostile, _requests(queue, clock, "honest", [0.1] * 10, order))
        return order

    order = asyncio.run(run())
    last = max(position for position, client in enumerate(order) if client == "honest")
    assert last <= 22, "ten turns of its own, ten of the other, and those before it came"


def test_time_is_shared_and_not_the_number_of_requests() -> None:
    async def run() -> list[str]:
        clock, order = Seconds(), list[str]()
        queue = FairQueue(clock)
        dear = [_requests(queue, clock, "dear", [0.4] * 20, order) for _ in range(3)]
        cheap = [_requests(queue, clock, "cheap", [0.1] * 100, order) for _ in range(3)]
        await asyncio.gather(*dear, *cheap)
        return order

    begun = Counter(asyncio.run(run())[:50])
    assert 3.5 <= begun["cheap"] / begun["dear"] <= 4.5


@pytest.mark.parametrize("seed", range(20))
def test_a_connection_that_ends_gives_its_turn_to_the_next(seed: int) -> None:
    """Cancelled while it waits, in its turn, or just when it is granted one."""

    async def run() -> None:
        rng, clock, queue, order = random.Random(seed), Seconds(), FairQueue(), list[str]()
        tasks = [asyncio.create_task(_requests(queue, clock, rng.choice("abc"), [0.1] * 5, order)) for _ in range(30)]
        for task in rng.sample(tasks, 25):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 5)
        async with asyncio.timeout(5), queue.turn("late"):
            pass

    asyncio.run(run())


def test_one_turn_at_a_time() -> None:
    async def run() -> int:
        queue, inside, most = FairQueue(), 0, 0

        async def request(client: str) -> None:
            nonlocal inside, most
            async with queue.turn(client):
                inside += 1
                most = max(most, inside)
                await queue.run_in_thread(sum, range(1000))
                inside -= 1

        await asyncio.gather(*(request(f"client-{number % 3}") for number in range(30)))
        queue.close()
        return most

    assert asyncio.run(run()) == 1


def test_batches_do_not_make_a_request_expensive_and_partitions_do() -> None:
    p = m.produce_request
    batch = encode_batch([PlainRecord(key=None, value=bytes(20_000), timestamp_ms=1)], compression="none")

    def produce(partitions: int, records: bytes) -> bytes:
        parts = tuple(p.PartitionProduceData(index=index, records=records) for index in range(partitions))  # type: ignore[arg-type]
        data = p.TopicProduceData(name="t", topic_id=None, partition_data=parts)  # type: ignore[arg-type]
        request = p.ProduceRequest(transactional_id=None, acks=1, timeout=from_ms(1), topic_data=(data,))  # type: ignore[arg-type]
        return encode_request(ApiKey.PRODUCE, 12, 1, "c", request)[4:]

    assert decode_cheap_request(produce(5, batch), MOST_ITEMS)
    assert decode_cheap_request(produce(2000, b""), MOST_ITEMS) is None
    assert decode_cheap_request(produce(1, b""), MOST_ITEMS)
    with pytest.raises(MalformedRequest):  # bytes that are no request are refused at once
        decode_cheap_request(b"\0\0\0\x0c" + b"\xff" * 10_000, MOST_ITEMS)
    with pytest.raises(OversizedRequest):  # so is a request beyond the limit, where the limit is a low one
        decode_cheap_request(produce(2000, b""), 100)


def test_requests_of_a_connection_are_answered_in_their_order() -> None:
    """A small request behind an expensive one waits for it."""
    key, version = ApiKey.LIST_OFFSETS, SUPPORTED[ApiKey.LIST_OFFSETS].highest
    words = {"name": ("open-wide",), "partition_index": tuple(range(7))}
    wide = framed(
        key, version, wide_request(key, version, ("topics", "partitions"), words=words, items=8000, most_bytes=1 << 20)
    )
    ping = m.api_versions_request.ApiVersionsRequest(client_software_name="c", client_software_version="1")
    with MeteredBroker({"open-wide": 10}) as metered:
        port = metered.broker.ports["SASL_PLAINTEXT"]
        with connect(port, ROOT) as busy, connect(port, BYSTANDER) as other:
            busy.sendall(wide + encode_request(ApiKey.API_VERSIONS, 3, 7, "c", ping))
            other.sendall(encode_request(ApiKey.API_VERSIONS, 3, 8, "c", ping))
            correlation_id, answer = decode_response(key, version, read_frame(busy))
            assert correlation_id == 1
            assert isinstance(answer, m.list_offsets_response.ListOffsetsResponse)
            assert sum(len(topic.partitions) for topic in answer.topics) >= 7
            assert decode_response(ApiKey.API_VERSIONS, 3, read_frame(busy))[0] == 7
            assert decode_response(ApiKey.API_VERSIONS, 3, read_frame(other))[0] == 8
