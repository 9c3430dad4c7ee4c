"""Assignments of all types of groups, as their records show them."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.assignors.consumer_protocol import Assignment, encode_assignment
from headrace.coordinator.history.assignments import AssignmentReader
from headrace.coordinator.history.standstill import PartitionStandstill, StandstillTracker
from headrace.coordinator.records import schemas as s

LAST_MS = 1_000_000
NAMES = {UUID(int=1): "in", UUID(int=2): "other"}


def generation(number: int, protocol: str, **members: list[int]) -> tuple[object, object]:
    value = s.GroupMetadataValue(
        protocol_type="consumer",
        generation=number,
        protocol=protocol,
        members=tuple(
            s.GroupMember(
                member_id=member,
                client_id=member,
                client_host="/h",
                session_timeout_ms=10_000,
                subscription=b"",
                assignment=encode_assignment(Assignment(partitions=tuple(("in", each) for each in partitions))),
            )
            for member, partitions in members.items()
        ),
    )
    return s.GroupMetadataKey(group="g"), value


def found(tracker: StandstillTracker) -> list[PartitionStandstill]:
    return tracker.take_finished(LAST_MS)


def test_consumer_groups_name_topics_by_id() -> None:
    tracker = StandstillTracker()
    reader = AssignmentReader(tracker, NAMES.get, sees_requests=True)

    def assign(member: str, partitions: tuple[int, ...], at_ms: int) -> None:
        topics = tuple(s.CurrentTopicPartitions(topic_id=UUID(int=each), partitions=partitions) for each in (1, 9))
        value = s.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=1, previous_member_epoch=0, state=0, assigned_partitions=topics
        )
        reader.apply(s.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=member), value, at_ms)

    assign("a", (0, 1), 0)
    assign("a", (0,), 1_000)
    assign("b", (1,), 3_000)
    assert [(each.topic, each.partition, each.at_least_ms) for each in found(tracker)] == [("in", 1, 2_000)]


def test_a_task_reads_its_partition_of_each_source() -> None:
    tracker = StandstillTracker()
    reader = AssignmentReader(tracker, NAMES.get, sees_requests=True)
    topology = s.StreamsGroupTopologyValue(
        epoch=0,
        subtopologies=(
            s.Subtopology(
                subtopology_id="0", source_topics=("in",), repartition_source_topics=(s.TopicInfo(name="by-key"),)
            ),
        ),
    )
    reader.apply(s.StreamsGroupTopologyKey(group_id="g"), topology, 0)

    def assign(member: str, partitions: tuple[int, ...], at_ms: int) -> None:
        tasks = (s.CurrentTaskIds(subtopology_id="0", partitions=partitions),) if partitions else ()
        value = s.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=1, previous_member_epoch=0, state=0, active_tasks=tasks
        )
        reader.apply(s.StreamsGroupCurrentMemberAssignmentKey(group_id="g", member_id=member), value, at_ms)

    assign("a", (0,), 0)
    assign("a", (), 1_000)
    assign("b", (0,), 1_500)
    assert {(each.topic, each.at_least_ms) for each in found(tracker)} == {("in", 500), ("by-key", 500)}


@pytest.mark.parametrize(("protocol", "moved"), [("range", {0, 1, 2}), ("cooperative-sticky", {1})])
def test_an_eager_rebalance_stops_all_partitions_a_cooperative_one_those_that_move(
    protocol: str, moved: set[int]
) -> None:
    tracker = StandstillTracker()
    reader = AssignmentReader(tracker, NAMES.get, sees_requests=True)
    reader.apply(*generation(1, protocol, a=[0, 1], b=[2]), 0)
    reader.begin_rebalance(1_000)
    reader.apply(*generation(2, protocol, a=[0], b=[2]), 2_000)
    reader.apply(*generation(3, protocol, a=[0], b=[1, 2]), 3_000)
    assert {each.partition for each in found(tracker)} == moved


def test_from_records_alone_a_generation_is_bounded_by_commits() -> None:
    tracker = StandstillTracker()
    reader = AssignmentReader(tracker, NAMES.get, sees_requests=False)
    reader.apply(*generation(1, "range", a=[0]), 0)
    tracker.commit(("in", 0), 5_000)
    reader.apply(*generation(2, "range", a=[0]), 9_000)
    tracker.commit(("in", 0), 11_000)
    (each,) = found(tracker)
    # Members gave up their partitions at some time before the record.
    assert (each.at_least_ms, each.at_most_ms) == (0, 6_000)


def test_a_record_without_a_new_generation_stops_nothing() -> None:
    tracker = StandstillTracker()
    reader = AssignmentReader(tracker, NAMES.get, sees_requests=False)
    reader.apply(*generation(1, "range", a=[0]), 0)
    reader.apply(*generation(1, "range", a=[0]), 9_000)
    assert found(tracker) == []
