"""The clock that stands still: order, effects before `advance` returns, and the broker's own deadlines on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.streams_heartbeats import FAST, heartbeat, topology
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.manual_clock import ManualClock
from headrace.errors import HeadraceError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

START_MS = 1_700_000_000_000


def on_a_loop(clock: ManualClock, set_up: Callable[[], list[Any]], *seconds: float) -> list[Any]:
    """Runs `set_up` on a loop that the clock is attached to, then advances from another thread."""

    async def run() -> list[Any]:
        clock.attach()
        seen = set_up()
        await asyncio.sleep(0)
        for step in seconds:
            await asyncio.to_thread(clock.advance, step)
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        clock.detach()
        return seen

    return asyncio.run(run())


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    clock = ManualClock(START_MS)

    def set_up() -> list[Any]:
        seen: list[Any] = []

        def note(delay_ms: int) -> None:
            seen.append((delay_ms, clock.now_ms() - START_MS))

        for delay_ms in (3000, 1000, 2000, 1000):
            clock.call_later(delay_ms, partial(note, delay_ms))
        clock.call_later(500, lambda: seen.append("never")).cancel()
        clock.call_later(9000, lambda: seen.append("too early"))
        return seen

    seen = on_a_loop(clock, set_up, 0.9995, 5)
    assert seen == [(1000, 1000), (1000, 1000), (2000, 2000), (3000, 3000)]
    assert clock.now_ms() == clock.wall_clock_ms() == START_MS + 6000


def test_a_deadline_set_on_the_way_is_kept_too() -> None:
    clock = ManualClock(START_MS)

    def set_up() -> list[Any]:
        seen: list[Any] = []

        def again() -> None:
            seen.append(clock.now_ms() - START_MS)
            clock.call_later(1000, again)

        clock.call_later(1000, again)
        return seen

    assert on_a_loop(clock, set_up, 3.5) == [1000, 2000, 3000]


def test_of_a_chore_only_the_first_and_the_last_are_done_and_awaited() -> None:
    clock = ManualClock(START_MS)

    def set_up() -> list[Any]:
        seen: list[Any] = []

        async def chore() -> None:
            await asyncio.sleep(0.01)
            seen.append((clock.now_ms() - START_MS) / 1000)

        asyncio.get_running_loop().create_task(clock.every(10_000, chore))
        return seen

    # A week of ten-second chores is two of them; and both have ended when advance returns.
    assert on_a_loop(clock, set_up, 9, 1, 25, 604_765) == [10.0, 20.0, 30.0, 40.0, 604_800.0]


def test_a_clock_goes_forward_only_and_not_on_its_own_thread() -> None:
    clock = ManualClock(START_MS)
    with pytest.raises(ValueError, match="forward only"):
        clock.advance(-1)
    clock.advance(2)
    assert clock.now_ms() == START_MS + 2000

    async def on_its_own_thread() -> None:
        clock.attach()
        with pytest.raises(HeadraceError) as raised:
            clock.advance(1)
        assert raised.value.code == "clock-misused"
        clock.detach()

    asyncio.run(on_its_own_thread())


def test_silent_member_is_fenced_exactly_at_session_timeout(connect: Connect) -> None:
    clock = ManualClock()
    with EmbeddedBroker(topics={"flights": 2}, config=FAST, clock=clock) as broker:
        client = connect(broker)
        joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", 0, topology=topology()), 0)
        assert joined.error_code is ErrorCode.none
        clock.advance(seconds=44.999)
        assert list(broker.group("delays").members) == ["m1"]
        broker.clock.advance(seconds=0.001)
        assert broker.group("delays").members == {}
        assert broker.group("delays").state == "Empty"


def test_each_heartbeat_begins_the_session_anew_also_out_of_the_memo(connect: Connect) -> None:
    with EmbeddedBroker(topics={"flights": 2}, config=FAST, clock=ManualClock()) as broker:
        client = connect(broker)
        joined = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", 0, topology=topology()), 0)
        for _ in range(10):
            broker.clock.advance(seconds=40)
            beat = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, heartbeat("m1", joined.member_epoch), 0)
            assert beat.error_code is ErrorCode.none
        assert list(broker.group("delays").members) == ["m1"]


def test_retention_deletes_when_its_time_has_come() -> None:
    config = {"log.retention.ms": 60_000, "log.segment.bytes": 1000}
    with EmbeddedBroker(topics={"t": 1}, config=config, clock=ManualClock()) as broker:
        for number in range(20):
            broker.produce("t", [b"%d" % number + b"x" * 300])
        broker.clock.advance(seconds=30)
        assert len(broker.records("t")) == 20
        broker.clock.advance(seconds=600)
        assert len(broker.records("t")) < 20


def test_the_time_goes_on_where_it_was_when_a_broker_restarts(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with EmbeddedBroker(topics={"t": 1}, data_dir=tmp_path, clock=clock) as broker:
        clock.advance(100)
        broker.kill()
        clock.advance(50)
        broker.restart()
        broker.produce("t", [b"x"])
        assert [record.timestamp_ms for record in broker.records("t")] == [START_MS + 150_000]
        with pytest.raises(HeadraceError) as raised:
            EmbeddedBroker(clock=clock).start()
        assert raised.value.code == "clock-misused"


def test_a_broker_on_the_real_time_has_no_clock_to_move() -> None:
    with EmbeddedBroker() as broker, pytest.raises(HeadraceError, match="real time"):
        broker.clock.advance(1)
