"""Task offsets, and what heartbeats say about them and about client tags (Kafka 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.coordinator.coordinator_context import CoordinatorContext

from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import GroupSpec, Task, TasksTuple
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.shard import GroupCoordinatorShard

Offsets = Mapping[Task, int]
NONE: Offsets = {}
FIRST = {("0", 0): 10, ("0", 1): 20}


def described(ctx: CoordinatorContext, member_id: str = "m1") -> tuple[Offsets, Offsets]:
    (member,) = (each for each in ctx.describe().members if each.member_id == member_id)
    offsets, ends = (
        {(each.subtopology_id, each.partition): each.offset for each in listed}
        for listed in (member.task_offsets, member.task_end_offsets)
    )
    return offsets, ends


def test_offsets_are_kept_from_the_first_heartbeat_on() -> None:
    """Kafka 4.4 forgets those of a group's very first."""
    ctx = CoordinatorContext()
    ctx.join("m1", offsets=FIRST, end_offsets={("0", 0): 11})
    assert described(ctx) == (FIRST, {("0", 0): 11})


def test_a_list_takes_the_place_of_the_one_before_and_null_keeps_it() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", offsets=FIRST, end_offsets=FIRST)
    assert ctx.heartbeat("m1", 2).records == ()
    assert described(ctx) == (FIRST, FIRST)
    assert ctx.heartbeat("m1", 2, offsets={("0", 1): 21}).records == ()
    assert described(ctx) == ({("0", 1): 21}, FIRST)
    ctx.heartbeat("m1", 2, end_offsets=NONE)
    assert described(ctx) == ({("0", 1): 21}, NONE)


@pytest.mark.parametrize("name", ["task_offsets", "task_end_offsets"])
def test_a_task_that_is_listed_twice_is_refused_and_nothing_is_kept(name: str) -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", offsets=FIRST, end_offsets=FIRST)
    twice = ctx.request("m1", 2, offsets={("0", 3): 1}).task_offsets
    assert twice is not None
    values: dict[str, Any] = {"task_offsets": (), "task_end_offsets": (), name: (*twice, *twice)}
    request = replace(ctx.request("m1", 2), **values)
    with pytest.raises(CoordinatorError, match="duplicate entry for subtopology 0 and partition 3") as caught:
        ctx.shard.streams_group_heartbeat(request, ctx.context(), now_ms=ctx.now_ms)
    assert caught.value.code.name == "invalid_request"
    assert described(ctx) == (FIRST, FIRST)


def test_offsets_go_with_the_member_and_with_the_broker() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", offsets=FIRST)
    ctx.leave("m1")
    ctx.join("m1")
    assert described(ctx) == (NONE, NONE)
    ctx.heartbeat("m1", 4, offsets=FIRST)
    ctx.restart()
    assert described(ctx) == (NONE, NONE)


def test_a_static_members_offsets_are_those_of_its_last_life() -> None:
    ctx = CoordinatorContext()
    ctx.join("a1", instance_id="a", offsets=FIRST)
    ctx.heartbeat("a1", -2, instance_id="a")
    assert described(ctx, "a1") == (FIRST, NONE)
    ctx.join("a2", instance_id="a", offsets={("0", 2): 5})
    assert described(ctx, "a2") == ({("0", 2): 5}, NONE)


class Spy(StickyTaskAssignor):
    """The assignor, and what it was shown last."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: GroupSpec | None = None

    def assign(self, group: GroupSpec) -> Mapping[str, TasksTuple]:
        self.seen = group
        return super().assign(group)


def test_assignor_sees_task_offsets_of_the_current_heartbeat() -> None:
    spy = Spy()
    ctx = CoordinatorContext()
    ctx.shard = GroupCoordinatorShard(0, ctx.configuration, ctx.image, assignor=spy)
    ctx.join("m1", offsets=FIRST)
    assert spy.seen is not None
    assert spy.seen.members["m1"].task_offsets == FIRST
    ctx.join("m2", offsets={("0", 3): 1}, end_offsets={("0", 3): 2})
    assert (spy.seen.members["m1"].task_offsets, spy.seen.members["m2"].task_offsets) == (FIRST, {("0", 3): 1})
    assert spy.seen.members["m2"].task_end_offsets == {("0", 3): 2}
    ctx.leave("m2")
    ctx.sleep(0)
    assert list(spy.seen.members) == ["m1"]
    assert spy.seen.members["m1"].task_offsets == FIRST, "by the timer, too"


def test_answers_tell_how_often_offsets_are_wanted_and_which_lag_is_none() -> None:
    ctx = CoordinatorContext()
    joined = ctx.join("m1").response
    assert (joined.task_offset_interval.total_seconds(), joined.acceptable_recovery_lag) == (60, 10_000)
    left = ctx.leave("m1").response
    assert (left.task_offset_interval.total_seconds(), left.acceptable_recovery_lag) == (0, -1)


# --- client tags ---


class Tagged(CoordinatorContext):
    """A group whose standbys are to be spread by zone and rack."""

    def __post_init__(self) -> None:
        super().__post_init__()
        configuration = self.configuration

        class WithTags(type(configuration)):  # type: ignore[misc]
            def for_streams_group(self, group_id: str) -> Any:
                found = configuration.for_streams_group(group_id)
                return replace(found, rack_aware_assignment_tags=("zone", "rack"))

        self.configuration = WithTags()
        self.shard = GroupCoordinatorShard(0, self.configuration, self.image)


def test_missing_client_tags_are_told_from_version_1_on() -> None:
    ctx = Tagged()
    joined = ctx.join("m1", api_version=1, client_tags=(("rack", "r"),))
    (status,) = joined.response.status
    assert status.status_code == 6
    assert status.status_detail == (
        "Missing required client tags for rack-aware standby assignment: [zone]. Configure them via "
        "'client.tag.<tagKey>' in your Streams config."
    )
    assert ctx.heartbeat("m1", 2).statuses == []
    assert ctx.heartbeat("m1", 2, api_version=1).statuses == [6]
    both = (("rack", "r"), ("zone", "z"))
    assert ctx.heartbeat("m1", 2, api_version=1, client_tags=both).statuses == []


def test_the_tags_are_stored_with_the_group() -> None:
    outcome = Tagged().join("m1")
    values: list[Any] = [each.value for each in outcome.records if type(each.key).__name__ == "StreamsGroupMetadataKey"]
    (value,) = values
    assert value.last_assignment_configs == (
        ("num.standby.replicas", "0"),
        ("rack.aware.assignment.tags", "zone,rack"),
    )


def test_all_statuses_come_in_kafkas_order() -> None:
    ctx = Tagged(topics={}, settings={"group.streams.initial.rebalance.delay.ms": 0})
    ctx.join("m1", api_version=1, shutdown=True)
    outcome = ctx.heartbeat("m1", 2, api_version=1)
    assert outcome.statuses == [1, 4, 6]
