"""A member's view as a StreamsGroupHeartbeat request, and a reply's task lists as plain tasks (KIP-1071)."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.types import GroupId
from kio.static.primitive import i32, u16

from headrace.client.membership.assignment import OwnedTasks, Tasks, tasks_of
from headrace.client.membership.endpoints import NO_ENDPOINT_EPOCH, Endpoint
from headrace.client.membership.task_offsets import TaskOffset
from headrace.client.membership.topology import Topology
from headrace.protocol import messages as m
from headrace.protocol.kio_units import from_ms

__all__ = [
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_FOR_A_WHILE_EPOCH",
    "Extras",
    "MemberIdentity",
    "join_request",
    "leave_request",
    "steady_request",
    "tasks_in",
]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
_UNCHANGED_MS = -1

Request = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest
TaskIds = m.streams_group_heartbeat_request.TaskIds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """What stays the same for the life of a member."""

    group_id: str
    member_id: str
    process_id: str
    topology: Topology
    rebalance_timeout_ms: int
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a heartbeat carries beyond the tasks. `instance_id` is None where the coordinator refuses it."""

    instance_id: str | None = None
    endpoint: Endpoint | None = None
    endpoint_epoch: int = NO_ENDPOINT_EPOCH
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False


def join_request(identity: MemberIdentity, extras: Extras) -> Request:
    """Everything, with epoch 0 and three empty lists: a joiner owns nothing."""
    return Request(
        group_id=GroupId(identity.group_id),
        member_id=identity.member_id,
        member_epoch=i32(JOIN_EPOCH),
        endpoint_information_epoch=i32(extras.endpoint_epoch),
        instance_id=extras.instance_id,
        rack_id=identity.rack_id,
        rebalance_timeout=from_ms(identity.rebalance_timeout_ms),
        topology=identity.topology.to_heartbeat(),
        active_tasks=(),
        standby_tasks=(),
        warmup_tasks=(),
        process_id=identity.process_id,
        user_endpoint=_endpoint(extras.endpoint),
        client_tags=(),
        task_offsets=extras.task_offsets,
        task_end_offsets=extras.task_end_offsets,
    )


def steady_request(identity: MemberIdentity, extras: Extras, *, member_epoch: int, owned: OwnedTasks | None) -> Request:
    """A heartbeat between join and leave; `owned` None says that nothing changed since the last answered one."""
    return Request(
        group_id=GroupId(identity.group_id),
        member_id=identity.member_id,
        member_epoch=i32(member_epoch),
        endpoint_information_epoch=i32(extras.endpoint_epoch),
        instance_id=extras.instance_id,
        rebalance_timeout=from_ms(_UNCHANGED_MS if owned is None else identity.rebalance_timeout_ms),
        active_tasks=None if owned is None else _task_ids(owned.active),
        standby_tasks=None if owned is None else _task_ids(owned.standby),
        warmup_tasks=None if owned is None else _task_ids(owned.warmup),
        user_endpoint=_endpoint(extras.endpoint),
        client_tags=None,
        task_offsets=extras.task_offsets,
        task_end_offsets=extras.task_end_offsets,
        shutdown_application=extras.shutdown_application,
    )


def leave_request(identity: MemberIdentity, extras: Extras, *, for_a_while: bool) -> Request:
    """The last word: epoch -1, or -2 of a static member that will be back."""
    epoch = LEAVE_FOR_A_WHILE_EPOCH if for_a_while else LEAVE_EPOCH
    return steady_request(identity, extras, member_epoch=epoch, owned=None)


def tasks_in(reply: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse) -> OwnedTasks | None:
    """The tasks of a reply; None when it says that they are unchanged."""
    if reply.active_tasks is None and reply.standby_tasks is None and reply.warmup_tasks is None:
        return None
    return OwnedTasks(
        active=_tasks(reply.active_tasks), standby=_tasks(reply.standby_tasks), warmup=_tasks(reply.warmup_tasks)
    )


def _tasks(task_ids: tuple[m.streams_group_heartbeat_response.TaskIds, ...] | None) -> Tasks:
    return tasks_of({ids.subtopology_id: ids.partitions for ids in task_ids or ()})


def _task_ids(tasks: Tasks) -> tuple[TaskIds, ...]:
    return tuple(
        TaskIds(subtopology_id=name, partitions=tuple(i32(p) for p in partitions)) for name, partitions in tasks.items()
    )


def _endpoint(endpoint: Endpoint | None) -> m.streams_group_heartbeat_request.Endpoint | None:
    if endpoint is None:
        return None
    return m.streams_group_heartbeat_request.Endpoint(host=endpoint.host, port=u16(endpoint.port))
