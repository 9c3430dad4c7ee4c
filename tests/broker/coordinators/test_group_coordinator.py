"""New settings and images reach every shard, also one whose log refuses for the moment, and one that is made later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext
from tests.harness.coordinator import RefusingLog

from headrace.broker.clock import SteadyClock
from headrace.broker.coordinators import coordinator_runtime
from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.coordinator.metadata_image import MetadataImage


class Logs:
    def __init__(self) -> None:
        self.log = RefusingLog()

    def existing(self) -> Iterable[int]:
        return ()

    def open(self, partition: int) -> RefusingLog:
        return self.log

    def requires_flush(self, partition: int) -> bool:
        return False

    def wait_until_flushed(self, partition: int) -> Awaitable[None]:
        raise AssertionError("nobody waits for a flush")


class _Clock(SteadyClock):
    """Deadlines are kept on the time of the context; the event loop wakes."""

    def __init__(self, ctx: CoordinatorContext) -> None:
        super().__init__()
        self._ctx = ctx

    def now_ms(self) -> int:
        return self._ctx.now_ms


class Broker:
    """A runtime with one shard and a group of two members; `ctx` makes requests, the runtime runs them."""

    def __init__(self) -> None:
        self.ctx = CoordinatorContext(topics={"in": 2, "cl": 2})
        self.logs = Logs()
        self.configuration = self.ctx.configuration
        self.runtime = GroupCoordinator(
            configuration=lambda: self.configuration,
            partitions=1,
            image=self.ctx.image,
            logs=self.logs,
            clock=_Clock(self.ctx),
            create_topics=lambda _topics: None,
        )
        for member in ("m1", "m2"):
            self.heartbeat(member, 0, active={}, topology=STATEFUL, rebalance_timeout_ms=1_000, process_id=member)

    def heartbeat(self, member: str, epoch: int, **given: Any) -> Any:
        request = self.ctx.request(member, epoch, **given)
        context = self.ctx.context()
        return self.runtime.write(
            "g", context, lambda shard, now_ms: shard.streams_group_heartbeat(request, context, now_ms=now_ms)
        )

    def target_standbys(self) -> int:
        (group,) = self.runtime.shard_of("g").streams_group_describe(["g"], self.ctx.context())
        return sum(len(member.target_assignment.standby_tasks) for member in group.members)

    def want_standbys(self) -> None:
        self.configuration = self.configuration.with_group_settings("g", {"streams.num.standby.replicas": "1"})
        self.runtime.configuration_changed()


async def test_a_changed_setting_reassigns_without_a_heartbeat() -> None:
    broker = Broker()
    broker.want_standbys()
    assert broker.target_standbys() == 2
    broker.runtime.stop()


async def test_settings_changed_during_log_failure_apply_after_recovery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_runtime, "APPEND_RETRY_MS", 1)
    broker = Broker()
    broker.logs.log.refuses = True
    broker.runtime.image_changed(MetadataImage(version=2, topics={}))
    broker.runtime.image_changed(MetadataImage(version=3, topics=broker.ctx.image.topics))
    broker.want_standbys()
    broker.want_standbys()
    assert broker.target_standbys() == 0
    broker.logs.log.refuses = False
    broker.ctx.now_ms += 1
    async with asyncio.timeout(10):
        while broker.target_standbys() == 0:
            await asyncio.sleep(0.001)
    assert broker.target_standbys() == 2
    broker.runtime.stop()


async def test_a_shard_that_is_made_later_has_the_newest_settings() -> None:
    ctx = CoordinatorContext()
    configuration = ctx.configuration
    runtime = GroupCoordinator(
        configuration=lambda: configuration,
        partitions=1,
        image=ctx.image,
        logs=Logs(),
        clock=_Clock(ctx),
        create_topics=lambda _topics: None,
    )
    configuration = configuration.with_group_settings("g", {"streams.heartbeat.interval.ms": "7000"})
    runtime.configuration_changed()
    request, context = (
        ctx.request("m1", 0, active={}, topology=STATEFUL, rebalance_timeout_ms=9, process_id="p"),
        ctx.context(),
    )
    written = runtime.write(
        "g", context, lambda shard, now_ms: shard.streams_group_heartbeat(request, context, now_ms=now_ms)
    )
    assert written.response.heartbeat_interval.total_seconds() == 7
    runtime.stop()
