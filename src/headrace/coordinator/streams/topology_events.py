"""What an operator wants to hear of a group's topics: the topology can run, cannot, or leaves partitions unread."""

from __future__ import annotations

from headrace.coordinator.result import CoordinatorEvent
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.topics.topic_status import TopicStatus

__all__ = ["topology_events"]


def topology_events(group: StreamsGroup, configured: ConfiguredTopology) -> tuple[CoordinatorEvent, ...]:
    """TopologyReady, TopologyNotReady, SourceTopicsOutgrown: what is new against the group's stored metadata."""
    topology, metadata = group.topology, group.metadata
    was_ready = topology is not None and metadata.validated_topology_epoch == topology.epoch
    if configured.status is not None and (was_ready or topology is None):
        return (_event("TopologyNotReady", group, configured.status),)
    events = [_event("TopologyReady", group)] if configured.is_ready and not was_ready else []
    if configured.unread is not None and configured.metadata_hash != metadata.metadata_hash:
        events.append(_event("SourceTopicsOutgrown", group, configured.unread))
    return tuple(events)


def _event(name: str, group: StreamsGroup, status: TopicStatus | None = None) -> CoordinatorEvent:
    details = () if status is None else (("reason", status.detail), ("status", status.code.name))
    return CoordinatorEvent(name=name, group_id=group.group_id, details=details)
