"""A topology's form in a heartbeat: sorted, indexed, the same whatever order it was built in; and its trip as JSON."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.membership.topology import CopartitionGroup, InternalTopic, Subtopology, Topology

CHANGELOG = InternalTopic(name="app-counts-changelog", configs=(("cleanup.policy", "compact"), ("a", "b")))
REPARTITION = InternalTopic(name="app-by-origin-repartition", partitions=8, replication_factor=1)
JOINED = Subtopology(
    subtopology_id="by-origin",
    source_topics=("weather", "airports"),
    repartition_source_topics=(REPARTITION,),
    state_changelog_topics=(CHANGELOG,),
    copartition_groups=(CopartitionGroup(source_topics=("weather",), repartition_source_topics=(REPARTITION.name,)),),
)
FIRST = Subtopology(subtopology_id="a", source_topics=("flights",), repartition_sink_topics=(REPARTITION.name,))


def test_everything_goes_out_sorted() -> None:
    heartbeat = Topology(subtopologies=(JOINED, FIRST)).to_heartbeat()
    assert [s.subtopology_id for s in heartbeat.subtopologies] == ["a", "by-origin"]
    joined = heartbeat.subtopologies[1]
    assert joined.source_topics == ("airports", "weather")
    assert [config.key for config in joined.state_changelog_topics[0].topic_configs] == ["a", "cleanup.policy"]
    assert joined.state_changelog_topics[0].partitions == 0


def test_copartition_groups_name_topics_by_their_sorted_place() -> None:
    (group,) = Topology(subtopologies=(JOINED,)).to_heartbeat().subtopologies[0].copartition_groups
    assert (group.source_topics, group.repartition_source_topics) == ((1,), (0,))


def test_a_copartition_group_of_a_foreign_topic_is_refused() -> None:
    wrong = Subtopology(subtopology_id="a", copartition_groups=(CopartitionGroup(source_topics=("nobody",)),))
    with pytest.raises(ValueError, match="nobody is no source topic of subtopology a"):
        Topology(subtopologies=(wrong,)).to_heartbeat()


def test_the_trip_through_json_changes_nothing() -> None:
    topology = Topology(epoch=2, subtopologies=(JOINED, FIRST))
    assert Topology.from_json(json.loads(json.dumps(topology.to_json()))) == topology


@given(st.integers(0, 2**32))
def test_the_order_in_which_it_was_built_does_not_show(seed: int) -> None:
    shuffle = random.Random(seed).sample
    names = [f"t{index}" for index in range(5)]
    groups = [CopartitionGroup(source_topics=(a, b)) for a, b in (("t0", "t1"), ("t2", "t3"))]

    def built(ordered: list[str], joined: list[CopartitionGroup]) -> Topology:
        return Topology(
            subtopologies=(
                Subtopology(subtopology_id="s", source_topics=tuple(ordered), copartition_groups=tuple(joined)),
            )
        )

    assert built(names, groups).to_heartbeat() == built(shuffle(names, 5), shuffle(groups, 2)).to_heartbeat()
