"""Random topologies while random topics appear, vanish, grow and are made anew: the group follows, whoever asks.

After every change of the topics, without any heartbeat: the group is NotReady exactly when a member would be told why;
the target has exactly the tasks that there are; a coordinator that has just been loaded says the same as the one that
saw it all.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.coordinator.coordinator_context import CoordinatorContext, topology
from tests.coordinator.streams.test_topics_twin import MOST, random_case

from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

INVALID = -1
NOT_READY = {INVALID, 1, 2, 3}


def changed(random: Random, topics: dict[str, int], known: list[str]) -> tuple[dict[str, int], list[str]]:
    """The topics after one change, and those that were made anew."""
    name, kind = random.choice(known), random.random()
    if name not in topics:
        return {**topics, name: random.randint(1, MOST)}, []
    if kind < 0.2:
        return {other: count for other, count in topics.items() if other != name}, []
    if kind < 0.4:
        return {**topics, name: random.randint(1, MOST)}, [name]
    return {**topics, name: topics[name] + random.choice([1, topics[name]])}, []


def target(ctx: CoordinatorContext) -> set[tuple[str, int]]:
    (member,) = ctx.describe().members
    return {(each.subtopology_id, p) for each in member.target_assignment.active_tasks for p in each.partitions}


def tasks(ctx: CoordinatorContext) -> set[tuple[str, int]]:
    """What the coordinator's own configured topology has."""
    group = ctx.shard._registry.streams_group("g")
    assert group.topology is not None
    configured = ctx.shard.streams.soft_state("g").configured_topology(group, group.topology, ctx.image)
    if not configured.is_ready:
        return set()
    return {(each.subtopology_id, p) for each in configured.subtopologies.values() for p in range(each.tasks)}


def told(ctx: CoordinatorContext) -> tuple[Any, set[int], Any]:
    """What the member hears at its next beat, owning what it was given: epoch, status codes, tasks."""
    (member,) = ctx.describe().members
    owned = {each.subtopology_id: each.partitions for each in member.assignment.active_tasks}
    try:
        response = ctx.heartbeat("m1", member.member_epoch, active=owned).response
    except CoordinatorError as error:  # it cannot be configured, which shows when its source topics are there
        return error.code, {INVALID} if error.code is ErrorCode.streams_invalid_topology else set(), None
    return response.member_epoch, {int(status.status_code) for status in response.status}, response.active_tasks


@pytest.mark.parametrize("block", range(4))
def test_the_group_follows_its_topics(block: int) -> None:
    states = set()
    for seed in range(block * 80, block * 80 + 80):
        random = Random(seed)
        subtopologies, topics = random_case(random)
        ctx = CoordinatorContext(topics=topics)
        try:
            ctx.join("m1", topology=topology(*subtopologies))
        except CoordinatorError:
            continue
        known = sorted({*topics, *(name for name in ("a", "b", "c", "r", "s", "t", "log0", "log1"))})
        for _ in range(8):
            if random.random() < 0.5:  # as the broker does it for the member
                group = ctx.shard._registry.streams_group("g")
                assert group.topology is not None
                configured = ctx.shard.streams.soft_state("g").configured_topology(group, group.topology, ctx.image)
                topics |= {topic.name: topic.partitions for topic in configured.topics_to_create}
                ctx.set_topics(topics)
            topics, renewed = changed(random, topics, known)
            ctx.set_topics(topics, renewed=renewed)
            assert list(ctx.shard.on_metadata_image(ctx.image, now_ms=ctx.now_ms)) == [], f"seed {seed}: once is enough"
            state = ctx.state()
            assert target(ctx) == tasks(ctx), f"seed {seed}"
            loaded = CoordinatorContext(topics=topics)
            loaded.image, loaded.log = ctx.image, list(ctx.log)
            loaded.restart()
            heard = told(ctx)
            assert told(loaded) == heard, f"seed {seed}: a loaded coordinator says something else"
            assert (state == "NotReady") == bool(heard[1] & NOT_READY), f"seed {seed}: {state}, {heard}"
            states.add(state)
    assert {"NotReady", "Reconciling", "Stable"} <= states
