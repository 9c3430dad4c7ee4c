"""The disk refuses what a timer, an image or new settings brought: nothing is half done, and all of it comes later.

A real shard behind the broker's `ShardRunner`; the log refuses while it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext
from tests.harness.coordinator import RefusingLog

from headrace.broker.coordinators.coordinator_runtime import AppendFailed, ShardRunner


def two_members(**settings: object) -> CoordinatorContext:
    """m1 was told to give a task to m2 and has not answered; a commit for each partition."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings=names)
    ctx.join("m1", topology=STATEFUL, rebalance_timeout_ms=10_000)
    ctx.sleep(5_000)
    ctx.heartbeat("m1", 2)
    ctx.commit({("in", 0): 7, ("in", 1): 8}, "m1", 2)
    ctx.join("m2", topology=STATEFUL)
    ctx.sleep(5_000)
    ctx.heartbeat("m1", 2)
    return ctx


def sessions_end(ctx: CoordinatorContext, runner: ShardRunner) -> Any:
    ctx.now_ms += 60_000
    return runner.fire_timers(now_ms=ctx.now_ms)


def revocation_ends(ctx: CoordinatorContext, runner: ShardRunner) -> Any:
    ctx.now_ms += 10_000
    return runner.fire_timers(now_ms=ctx.now_ms)


def topic_vanishes(ctx: CoordinatorContext, runner: ShardRunner) -> Any:
    ctx.image = type(ctx.image)(version=9, topics={"cl": ctx.image.topics["cl"]})
    return runner.push_image(ctx.image, now_ms=ctx.now_ms)


def standbys_are_wanted(ctx: CoordinatorContext, runner: ShardRunner) -> Any:
    ctx.configuration = ctx.configuration.with_group_settings("g", {"streams.num.standby.replicas": "1"})
    return runner.push_configuration(ctx.configuration, now_ms=ctx.now_ms)


def caught_up(ctx: CoordinatorContext, runner: ShardRunner, pause_ms: int = 60_000) -> Iterator[Any]:
    """What was missed, and the timers that began anew with it."""
    yield from runner.catch_up(ctx.image, now_ms=ctx.now_ms)
    ctx.now_ms += pause_ms
    yield from runner.fire_timers(now_ms=ctx.now_ms)


@pytest.mark.parametrize(
    ("what", "came_to_be"),
    [
        (sessions_end, lambda ctx: ctx.state() == "Empty"),
        (revocation_ends, lambda ctx: [member.member_id for member in ctx.describe().members] == ["m2"]),
        (topic_vanishes, lambda ctx: ctx.state() == "NotReady" and ctx.fetch(None) == {}),
        (standbys_are_wanted, lambda ctx: all(each.target_assignment.standby_tasks for each in ctx.describe().members)),
    ],
)
def test_failed_records_are_written_after_recovery(
    what: Callable[[CoordinatorContext, ShardRunner], Any], came_to_be: Callable[[CoordinatorContext], bool]
) -> None:
    ctx, log = two_members(), RefusingLog()
    runner = ShardRunner(ctx.shard, log)
    before = ctx.shard.digest()
    log.refuses = True
    with pytest.raises(AppendFailed):
        list(what(ctx, runner))
    with pytest.raises(AppendFailed):
        list(caught_up(ctx, runner))
    assert ctx.shard.digest() == before
    log.refuses = False
    list(caught_up(ctx, runner, pause_ms=10_000 if what in (sessions_end, revocation_ends) else 0))
    if what is sessions_end:
        list(caught_up(ctx, runner))
    assert came_to_be(ctx)


def test_the_end_of_the_initial_delay_is_not_lost() -> None:
    ctx = CoordinatorContext(settings={"group.streams.initial.rebalance.delay.ms": 3_000})
    log = RefusingLog()
    runner = ShardRunner(ctx.shard, log)
    ctx.join("m1")
    log.refuses = True
    ctx.now_ms += 3_000
    with pytest.raises(AppendFailed):
        list(runner.fire_timers(now_ms=ctx.now_ms))
    assert ctx.state() == "Assigning"
    log.refuses = False
    list(runner.catch_up(ctx.image, now_ms=ctx.now_ms))
    list(runner.fire_timers(now_ms=ctx.now_ms))
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1, 2, 3)}


def test_the_end_of_the_assignment_interval_is_not_lost() -> None:
    ctx = CoordinatorContext(settings={"group.streams.assignment.interval.ms": 1_000})
    log = RefusingLog()
    runner = ShardRunner(ctx.shard, log)
    ctx.join("m1")
    ctx.join("m2")
    assert ctx.heartbeat("m1", 2).statuses == [5]
    log.refuses = True
    ctx.now_ms += 1_000
    with pytest.raises(AppendFailed):
        list(runner.fire_timers(now_ms=ctx.now_ms))
    log.refuses = False
    list(runner.catch_up(ctx.image, now_ms=ctx.now_ms))
    list(runner.fire_timers(now_ms=ctx.now_ms))
    assert ctx.heartbeat("m1", 2).active == {"0": (0, 1)}


def soft_state(ctx: CoordinatorContext) -> tuple[object, ...]:
    soft = ctx.shard.streams.soft_state("g")
    return soft.version, soft.endpoint_epoch, soft.shutdown_requested_by, dict(soft.task_offsets)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda ctx: ctx.request("m1", 2, endpoint=("host", 1)),
        lambda ctx: ctx.request("m1", 2, shutdown=True),
        lambda ctx: ctx.request("m1", 2, offsets={("0", 0): 5}),
        lambda ctx: ctx.request("m1", -1, shutdown=True),
        lambda ctx: ctx.request("m1", -1),
    ],
    ids=["endpoint", "shutdown", "task offsets", "leave with shutdown", "leave"],
)
def test_a_rule_changes_no_soft_state_before_its_records_are_written(
    request_of: Callable[[CoordinatorContext], Any],
) -> None:
    ctx = two_members()
    ctx.heartbeat("m1", 2, endpoint=("h", 9), offsets={("0", 1): 3})
    before = soft_state(ctx)
    result = ctx.shard.streams_group_heartbeat(request_of(ctx), ctx.context(), now_ms=ctx.now_ms)
    assert soft_state(ctx) == before
    ctx.apply(result)
    assert soft_state(ctx) != before
