"""Kept descriptions of members equal those made anew, while members join, move tasks, report offsets and leave."""

from __future__ import annotations

import pytest

from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams_groups import DescribedMembers
from headrace.simulator.streams_chaos import StreamsChaos
from headrace.simulator.streams_world import StreamsWorld

CONTEXT = RequestContext(token=0, client_id="", client_host="/", api_version=1)


@pytest.mark.parametrize("seed", range(4))
def test_kept_descriptions_equal_new_ones(seed: int) -> None:
    world = StreamsWorld(seed)
    StreamsChaos(world, world.random)
    for _ in range(3):
        world.start_application()
    kept, compared = DescribedMembers(), 0
    for _ in range(150):
        world.advance(100)
        group = world.broker.shard.group(world.group_id)
        if world.broker.is_up and isinstance(group, StreamsGroup):
            offsets = world.broker.shard.streams.soft_state(world.group_id).task_offsets
            assert kept.of(group, offsets) == DescribedMembers().of(group, offsets)
            (described,) = world.broker.shard.streams_group_describe([world.group_id], CONTEXT)
            assert described.members == DescribedMembers().of(group, offsets)
            compared += bool(group.members)
    assert compared > 50


def test_a_description_is_kept_while_nothing_changes() -> None:
    world = StreamsWorld(1)
    world.start_application()
    world.advance(10_000)
    (before,) = world.broker.shard.streams_group_describe([world.group_id], CONTEXT)
    (after,) = world.broker.shard.streams_group_describe([world.group_id], CONTEXT)
    assert len(before.members) == 1
    assert before.members[0] is after.members[0]
