"""The leader of a classic group with tasks: internal topics, partitions that appear, and assignments for tools."""

from __future__ import annotations

from tests.client.membership.classic_task_group import CHANGELOG, ClassicTaskGroup, settled_group
from tests.client.membership.streams_scripts import kinds
from tests.coordinator.classic_context import GROUP

from headrace.client.membership.classic_task_leader import TaskTopics
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.coordinator.classic.group import ClassicGroup
from headrace.protocol import messages as m


def test_leader_creates_internal_topics_before_it_assigns() -> None:
    group = settled_group("a")
    (created,) = [each for each in group.requests if isinstance(each, m.create_topics_request.CreateTopicsRequest)]
    (topic,) = created.topics
    assert (str(topic.name), int(topic.num_partitions), int(topic.replication_factor)) == (CHANGELOG.name, 6, -1)
    assert [(each.name, each.value) for each in topic.configs] == [("cleanup.policy", "compact")]
    assert len(group.applications["a"].positions) == 6


def test_source_topic_that_appears_begins_a_rebalance() -> None:
    group = ClassicTaskGroup()
    flights = group.partitions.pop("flights")
    application = group.add("a")
    group.run(3_000)
    assert kinds(tuple(application.told)) == ["Assigned", "NotReady"]
    assert not application.positions
    group.partitions["flights"] = flights
    group.settle()
    assert "Ready" in kinds(tuple(application.told))
    assert len(application.positions) == flights


def test_group_is_of_the_consumer_type_with_assigned_partitions_that_kafka_tools_read() -> None:
    group = settled_group("a", "b")
    classic = group.context.shard.group(GROUP)
    assert isinstance(classic, ClassicGroup)
    (described,) = group.context.shard.describe_groups([GROUP], group.context.context(0))
    assert (described.protocol_type, described.protocol_data) == ("consumer", "headrace-streams")


def test_partitions_of_tasks_are_those_that_exist_sorted() -> None:
    repartition = InternalTopic(name="by-key")
    topology = Topology(
        subtopologies=(
            Subtopology(subtopology_id="0", source_topics=("b", "a")),
            Subtopology(subtopology_id="1", repartition_source_topics=(repartition,)),
        )
    )
    topics = TaskTopics(topology)
    assert topics.sources == ("a", "b", "by-key")
    assert topics.all == {"a", "b", "by-key"}
    existing = frozenset({("a", 0), ("a", 1), ("b", 0), ("by-key", 1)})
    assert topics.partitions_of({("0", 1), ("0", 0), ("1", 0), ("gone", 0)}, existing) == [("a", 0), ("a", 1), ("b", 0)]
