"""Descriptions of the members of a streams group, for StreamsGroupDescribe.

During a rebalance members ask for the description of the whole group again and again: a joiner to restore the state of
its target ahead, an owner to see whether the copy of a task is complete. A group of 1,000 members took 24 ms for each.
A description is made from three immutable values, so it is kept until one of them is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from kio.static.primitive import i32, i64, u16

from headrace.coordinator.assignors.task_assignor import Task, TasksTuple, by_subtopology
from headrace.coordinator.streams.group import StreamsGroup
from headrace.coordinator.streams.group_context import NO_OFFSETS, MemberTaskOffsets
from headrace.coordinator.streams.member import StreamsGroupMember
from headrace.protocol.messages import streams_group_describe_response as described

__all__ = ["DescribedMembers", "key_values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A description and the objects it was made from."""

    description: described.Member
    member: StreamsGroupMember
    target: TasksTuple
    offsets: MemberTaskOffsets


class DescribedMembers:
    """Descriptions of the members of one group. Mutable: a cache."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def of(self, group: StreamsGroup, task_offsets: Mapping[str, MemberTaskOffsets]) -> tuple[described.Member, ...]:
        """Return the descriptions in the order of member ids; the very same objects while nothing changed."""
        entries: dict[str, _Entry] = {}
        for member_id in sorted(group.members):
            member, target = group.members[member_id], group.target_of(member_id)
            offsets, known = task_offsets.get(member_id, NO_OFFSETS), self._entries.get(member_id)
            # Compared by identity: replay replaces these objects and never changes them.
            if (
                known is None
                or known.member is not member
                or known.target is not target
                or known.offsets is not offsets
            ):
                description = _described_member(member, target, offsets)
                known = _Entry(description=description, member=member, target=target, offsets=offsets)
            entries[member_id] = known
        # Only members of now: those that left are forgotten with this description.
        self._entries = entries
        return tuple([entry.description for entry in entries.values()])


def key_values(pairs: tuple[tuple[str, str], ...]) -> tuple[described.KeyValue, ...]:
    """Return tags or topic settings as the response lists them."""
    return tuple(described.KeyValue(key=key, value=value) for key, value in pairs)


def _described_member(member: StreamsGroupMember, target: TasksTuple, offsets: MemberTaskOffsets) -> described.Member:
    metadata = member.metadata
    endpoint = metadata.user_endpoint
    return described.Member(
        member_id=member.member_id,
        member_epoch=cast("i32", member.member_epoch),
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=cast("i32", metadata.topology_epoch),
        process_id=metadata.process_id,
        user_endpoint=None
        if endpoint is None
        else described.Endpoint(host=endpoint.host, port=cast("u16", endpoint.port)),
        client_tags=key_values(metadata.client_tags),
        task_offsets=_task_offsets(offsets.offsets),
        task_end_offsets=_task_offsets(offsets.end_offsets),
        assignment=_assignment(member.assigned.without_epochs()),
        target_assignment=_assignment(target),
        is_classic=False,
    )


def _task_offsets(offsets: Mapping[Task, int]) -> tuple[described.TaskOffset, ...]:
    return tuple(
        described.TaskOffset(subtopology_id=name, partition=cast("i32", partition), offset=cast("i64", offset))
        for (name, partition), offset in offsets.items()
    )


def _assignment(tasks: TasksTuple) -> described.Assignment:
    return described.Assignment(
        active_tasks=_task_ids(tasks.active),
        standby_tasks=_task_ids(tasks.standby),
        warmup_tasks=_task_ids(tasks.warmup),
    )


def _task_ids(tasks: tuple[Task, ...]) -> tuple[described.TaskIds, ...]:
    return tuple(
        described.TaskIds(subtopology_id=name, partitions=cast("tuple[i32, ...]", partitions))
        for name, partitions in by_subtopology(tasks)
    )
