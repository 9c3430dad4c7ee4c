"""The memo of a steady heartbeat: when there is one, and everything that ends it. One group of two members, settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext

from headrace.coordinator.streams.heartbeat import RepeatableHeartbeat

SESSION_MS = 45_000


def settled(**settings: Any) -> CoordinatorContext:
    """m1 has epoch 3 and tasks 0 and 1, m2 the others; both have acknowledged."""
    ctx = CoordinatorContext(settings=settings)
    ctx.join("m1", endpoint=("one", 1))
    ctx.heartbeat("m1", 2)
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    ctx.heartbeat("m2", 3)
    ctx.heartbeat("m2", 3)
    assert ctx.state() == "Stable"
    return ctx


def remembered(ctx: CoordinatorContext, member_id: str, epoch: int, **given: Any) -> RepeatableHeartbeat | None:
    """A heartbeat's memo, as the broker would keep it."""
    request = ctx.request(member_id, epoch, **given)
    result = ctx.shard.streams_group_heartbeat(request, ctx.context(), now_ms=ctx.now_ms)
    ctx.apply(result)
    assert result.repeatable is None or isinstance(result.repeatable, RepeatableHeartbeat)
    return result.repeatable


def steady(ctx: CoordinatorContext) -> RepeatableHeartbeat:
    memo = remembered(ctx, "m1", 3)
    assert memo is not None
    assert memo.renew(ctx.now_ms)
    return memo


def test_changing_heartbeat_is_not_memoized_but_the_next_one_is() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    assert remembered(ctx, "m1", 2, endpoint=("one", 1)) is None
    assert remembered(ctx, "m1", 3) is not None


def test_a_repeated_answer_keeps_the_session_alive() -> None:
    ctx = settled()
    memo = steady(ctx)
    for _ in range(4):
        ctx.sleep(SESSION_MS - 1)
        assert remembered(ctx, "m2", 3) is not None
        assert memo.renew(ctx.now_ms)
    assert ctx.state() == "Stable"
    assert {member.member_id for member in ctx.describe().members} == {"m1", "m2"}


def test_session_timeout_counts_from_the_last_memoized_answer() -> None:
    ctx = settled()
    memo = steady(ctx)
    ctx.sleep(SESSION_MS - 1)
    ctx.heartbeat("m2", 3)
    assert memo.renew(ctx.now_ms)
    ctx.sleep(SESSION_MS - 1)
    assert {member.member_id for member in ctx.describe().members} == {"m1", "m2"}
    ctx.heartbeat("m2", 3)
    ctx.sleep(1)
    assert {member.member_id for member in ctx.describe().members} == {"m2"}
    assert not memo.renew(ctx.now_ms)


def test_committed_offsets_do_not_end_it() -> None:
    ctx = settled()
    memo = steady(ctx)
    assert ctx.commit({("in", 0): 5}, "m1", 3) == {("in", 0): "none"}
    assert memo.renew(ctx.now_ms)


def another_joins(ctx: CoordinatorContext) -> None:
    ctx.join("m3")


def another_leaves(ctx: CoordinatorContext) -> None:
    ctx.leave("m2")


def it_leaves(ctx: CoordinatorContext) -> None:
    ctx.leave("m1")


def another_is_fenced(ctx: CoordinatorContext) -> None:
    ctx.sleep(SESSION_MS // 2)
    ctx.heartbeat("m1", 3)
    ctx.sleep(SESSION_MS // 2 + 1)


def another_gets_an_endpoint(ctx: CoordinatorContext) -> None:
    ctx.heartbeat("m2", 3, endpoint=("two", 2))


def it_moves_to_another_address(ctx: CoordinatorContext) -> None:
    ctx.shard.streams_group_heartbeat(ctx.request("m1", 3), ctx.context(host="/10.0.0.9"), now_ms=ctx.now_ms)
    ctx.heartbeat("m1", 3, host="/10.0.0.9")


def somebody_requests_a_shutdown(ctx: CoordinatorContext) -> None:
    ctx.heartbeat("m2", 3, shutdown=True)


def somebody_reports_task_offsets(ctx: CoordinatorContext) -> None:
    ctx.heartbeat("m2", 3, offsets={("0", 2): 7}, end_offsets={("0", 2): 9}, api_version=1)


def a_source_topic_grows(ctx: CoordinatorContext) -> None:
    ctx.set_topics({"in": 6})


def any_topic_appears(ctx: CoordinatorContext) -> None:
    ctx.set_topics({"in": 4, "elsewhere": 1})


def a_source_topic_vanishes(ctx: CoordinatorContext) -> None:
    ctx.set_topics({})


def the_standbys_change(ctx: CoordinatorContext) -> None:
    ctx.set_group_settings({"streams.num.standby.replicas": "1"})


def the_heartbeat_interval_changes(ctx: CoordinatorContext) -> None:
    ctx.set_group_settings({"streams.heartbeat.interval.ms": "6000"})


def the_shard_is_armed_anew(ctx: CoordinatorContext) -> None:
    """What the runner does after the disk had refused a timer's records."""
    ctx.apply(ctx.shard.on_loaded(now_ms=ctx.now_ms))


CHANGES: list[Callable[[CoordinatorContext], None]] = [
    another_joins,
    another_leaves,
    it_leaves,
    another_is_fenced,
    another_gets_an_endpoint,
    it_moves_to_another_address,
    somebody_requests_a_shutdown,
    somebody_reports_task_offsets,
    a_source_topic_grows,
    any_topic_appears,
    a_source_topic_vanishes,
    the_standbys_change,
    the_heartbeat_interval_changes,
    the_shard_is_armed_anew,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_ends_it(change: Callable[[CoordinatorContext], None]) -> None:
    ctx = settled()
    memo = steady(ctx)
    change(ctx)
    assert not memo.renew(ctx.now_ms)


def test_a_memo_that_ended_arms_no_session() -> None:
    ctx = settled()
    memo = steady(ctx)
    somebody_requests_a_shutdown(ctx)
    ctx.sleep(SESSION_MS - 10)
    ctx.heartbeat("m2", 3)
    assert not memo.renew(ctx.now_ms)
    ctx.sleep(10)
    assert {member.member_id for member in ctx.describe().members} == {"m2"}


def test_an_assignment_that_is_due_later_is_not_waited_for_with_a_memo() -> None:
    ctx = CoordinatorContext(settings={"group.streams.assignment.interval.ms": 1_000})
    ctx.join("m1")
    ctx.heartbeat("m1", 2)
    assert remembered(ctx, "m1", 2) is not None
    ctx.join("m2")
    delayed = ctx.heartbeat("m1", 2)
    assert delayed.statuses == [5]
    assert remembered(ctx, "m1", 2) is None
    ctx.sleep(1_000)
    assert ctx.heartbeat("m1", 2).active == {"0": (0, 1)}


def test_the_initial_delay_is_not_waited_for_with_a_memo() -> None:
    ctx = CoordinatorContext(settings={"group.streams.initial.rebalance.delay.ms": 3_000})
    epoch = ctx.join("m1").epoch
    for _ in range(3):
        ctx.sleep(100)
        assert remembered(ctx, "m1", epoch) is None
    ctx.sleep(3_000)
    assert ctx.heartbeat("m1", epoch).active == {"0": (0, 1, 2, 3)}


def test_topics_that_have_to_be_created_are_asked_for_with_every_heartbeat() -> None:
    ctx = CoordinatorContext()
    epoch = ctx.join("m1", topology=STATEFUL).epoch
    for _ in range(3):
        request = ctx.request("m1", epoch)
        result = ctx.shard.streams_group_heartbeat(request, ctx.context(), now_ms=ctx.now_ms)
        epoch = ctx.apply(result).epoch
        assert [topic.name for topic in result.topics_to_create] == ["cl"]
        assert result.repeatable is None


def test_restarted_shard_ignores_earlier_memos() -> None:
    ctx = settled()
    memo = steady(ctx)
    ctx.restart()
    ctx.sleep(SESSION_MS - 1)
    ctx.heartbeat("m2", 3)
    memo.renew(ctx.now_ms)  # whoever kept it died with the broker; the new shard's session does not listen to it
    ctx.sleep(1)
    assert {member.member_id for member in ctx.describe().members} == {"m2"}


def test_a_group_that_was_deleted_and_made_again_is_another_one() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    memo = remembered(ctx, "m1", 2)
    assert memo is not None
    ctx.leave("m1")
    assert ctx.delete_groups("g") == {"g": "none"}
    ctx.join("m1")
    ctx.heartbeat("m1", 2)
    assert not memo.renew(ctx.now_ms)
