"""User data of a classic group whose leader assigns tasks: reports in JoinGroup, assignments in SyncGroup.

Both begin with the version of their layout. A later version adds fields at the end, and readers ignore what they do not
know, so releases can share a group during a rolling upgrade. Numbers are big-endian, as in Kafka's protocol; tasks
have the layout of partitions, with the subtopology id in place of the topic. Lengths are checked before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions, encode_string
from headrace.client.membership.assignment import OwnedTasks, Tasks, tasks_from
from headrace.client.membership.classic_streams_membership import TaskAssignment, TaskReport
from headrace.client.membership.endpoints import Endpoint, EndpointPartitions
from headrace.client.membership.streams_heartbeat import TaskId

__all__ = ["HASH_BYTES", "MemberReport", "decode_assignment", "decode_report", "encode_assignment", "encode_report"]

VERSION = 1
HASH_BYTES = 8
_SHUTDOWN = 1
_FOLLOW_UP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """Report of a member to the leader.

    Attributes:
        topology_hash: Hash of the member's topology; `HASH_BYTES` bytes.
        process_id: The process that the member belongs to; standby tasks go to other ones.
        client_tags: Tags for the placement of standby tasks (KIP-708).
        endpoint: Address for interactive queries.
        tasks: State of the member's tasks.
    """

    topology_hash: bytes
    process_id: str
    client_tags: tuple[tuple[str, str], ...] = ()
    endpoint: Endpoint | None = None
    tasks: TaskReport


def encode_report(report: MemberReport) -> bytes:
    """Return the user data of a subscription."""
    tasks = report.tasks
    return b"".join(
        (
            struct.pack(">h", VERSION),
            report.topology_hash,
            encode_string(report.process_id),
            _pairs(report.client_tags),
            _endpoint(report.endpoint),
            struct.pack(">b", _SHUTDOWN if tasks.shutdown_application else 0),
            *map(_tasks, (tasks.owned.active, tasks.owned.standby, tasks.owned.warmup)),
            _offsets(tasks.task_offsets),
            _offsets(tasks.task_end_offsets),
        )
    )


def decode_report(data: bytes) -> MemberReport:
    """Decode the user data of a subscription. Raises MalformedUserData."""
    reader = Reader(data)
    _check_version(reader)
    topology_hash, process_id = reader.take(HASH_BYTES), reader.string()
    client_tags = tuple((reader.string(), reader.string()) for _ in range(reader.count(4)))
    endpoint = _read_endpoint(reader)
    flags = reader.take(1)[0]
    active, standby, warmup = (_read_tasks(reader) for _ in range(3))
    return MemberReport(
        topology_hash=topology_hash,
        process_id=process_id,
        client_tags=client_tags,
        endpoint=endpoint,
        tasks=TaskReport(
            owned=OwnedTasks(active=active, standby=standby, warmup=warmup),
            task_offsets=_read_offsets(reader),
            task_end_offsets=_read_offsets(reader),
            shutdown_application=bool(flags & _SHUTDOWN),
        ),
    )


def encode_assignment(assignment: TaskAssignment) -> bytes:
    """Return the user data of an assignment."""
    tasks = assignment.tasks
    endpoints = [
        _endpoint(endpoint) + _tasks(found.active) + _tasks(found.standby)
        for endpoint, found in sorted(assignment.endpoints.items())
    ]
    return b"".join(
        (
            struct.pack(">hb", VERSION, _FOLLOW_UP if assignment.follow_up else 0),
            *map(_tasks, (tasks.active, tasks.standby, tasks.warmup)),
            struct.pack(">i", len(assignment.status)),
            *(struct.pack(">i", code) + encode_string(detail) for code, detail in assignment.status),
            struct.pack(">i", len(endpoints)),
            *endpoints,
        )
    )


def decode_assignment(data: bytes) -> TaskAssignment:
    """Decode the user data of an assignment. Raises MalformedUserData."""
    reader = Reader(data)
    _check_version(reader)
    flags = reader.take(1)[0]
    active, standby, warmup = (_read_tasks(reader) for _ in range(3))
    status = tuple((reader.int32(), reader.string()) for _ in range(reader.count(6)))
    endpoints: dict[Endpoint, EndpointPartitions] = {}
    for _ in range(reader.count(11)):
        endpoint = _read_endpoint(reader)
        found = EndpointPartitions(active=_read_tasks(reader), standby=_read_tasks(reader))
        if endpoint is None:
            raise MalformedUserData("an endpoint without a host")
        endpoints[endpoint] = found
    return TaskAssignment(
        tasks=OwnedTasks(active=active, standby=standby, warmup=warmup),
        status=status,
        endpoints=MappingProxyType(endpoints),
        follow_up=bool(flags & _FOLLOW_UP),
    )


def _check_version(reader: Reader) -> None:
    if reader.version() < 1:
        raise MalformedUserData("version 0 was never written")


def _tasks(tasks: Mapping[str, Iterable[int]]) -> bytes:
    return encode_partitions((name, partition) for name in sorted(tasks) for partition in tasks[name])


def _read_tasks(reader: Reader) -> Tasks:
    return tasks_from(reader.partitions())


def _pairs(pairs: Iterable[tuple[str, str]]) -> bytes:
    encoded = [encode_string(key) + encode_string(value) for key, value in pairs]
    return struct.pack(">i", len(encoded)) + b"".join(encoded)


def _endpoint(endpoint: Endpoint | None) -> bytes:
    if endpoint is None:
        return struct.pack(">h", -1)
    return encode_string(endpoint.host) + struct.pack(">H", endpoint.port)


def _read_endpoint(reader: Reader) -> Endpoint | None:
    host = reader.nullable_string()
    if host is None:
        return None
    (port,) = struct.unpack(">H", reader.take(2))
    return Endpoint(host, port)


def _offsets(offsets: Mapping[TaskId, int]) -> bytes:
    encoded = [
        encode_string(name) + struct.pack(">iq", partition, offsets[name, partition])
        for name, partition in sorted(offsets)
    ]
    return struct.pack(">i", len(encoded)) + b"".join(encoded)


def _read_offsets(reader: Reader) -> dict[TaskId, int]:
    found: dict[TaskId, int] = {}
    for _ in range(reader.count(14)):
        name = reader.string()
        partition, offset = struct.unpack(">iq", reader.take(12))
        found[name, partition] = offset
    return found
