"""Reasons why a streams group is not ready, in the order in which they are to be removed."""

from __future__ import annotations

import pytest
from tests.cli.command_lines import flight_topology

from headrace.cli.readiness import obstacles
from headrace.client.cluster_metadata import TopicMetadata
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology


def counted(**partitions: int) -> dict[str, TopicMetadata]:
    """Topics by name, `_` for `-`."""
    return {
        name.replace("_", "-"): TopicMetadata(
            name=name.replace("_", "-"), topic_id=None, partitions=dict.fromkeys(range(count), 1)
        )
        for name, count in partitions.items()
    }


def test_obstacles_are_told_in_the_order_they_have_to_be_removed() -> None:
    assert [found.status for found in obstacles(None, {})] == ["NO_TOPOLOGY"]
    assert [found.status for found in obstacles(flight_topology(), {})] == ["MISSING_SOURCE_TOPICS"]
    internal = obstacles(flight_topology(), counted(flights=4))
    assert [found.status for found in internal] == ["MISSING_INTERNAL_TOPICS"] * 2
    assert '"by-origin-changelog", 2 partitions,' in internal[1].why
    uneven = Topology(subtopologies=(Subtopology(subtopology_id="both", source_topics=("a", "b")),))
    (found,) = obstacles(uneven, counted(a=3, b=4))
    assert found.status == "INCORRECTLY_PARTITIONED_TOPICS"
    assert found.do.startswith("headrace topics --alter --topic a --partitions 4")
    everything = counted(flights=4, by_origin_repartition=2, by_origin_changelog=2)
    (found,) = obstacles(flight_topology(), everything)
    assert found.status == "UNKNOWN"


def test_unsafe_internal_topic_is_reported_with_the_fixing_command() -> None:
    changelog = InternalTopic(name="cl", configs=(("cleanup.policy", "compact,delete"), ("retention.ms", "60000")))
    topology = Topology(
        subtopologies=(Subtopology(subtopology_id="0", source_topics=("in",), state_changelog_topics=(changelog,)),)
    )
    settings = {"cleanup.policy": "delete", "retention.ms": "60000", "retention.bytes": "-1"}
    (found,) = obstacles(topology, {**counted(cl=2), "in": counted(x=2)["x"]}, {"cl": settings})
    assert found.why == (
        'the internal topic "cl" would remove records that are needed: '
        "cleanup.policy=compact,delete, found delete (MISSING_INTERNAL_TOPICS)"
    )
    assert found.do == "headrace configs --alter --topic cl --add-config cleanup.policy=[compact,delete]"


def derived_topology() -> Topology:
    """flights → a → b, all counts derived, a changelog behind b; b is joined with the table `origins`."""
    return Topology(
        subtopologies=(
            Subtopology(subtopology_id="0", source_topics=("flights",), repartition_sink_topics=("a",)),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=(InternalTopic(name="a"),),
                repartition_sink_topics=("b",),
                state_changelog_topics=(InternalTopic(name="c"),),
            ),
            Subtopology(
                subtopology_id="2",
                source_topics=("origins",),
                repartition_source_topics=(InternalTopic(name="b"),),
                state_changelog_topics=(InternalTopic(name="d"),),
            ),
        )
    )


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (counted(flights=4, origins=3, a=4, b=3, c=2, d=3), ['changelog topic "c" has 2 partitions, 4 are needed']),
        (counted(flights=4, origins=3, a=4, b=4, c=4, d=3), ['repartition topic "b" has 4 partitions, 3 are needed']),
        (
            counted(flights=4, origins=3, a=5, c=4, d=3),
            [
                'repartition topic "a" has 5 partitions, 4 are needed',
                'internal topic "b", 3 partitions, does not exist',
            ],
        ),
        (counted(flights=4, a=4, b=3, c=4, d=3), ['topic "origins" does not exist']),
        (counted(flights=4, origins=3, a=4, b=3, c=4, d=3), ["every topic of the topology is there"]),
    ],
)
def test_wrong_counts_are_found_through_chains(topics: dict[str, TopicMetadata], expected: list[str]) -> None:
    found = [obstacle.why for obstacle in obstacles(derived_topology(), topics)]
    assert len(found) == len(expected)
    assert all(part in why for part, why in zip(expected, found, strict=True)), found
