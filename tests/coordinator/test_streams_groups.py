"""Streams groups as they are described and listed."""

from __future__ import annotations

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext


def test_describing_a_group() -> None:
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2})
    ctx.join("m1", topology=STATEFUL, endpoint=("h", 1), client_tags=(("zone", "a"),))
    group = ctx.describe()
    (member,) = group.members
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    (described,) = group.topology.subtopologies
    assert [(topic.name, topic.partitions) for topic in described.state_changelog_topics] == [("cl", 2)]
    assert (member.process_id, member.client_host, member.user_endpoint.port) == ("p-m1", "/127.0.0.1", 1)
    assert member.assignment.active_tasks == member.target_assignment.active_tasks
    assert ctx.describe("absent").error_code.name == "group_id_not_found"


def test_a_joiner_sees_its_target_at_once() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    target = {each.member_id: each.target_assignment.active_tasks[0].partitions for each in ctx.describe().members}
    assert target == {"m1": (0, 1), "m2": (2, 3)}


@pytest.mark.parametrize("state", ["NotReady", "not_ready", "NOT_READY", "notready"])
def test_filters_find_a_group_that_is_not_ready(state: str) -> None:
    ctx = CoordinatorContext(topics={})
    ctx.join("m1")
    assert [group.group_id for group in ctx.shard.list_groups([state])] == ["g"]
    assert [group.group_id for group in ctx.shard.list_groups([state], ["Streams"])] == ["g"]
    assert ctx.shard.list_groups(["Stable"]) == ctx.shard.list_groups([], ["classic"]) == ()
