"""Topology + topics → subtopologies with counts, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest
from tests.coordinator.coordinator_context import subtopology, topology

from headrace.coordinator.metadata_image import MetadataImage, TopicImage, group_hash
from headrace.coordinator.streams.configured_topology import (
    ConfiguredTopology,
    configure_topology,
    required_topics,
)
from headrace.coordinator.streams.heartbeat_messages import topology_of
from headrace.protocol.messages import streams_group_heartbeat_request as m


def configured(topics: Mapping[str, int], *subtopologies: m.Subtopology) -> ConfiguredTopology:
    return configure_topology(topology_of(topology(*subtopologies, epoch=7)), image(topics))


def image(topics: Mapping[str, int]) -> MetadataImage:
    return MetadataImage(
        topics={
            name: TopicImage(name=name, topic_id=UUID(int=number + 1), partitions=partitions)
            for number, (name, partitions) in enumerate(topics.items())
        }
    )


def tasks(topology: ConfiguredTopology) -> dict[str, int]:
    return {name: each.tasks for name, each in topology.subtopologies.items()}


def asked_for(topology: ConfiguredTopology) -> dict[str, int]:
    return {topic.name: topic.partitions for topic in topology.topics_to_create}


def two_steps(*, count: int = 0) -> list[m.Subtopology]:
    """ "in" is written to "rep", which is counted into "cl"."""
    return [
        subtopology("0", sources=("in",), sinks=("rep",)),
        subtopology("1", sources=(), repartitions=(("rep", count),), changelogs=("cl",)),
    ]


def test_tasks_follow_the_largest_input() -> None:
    result = configured({"a": 3, "b": 5}, subtopology(sources=("a", "b")))
    assert (result.is_ready, result.validated_epoch, tasks(result)) == (True, 7, {"0": 5})
    assert result.subtopologies["0"].inputs == (("a", 3), ("b", 5))


def test_an_empty_topology_is_ready() -> None:
    result = configure_topology(topology_of(m.Topology(epoch=0, subtopologies=())), image({}))
    assert (result.is_ready, result.metadata_hash, tasks(result)) == (True, 0, {})


def test_missing_sources_are_named() -> None:
    result = configured({"b": 1}, subtopology(sources=("c", "b", "a")))
    assert result.status is not None
    assert (int(result.status.code), result.status.detail) == (1, "Source topics a, c are missing.")
    assert (result.validated_epoch, tasks(result)) == (-1, {})


def test_sink_topics_are_not_required_as_in_kafka() -> None:
    """KIP-1071 declares sources and internal topics only; a sink of the application is not in the request, and the
    name of a repartition sink that no subtopology reads is neither checked nor created."""
    writes = subtopology("0", sources=("in",), sinks=("out",), changelogs=("cl",))
    result = configured({"in": 4, "cl": 4}, writes)
    assert (result.is_ready, tasks(result), asked_for(result)) == (True, {"0": 4}, {})
    assert required_topics(topology_of(topology(writes))) == ("cl", "in")
    # One that is read is an internal topic, and required.
    reads = subtopology("1", sources=(), repartitions=("out",))
    waiting = configured({"in": 4, "cl": 4}, writes, reads)
    assert (waiting.is_ready, asked_for(waiting)) == (False, {"out": 4})


def test_repartition_counts_come_from_upstream_or_as_given() -> None:
    derived = configured({"in": 4}, *two_steps())
    assert (tasks(derived), asked_for(derived)) == ({"0": 4, "1": 4}, {"rep": 4, "cl": 4})
    given = configured({"in": 4}, *two_steps(count=9))
    assert (tasks(given), asked_for(given)) == ({"0": 4, "1": 9}, {"rep": 9, "cl": 9})


def test_repartition_counts_through_several_steps() -> None:
    result = configured(
        {"in": 6},
        subtopology("2", sources=(), repartitions=("second",)),
        subtopology("1", sources=(), repartitions=("first",), sinks=("second",)),
        subtopology("0", sources=("in",), sinks=("first",)),
    )
    assert asked_for(result) == {"first": 6, "second": 6}


def test_a_repartition_topic_waits_for_all_that_flows_into_it() -> None:
    steps = [
        subtopology("0", sources=("in",), sinks=("first",)),
        subtopology("1", sources=("side",), repartitions=("first",), sinks=("second",)),
        subtopology("2", sources=(), repartitions=("second",)),
    ]
    for ordered in (steps, steps[::-1]):
        assert asked_for(configured({"in": 3, "side": 2}, *ordered)) == {"first": 3, "second": 3}


def test_a_circle_of_repartition_topics_with_a_way_in() -> None:
    result = configured(
        {"in": 2},
        subtopology("0", sources=("in",), repartitions=("back",), sinks=("forth",)),
        subtopology("1", sources=(), repartitions=("forth",), sinks=("back",)),
    )
    assert asked_for(result) == {"back": 2, "forth": 2}


@pytest.mark.parametrize(
    ("subtopologies", "why"),
    [
        ([subtopology("0", sources=(), repartitions=("rep",))], "never used as a sink"),
        (
            [
                subtopology("0", sources=(), repartitions=("a",), sinks=("b",)),
                subtopology("1", sources=(), repartitions=("b",), sinks=("a",)),
            ],
            "loops",
        ),
        ([subtopology("0", sources=())], "No source topics"),
        ([subtopology("0", copartitions=(((3,), ()),))], "names a topic"),
        ([subtopology("0", copartitions=(((-1,), ()),))], "names a topic"),
        ([subtopology("0", copartitions=(((), (0,)),))], "names a topic"),
    ],
)
def test_a_topology_that_cannot_be(subtopologies: list[m.Subtopology], why: str) -> None:
    result = configured({"in": 1}, *subtopologies)
    assert why in (result.invalid or "")
    assert (result.is_ready, result.validated_epoch) == (False, -1)


def test_copartitioned_repartition_topics_follow_the_external_topic() -> None:
    result = configured(
        {"in": 2, "orders": 8},
        subtopology("0", sources=("in",), sinks=("rep",)),
        subtopology("1", sources=("orders",), repartitions=("rep",), copartitions=(((0,), (0,)),)),
    )
    assert (asked_for(result), tasks(result)) == ({"rep": 8}, {"0": 2, "1": 8})


@pytest.mark.parametrize(
    ("repartitions", "expected"),
    [(("x", "y"), {"x": 5, "y": 5}), (("x", ("y", 7)), {"x": 7, "y": 7})],
)
def test_copartitioned_repartition_topics_agree(
    repartitions: Iterable[str | tuple[str, int]], expected: Mapping[str, int]
) -> None:
    result = configured(
        {"a": 2, "b": 5},
        subtopology("0", sources=("a",), sinks=("x",)),
        subtopology("1", sources=("b",), sinks=("y",)),
        subtopology("2", sources=(), repartitions=repartitions, copartitions=(((), (0, 1)),)),
    )
    assert asked_for(result) == expected


@pytest.mark.parametrize(
    ("subtopologies", "detail"),
    [
        (
            [subtopology(sources=("a", "b"), copartitions=(((0, 1), ()),))],
            "Following topics do not have the same number of partitions: [{a=2, b=5}]",
        ),
        (
            [
                subtopology("0", sources=("a",), sinks=("r",)),
                subtopology("1", sources=("b",), repartitions=(("r", 3),), copartitions=(((0,), (0,)),)),
            ],
            (
                "Number of partitions [3] of repartition topic [r] doesn't match number of partitions [5] of the "
                "source topic."
            ),
        ),
        (
            [
                subtopology("0", sources=("a",)),
                subtopology("1", sources=(), repartitions=(("r", 3), ("s", 4)), copartitions=(((), (0, 1)),)),
            ],
            "Following topics do not have the same number of partitions: [{r=3, s=4}]",
        ),
    ],
)
def test_topics_that_cannot_be_copartitioned(subtopologies: list[m.Subtopology], detail: str) -> None:
    result = configured({"a": 2, "b": 5}, *subtopologies)
    assert result.status is not None
    assert (int(result.status.code), result.status.detail, result.topics_to_create) == (2, detail, ())


def test_an_internal_topic_with_a_wrong_count() -> None:
    result = configured({"in": 4, "rep": 4, "cl": 3}, *two_steps())
    assert result.status is not None
    assert int(result.status.code) == 2
    assert result.status.detail == "Existing topic cl has different number of partitions: expected 4, found 3"


def test_many_missing_internal_topics_are_counted() -> None:
    result = configured({"in": 1}, subtopology(changelogs=("c5", "c4", "c3", "c2", "c1")))
    assert result.status is not None
    assert result.status.detail == "Internal topics are missing: c1, c2, c3 and 2 additional topics"
    assert (int(result.status.code), tasks(result), result.validated_epoch) == (3, {"0": 1}, -1)


def test_the_hash_covers_what_is_required_and_exists() -> None:
    given = two_steps()
    assert required_topics(topology_of(topology(*given))) == ("cl", "in", "rep")
    topics = {"in": 4, "cl": 4, "unrelated": 9}
    expected = group_hash(image(topics).topics[name] for name in ("cl", "in"))
    assert configured(topics, *given).metadata_hash == expected
