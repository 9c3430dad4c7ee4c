"""Events of a streams group for logs and watchers: reasons of a new group epoch, topology changes."""

from __future__ import annotations

from headrace.coordinator.records.schemas import StreamsGroupMetadataValue
from headrace.coordinator.result import CoordinatorEvent
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.topics.topic_status import TopicStatus

__all__ = ["epoch_reason", "topology_events"]


def epoch_reason(
    before: StreamsGroupMetadataValue, after: StreamsGroupMetadataValue, *, joined: bool, member_changed: bool
) -> str:
    """All triggers that `after` differs by, comma-separated.

    Args:
        before: the group's metadata with the old epoch.
        after: the same with the new epoch.
        joined: whether a new member caused it.
        member_changed: whether the assignor sees something new of a known member, or a static member was replaced.
    """
    triggers = {
        "a member joined": joined,
        "a member changed": member_changed and not joined,
        "topics or their partition counts changed": before.metadata_hash != after.metadata_hash,
        "the topology became ready or not ready": before.validated_topology_epoch != after.validated_topology_epoch,
        "assignment settings changed": before.last_assignment_configs != after.last_assignment_configs,
    }
    return ", ".join(name for name, is_trigger in triggers.items() if is_trigger)


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
