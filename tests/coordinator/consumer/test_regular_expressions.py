"""Regular expressions of subscriptions: resolved beside the answer, in portions, and again."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.coordinator.consumer.consumer_histories import CONTEXT, GROUP, World
from tests.coordinator.consumer.heartbeat_scripts import world

from headrace.coordinator.records.schemas import (
    ConsumerGroupMetadataKey,
)
from headrace.coordinator.result import CoordinatorResult
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as m


def by_regex(w: World, regex: str, **given: Any) -> CoordinatorResult:
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=GROUP,  # type: ignore[arg-type]
        member_id="a",
        member_epoch=0,  # type: ignore[arg-type]
        rebalance_timeout=from_ms(5_000),
        subscribed_topic_regex=regex,
        topic_partitions=(),
    )
    return w.apply(w.shard.consumer_group_heartbeat(request, CONTEXT, now_ms=w.now_ms, **given))


def topics_of(w: World) -> list[str]:
    group = w.group()
    assert group is not None
    return sorted(name for value in group.subscriptions.resolved.values() for name in value.topics)


def test_topics_are_looked_at_behind_the_answer() -> None:
    w = world({"logs-a": 1, "logs-b": 2, "in": 1})
    assert not by_regex(w, "logs-.*").replies[0].response.assignment.topic_partitions  # type: ignore[attr-defined]
    w.sleep(0)
    assert topics_of(w) == ["logs-a", "logs-b"]
    answer = w.beat("a", 1)
    assert (answer.member_epoch, len(answer.assignment.topic_partitions)) == (2, 2)


def test_topics_that_may_not_be_described_are_not_there() -> None:
    w = world({"logs-a": 1, "logs-b": 2})
    by_regex(w, ".*", may_describe=lambda name: name != "logs-a")
    w.sleep(0)
    assert topics_of(w) == ["logs-b"]


def test_a_new_topic_is_found_ten_seconds_after_the_last_look() -> None:
    w = world({"logs-a": 1})
    by_regex(w, "logs-.*")
    w.sleep(5_000)
    w.create("logs-b", 1)
    w.beat("a", 1)
    w.sleep(5_000)
    assert topics_of(w) == ["logs-a"]
    w.sleep(1)
    w.beat("a", 2)
    w.sleep(0)
    assert topics_of(w) == ["logs-a", "logs-b"]


def test_a_hostile_expression_is_done_in_portions_and_given_up() -> None:
    random = Random(1)
    w = world({f"{number}-{''.join(random.choices('ab', k=200))}": 1 for number in range(40)})
    by_regex(w, "[0-9]*-(a|b)*a(a|b){900}.*")
    events, portions = [], 0
    for _ in range(5_000):
        deadline_ms = w.shard.next_deadline_ms()
        assert deadline_ms is not None
        if deadline_ms > w.now_ms + 1_000:
            break
        w.now_ms = max(w.now_ms, deadline_ms)
        portions += 1
        for result in w.shard.on_timers(now_ms=w.now_ms):
            events += [event.name for event in w.apply(result).events]
        if w.now_ms % 50 == 0:
            w.beat("a", 1)
    assert "RegularExpressionGivenUp" in events
    assert portions > 10
    assert topics_of(w) == []


def test_a_look_that_the_log_refused_is_made_again() -> None:
    w = world({"logs-a": 1})
    by_regex(w, "logs-.*")
    lost = list(w.shard.on_timers(now_ms=w.now_ms))  # the runner could not append them
    assert [type(record.key) for record in lost[0].records][-1] is ConsumerGroupMetadataKey
    assert topics_of(w) == []
    w.apply(w.shard.on_loaded(now_ms=w.now_ms))
    w.beat("a", 1)
    w.sleep(0)
    assert topics_of(w) == ["logs-a"]
