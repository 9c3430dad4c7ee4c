"""RangeAssignor: each topic's partitions as one row, cut into as many ranges as there are readers. KIP-848.

Readers stand in one order: static members by instance id, then the others by member id. So with the same readers,
topics of the same width are cut at the same places, and equal partitions of them come to the same member
(co-partitioning).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from headrace.coordinator.assignors.partition_assignor import ConsumerGroupSpec, TargetPartitions

__all__ = ["RangeAssignor"]


class RangeAssignor:
    """Stickiness is none of its promises."""

    name = "range"

    def assign(self, spec: ConsumerGroupSpec) -> Mapping[str, TargetPartitions]:
        order = sorted(spec.members, key=lambda member_id: _rank(spec, member_id))
        readers: dict[UUID, list[str]] = {}
        for member_id in order:
            for topic_id in spec.members[member_id].topic_ids:
                readers.setdefault(topic_id, []).append(member_id)
        assigned: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in spec.members}
        for topic_id in sorted(readers):
            quota, wider = divmod(spec.partition_counts[topic_id], len(readers[topic_id]))
            start = 0
            for number, member_id in enumerate(readers[topic_id]):
                end = start + quota + (number < wider)
                if start < end:
                    assigned[member_id][topic_id] = tuple(range(start, end))
                start = end
        return assigned


def _rank(spec: ConsumerGroupSpec, member_id: str) -> tuple[bool, str]:
    instance_id = spec.members[member_id].instance_id
    return instance_id is None, member_id if instance_id is None else instance_id
