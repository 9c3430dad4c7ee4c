"""Reason of a new group epoch of a streams group, for its event and log line: each trigger has its own text."""

from __future__ import annotations

from headrace.coordinator.records.schemas import StreamsGroupMetadataValue

__all__ = ["epoch_reason"]


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
