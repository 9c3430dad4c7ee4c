"""How far members are with the state of tasks: changelog offsets that heartbeats report. KIP-1071, taskOffsets.

Soft: kept while the member is there, shown in describe, and a hint to the assignor where a task's state is already.
Kafka 4.4 begins to take them; 4.2 and 4.3 refuse a heartbeat that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.streams.tasks import Task
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = ["NO_OFFSETS", "MemberTaskOffsets", "reported_offsets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTaskOffsets:
    """By task: the sum of its changelogs' positions, and of their ends. In task order."""

    offsets: Mapping[Task, int] = field(default_factory=dict)
    end_offsets: Mapping[Task, int] = field(default_factory=dict)


NO_OFFSETS = MemberTaskOffsets()


def reported_offsets(known: MemberTaskOffsets, request: m.StreamsGroupHeartbeatRequest) -> MemberTaskOffsets:
    """What is known after the request: each list that it has takes the place of the old one, null keeps that. The same
    object when nothing differs. Raises INVALID_REQUEST for a task that is listed twice."""
    if request.task_offsets is None and request.task_end_offsets is None:
        return known
    told = MemberTaskOffsets(
        offsets=known.offsets if request.task_offsets is None else _by_task(request.task_offsets),
        end_offsets=known.end_offsets if request.task_end_offsets is None else _by_task(request.task_end_offsets),
    )
    return known if told == known else told


def _by_task(listed: Iterable[m.TaskOffset]) -> dict[Task, int]:
    offsets: dict[Task, int] = {}
    for each in listed:
        task = (each.subtopology_id, int(each.partition))
        if task in offsets:
            raise CoordinatorError(
                ErrorCode.invalid_request,
                f"Task offsets contain a duplicate entry for subtopology {task[0]} and partition {task[1]}.",
            )
        offsets[task] = int(each.offset)
    return dict(sorted(offsets.items()))
