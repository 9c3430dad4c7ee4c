"""Topics appear, vanish, grow, are made anew: NotReady is entered and left by the metadata, and growth stops nobody."""

from __future__ import annotations

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext, Outcome, subtopology, topology

from headrace.coordinator.result import CoordinatorResult
from headrace.protocol.messages import streams_group_heartbeat_request as m

TWO_STEPS = topology(
    subtopology("0", sources=("in",), sinks=("rep",)),
    subtopology("1", sources=(), repartitions=("rep",), changelogs=("cl",)),
)
STALE, MISSING_SOURCE, WRONG_COUNT, MISSING_INTERNAL = 0, 1, 2, 3


def running(topics: dict[str, int], given: m.Topology = STATEFUL) -> CoordinatorContext:
    ctx = CoordinatorContext(topics=topics)
    ctx.join("m1", topology=given)
    assert ctx.state() == "Stable"
    return ctx


def test_a_stateful_application_keeps_its_tasks_when_its_source_grows() -> None:
    ctx = running({"in": 2, "cl": 2})
    records = ctx.set_topics({"in": 4, "cl": 2})
    assert [type(record.key).__name__ for record in records] == [
        "StreamsGroupMetadataKey",
        "StreamsGroupTargetAssignmentMetadataKey",
    ]
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.active, outcome.epoch, outcome.statuses, ctx.state()) == (None, 3, [STALE], "Stable")
    assert outcome.response.status[0].status_detail == (
        "Source topics have grown beyond the state of their readers: partitions 2 to 3 of in are not read by the 2 "
        "tasks of subtopology 0. Nothing else is affected. Changelog topics with as many partitions let them be read, "
        "but keys that moved begin with empty state."
    )


def test_a_count_that_is_no_multiple_moves_keys_between_the_old_partitions() -> None:
    ctx = running({"in": 2, "cl": 2})
    ctx.set_topics({"in": 3, "cl": 2})
    assert "subtopology 0, and keys move between those that are read." in (
        ctx.heartbeat("m1", 2).response.status[0].status_detail
    )


def test_many_grown_topics_are_counted() -> None:
    names = [f"in{number}" for number in range(5)]
    ctx = running({**dict.fromkeys(names, 1), "cl": 1}, topology(subtopology(sources=names, changelogs=("cl",))))
    ctx.set_topics({**dict.fromkeys(names, 2), "cl": 1})
    detail = ctx.heartbeat("m1", 2).response.status[0].status_detail
    assert all((f" of {name} " in detail) is (name < "in3") for name in names)
    assert "; and 2 more." in detail


def test_the_operator_decides_that_all_is_read() -> None:
    ctx = running({"in": 2, "cl": 2})
    ctx.set_topics({"in": 4, "cl": 2})
    ctx.heartbeat("m1", 2)
    ctx.set_topics({"in": 4, "cl": 4})
    outcome = ctx.heartbeat("m1", 3)
    assert (outcome.active, outcome.statuses) == ({"0": (0, 1, 2, 3)}, [])


def test_retained_tasks_survive_coordinator_and_application_restarts() -> None:
    ctx = running({"in": 2, "cl": 2})
    ctx.set_topics({"in": 4, "cl": 2})
    ctx.heartbeat("m1", 2)
    ctx.restart()
    outcome = ctx.heartbeat("m1", 3)
    assert (outcome.records, outcome.statuses) == ((), [STALE])
    ctx.leave("m1")
    assert ctx.state() == "Empty"
    ctx.restart()
    outcome = ctx.join("m2", topology=STATEFUL)
    assert (outcome.active, outcome.statuses) == ({"0": (0, 1)}, [STALE])


def test_first_start_with_an_unfitting_changelog_is_refused() -> None:
    ctx = CoordinatorContext(topics={"in": 4, "cl": 2})
    outcome = ctx.join("m1", topology=STATEFUL)
    assert (outcome.active, outcome.statuses, ctx.state()) == ({}, [WRONG_COUNT], "NotReady")


def test_stateless_readers_take_new_partitions_of_a_grown_source() -> None:
    ctx = running({"in": 2, "rep": 2, "cl": 2}, TWO_STEPS)
    ctx.set_topics({"in": 3, "rep": 2, "cl": 2})
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.active, outcome.statuses) == ({"0": (0, 1, 2), "1": (0, 1)}, [])
    assert [len(each.repartition_source_topics) for each in ctx.describe().topology.subtopologies] == [0, 1]
    assert ctx.describe().topology.subtopologies[1].repartition_source_topics[0].partitions == 2


def test_joined_topics_grow_one_after_the_other() -> None:
    joined = topology(subtopology(sources=("a", "b"), changelogs=("cl",), copartitions=(((0, 1), ()),)))
    ctx = running({"a": 2, "b": 2, "cl": 2}, joined)
    for topics in ({"a": 4, "b": 2, "cl": 2}, {"a": 4, "b": 4, "cl": 2}):
        ctx.set_topics(topics)
        outcome = ctx.heartbeat("m1", ctx.describe().members[0].member_epoch)
        assert (outcome.active, outcome.statuses) == (None, [STALE])
    ctx.set_topics({"a": 4, "b": 4, "cl": 4})
    assert ctx.heartbeat("m1", 4).active == {"0": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"in": 4, "rep": 4, "cl": 2}, "Existing topic cl has different number of partitions: expected 4, found 2"),
        ({"in": 2, "rep": 4, "cl": 2}, "Existing topic rep has different number of partitions: expected 2, found 4"),
        ({"in": 2, "rep": 1, "cl": 1}, "Existing topic rep has different number of partitions: expected 2, found 1"),
        ({"in": 2, "rep": 2, "cl": 1}, "Existing topic cl has different number of partitions: expected 2, found 1"),
        ({"in": 2, "rep": 2, "cl": 4}, "Existing topic cl has different number of partitions: expected 2, found 4"),
        ({"in": 1, "rep": 2, "cl": 2}, "Existing topic rep has different number of partitions: expected 1, found 2"),
    ],
)
def test_anything_else_than_a_grown_source_stops_the_group(changed: dict[str, int], detail: str) -> None:
    """Otherwise records that the application itself wrote would not be read, or state would be missing."""
    ctx = running({"in": 2, "rep": 2, "cl": 2}, TWO_STEPS)
    ctx.set_topics(changed, renewed=("in", "rep", "cl"))
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.active, outcome.statuses, ctx.state()) == ({}, [WRONG_COUNT], "NotReady")
    assert outcome.response.status[0].status_detail == detail


def test_topics_vanish_and_appear_and_the_group_follows_by_itself() -> None:
    ctx = running({"in": 2, "cl": 2})
    ctx.commit({("in", 0): 5}, "m1", 2)
    assert ctx.set_topics({"cl": 2})
    assert ctx.state() == "NotReady"
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.active, outcome.statuses) == ({}, [MISSING_SOURCE])
    assert ctx.heartbeat("m1", 2, active={}).epoch == 3
    assert ctx.set_topics({"in": 2, "cl": 2})
    assert ctx.state() == "Reconciling"
    assert ctx.heartbeat("m1", 3).active == {"0": (0, 1)}
    assert ctx.fetch(None) == {}, "offsets of the deleted topic are gone"


def test_an_internal_topic_that_vanished_is_asked_for_again() -> None:
    ctx = running({"in": 2, "cl": 2})
    ctx.set_topics({"in": 2})
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.active, outcome.statuses, ctx.state()) == ({}, [MISSING_INTERNAL], "NotReady")
    assert [(topic.name, topic.partitions) for topic in outcome.topics_to_create] == [("cl", 2)]
    ctx.heartbeat("m1", 2, active={})
    ctx.set_topics({"in": 2, "cl": 2})
    assert ctx.heartbeat("m1", 3).active == {"0": (0, 1)}


def test_a_topic_made_anew_is_a_new_epoch_and_nothing_moves() -> None:
    ctx = running({"in": 2, "cl": 2})
    assert ctx.set_topics({"in": 2, "cl": 2}, renewed=("in",))
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.epoch, outcome.active, outcome.statuses, ctx.state()) == (3, None, [], "Stable")


def test_a_topic_nobody_needs_is_nothing_to_the_group() -> None:
    ctx = running({"in": 2, "cl": 2})
    assert ctx.set_topics({"in": 2, "cl": 2, "other": 3}) == []


def test_a_topic_nobody_needs_configures_nothing_anew() -> None:
    ctx = running({"in": 2, "cl": 2})
    soft = ctx.shard.streams._soft["g"]
    group = ctx.shard._registry.streams_group("g")
    assert group.topology is not None
    before = soft.configured_topology(group, group.topology, ctx.image)
    ctx.set_topics({"in": 2, "cl": 2, "other": 3})
    assert soft.configured_topology(group, group.topology, ctx.image) is before
    ctx.set_topics({"in": 2, "cl": 2, "other": 3}, renewed=("in",))
    assert soft.configured_topology(group, group.topology, ctx.image) is not before


def test_grown_topic_is_announced_without_task_movement() -> None:
    given = topology(subtopology(sources=("wide", "narrow"), changelogs=("cl",)))
    ctx = CoordinatorContext(topics={"wide": 3, "narrow": 1, "cl": 3})
    ctx.join("m1", topology=given, endpoint=("here", 1))
    epoch = ctx.heartbeat("m1", 2).response.endpoint_information_epoch
    assert ctx.heartbeat("m1", 2, endpoint_information_epoch=epoch).response.partitions_by_user_endpoint is None
    ctx.set_topics({"wide": 3, "narrow": 2, "cl": 3})
    response = ctx.heartbeat("m1", 2, endpoint_information_epoch=epoch).response
    (served,) = response.partitions_by_user_endpoint
    assert {each.topic: each.partitions for each in served.active_partitions} == {"narrow": (0, 1), "wide": (0, 1, 2)}


def test_logged_topic_changes() -> None:
    ctx = CoordinatorContext(topics={"cl": 2})
    events: list[tuple[str, str]] = []
    apply = ctx.apply

    def noted(result: CoordinatorResult) -> Outcome:
        events.extend((each.name, dict(each.details).get("status", "")) for each in result.events)
        return apply(result)

    ctx.apply = noted  # type: ignore[method-assign]

    def told() -> list[tuple[str, str]]:
        of_topics = [event for event in events if event[0].startswith(("Topology", "Source"))]
        events.clear()
        return of_topics

    ctx.join("m1", topology=STATEFUL)
    assert told() == [("TopologyNotReady", "MISSING_SOURCE_TOPICS")]
    ctx.heartbeat("m1", 2)
    ctx.join("m2", topology=STATEFUL)
    assert told() == []
    ctx.set_topics({"in": 2, "cl": 2})
    assert told() == [("TopologyReady", "")]
    ctx.set_topics({"in": 4, "cl": 2})
    assert told() == [("SourceTopicsOutgrown", "STALE_TOPOLOGY")]
    ctx.join("m3", topology=STATEFUL)
    assert told() == []
    ctx.set_topics({"in": 4})
    assert told() == [("TopologyNotReady", "MISSING_INTERNAL_TOPICS")]
