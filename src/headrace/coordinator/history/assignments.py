"""Partitions that each member of a group reads, from its coordinator's records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment
from headrace.coordinator.history.group_changes import COOPERATIVE
from headrace.coordinator.history.standstill import StandstillTracker, TopicPartition
from headrace.coordinator.records import schemas as s

__all__ = ["AssignmentReader", "TopicName"]

TopicName = Callable[[UUID], str | None]
"""Returns the name of a topic, None if it does not exist (any more)."""


class AssignmentReader:
    """Passes a group's assignments to its tracker. Mutable: holds the topology and the last generation.

    Args:
        tracker: Standstill of the group's partitions.
        topic_name: Names of topic ids.
        sees_requests: Whether the begin of a classic rebalance is passed to `begin_rebalance`. Without it a generation
            is the first sign of a rebalance, and all members may have stopped since their last commits.
    """

    def __init__(self, tracker: StandstillTracker, topic_name: TopicName, *, sees_requests: bool) -> None:
        self._tracker = tracker
        self._topic_name = topic_name
        self._sees_requests = sees_requests
        self._subtopologies: dict[str, tuple[str, ...]] = {}
        self._protocol: str | None = None
        self._generation = -1

    def begin_rebalance(self, at_ms: int) -> None:
        """Take note that a classic rebalance began: under an eager assignor all members give up all partitions."""
        if self._protocol is not None and self._protocol != COOPERATIVE:
            self._tracker.revoke_all(at_ms)

    def apply(self, key: object, value: object, at_ms: int) -> None:
        """Take note of a record."""
        match key, value:
            case s.ConsumerGroupCurrentMemberAssignmentKey(), s.ConsumerGroupCurrentMemberAssignmentValue():
                self._tracker.assign(key.member_id, self._partitions(value), at_ms)
            case s.StreamsGroupCurrentMemberAssignmentKey(), s.StreamsGroupCurrentMemberAssignmentValue():
                self._tracker.assign(key.member_id, self._tasks(value), at_ms)
            case s.StreamsGroupTopologyKey(), s.StreamsGroupTopologyValue():
                self._subtopologies = {
                    each.subtopology_id: (
                        *each.source_topics,
                        *(topic.name for topic in each.repartition_source_topics),
                    )
                    for each in value.subtopologies
                }
            case s.GroupMetadataKey(), s.GroupMetadataValue():
                self._assign_generation(value, at_ms)

    def _partitions(self, value: s.ConsumerGroupCurrentMemberAssignmentValue) -> Iterator[TopicPartition]:
        for each in value.assigned_partitions:
            name = self._topic_name(each.topic_id)
            if name is not None:
                yield from ((name, number) for number in each.partitions)

    def _tasks(self, value: s.StreamsGroupCurrentMemberAssignmentValue) -> Iterator[TopicPartition]:
        # A task reads the partition of its number of each of its topics; one that has no such partition has no commit.
        for task in value.active_tasks:
            for topic in self._subtopologies.get(task.subtopology_id, ()):
                yield from ((topic, number) for number in task.partitions)

    def _assign_generation(self, value: s.GroupMetadataValue, at_ms: int) -> None:
        is_new = value.generation != self._generation
        self._generation, self._protocol = value.generation, value.protocol
        if value.protocol_type not in ("consumer", ""):
            return
        try:
            assigned = {each.member_id: decode_assignment(each.assignment).partitions for each in value.members}
        except MalformedUserData:
            return
        if is_new and not self._sees_requests and value.protocol != COOPERATIVE:
            self._tracker.revoke_all(at_ms, is_abrupt=True)
        self._tracker.assign_all(assigned, at_ms, is_abrupt=not self._sees_requests)
