"""User data of a classic group whose leader assigns tasks: reports in JoinGroup, assignments in SyncGroup.

Both begin with the version of their layout. A later version adds fields at the end, and readers ignore what they do not
know, so releases can share a group during a rolling upgrade. Numbers are big-endian, as in Kafka's protocol; tasks
have the layout of partitions, with the subtopology id in place of the topic. Lengths are checked before they are used.

Kafka keeps the user data of all members in one record of `__consumer_offsets`, which may have 1 MB by default. Offsets
and the endpoint map grow with the tasks, so they are compressed: the map of 1,000 tasks, of which each of 100 members
gets a copy, takes 3 kB instead of 60.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.assignors.consumer_protocol import MalformedUserData, Reader, encode_partitions, encode_string
from headrace.client.membership.assignment import OwnedTasks, Tasks, tasks_from
from headrace.client.membership.classic_task_leader import TaskAssignment, TaskReport
from headrace.client.membership.endpoints import Endpoint, EndpointMap, EndpointPartitions
from headrace.client.membership.streams_heartbeat import TaskId
from headrace.client.membership.topology import Topology

__all__ = [
    "HASH_BYTES",
    "MOST_BYTES",
    "MemberReport",
    "decode_assignment",
    "decode_report",
    "decode_topology",
    "encode_assignment",
    "encode_endpoints",
    "encode_report",
]

VERSION = 1
HASH_BYTES = 8
_SHUTDOWN = 1
_FOLLOW_UP = 1
_NONE = -1  # an offset or a bound that was not reported
MOST_BYTES = 16 * 1024 * 1024
"""Length of a section after decompression: far above any real one, and a bound for the bytes of strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """Report of a member to the leader.

    Attributes:
        topology_hash: Hash of the member's topology; `HASH_BYTES` bytes.
        process_id: The process that the member belongs to; standby tasks go to other ones.
        client_tags: Tags for the placement of standby tasks (KIP-708).
        endpoint: Address for interactive queries.
        tasks: State of the member's tasks.
        acceptable_recovery_lag: Changelog records that a copy may lack when its task moves to this member. None: the
            member makes no copies ahead, and stateful tasks move to it at once.
    """

    topology_hash: bytes
    process_id: str
    client_tags: tuple[tuple[str, str], ...] = ()
    endpoint: Endpoint | None = None
    tasks: TaskReport
    acceptable_recovery_lag: int | None = None


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
            struct.pack(">q", _NONE if report.acceptable_recovery_lag is None else report.acceptable_recovery_lag),
            _compressed(_offsets(tasks.task_offsets, tasks.task_end_offsets)),
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
    recovery_lag = reader.int64()
    task_offsets, task_end_offsets = _read_offsets(_decompressed(reader))
    return MemberReport(
        topology_hash=topology_hash,
        process_id=process_id,
        client_tags=client_tags,
        endpoint=endpoint,
        tasks=TaskReport(
            owned=OwnedTasks(active=active, standby=standby, warmup=warmup),
            task_offsets=task_offsets,
            task_end_offsets=task_end_offsets,
            shutdown_application=bool(flags & _SHUTDOWN),
        ),
        acceptable_recovery_lag=None if recovery_lag < 0 else recovery_lag,
    )


def encode_assignment(
    assignment: TaskAssignment, endpoints: bytes | None = None, *, topology: Topology | None = None
) -> bytes:
    """Return the user data of an assignment.

    Args:
        assignment: The assignment of one member.
        endpoints: `encode_endpoints` of its endpoint map, which is the same for all members of a group.
        topology: The group's topology, for tools that describe the group. One of its assignments has it: DescribeGroups
            returns all of them, and the coordinator's record has room for one copy.
    """
    tasks = assignment.tasks
    return b"".join(
        (
            struct.pack(">hb", VERSION, _FOLLOW_UP if assignment.follow_up else 0),
            *map(_tasks, (tasks.active, tasks.standby, tasks.warmup)),
            struct.pack(">i", len(assignment.status)),
            *(struct.pack(">i", code) + encode_string(detail) for code, detail in assignment.status),
            _topology(topology),
            encode_endpoints(assignment.endpoints) if endpoints is None else endpoints,
        )
    )


def encode_endpoints(endpoints: EndpointMap) -> bytes:
    """Return an endpoint map as it is in the user data of assignments: topics by their number in a list of names."""
    names = sorted({topic for found in endpoints.values() for topic in (*found.active, *found.standby)})
    numbers = {name: number for number, name in enumerate(names)}
    parts = [struct.pack(">i", len(names)), *map(encode_string, names), struct.pack(">i", len(endpoints))]
    for endpoint, found in sorted(endpoints.items()):
        parts.append(_endpoint(endpoint))
        for tasks in (found.active, found.standby):
            parts.append(struct.pack(">i", len(tasks)))
            parts += (
                struct.pack(f">ii{len(tasks[name])}i", numbers[name], len(tasks[name]), *tasks[name])
                for name in sorted(tasks)
            )
    return _compressed(b"".join(parts))


def decode_assignment(data: bytes) -> TaskAssignment:
    """Decode the user data of an assignment. Raises MalformedUserData."""
    return _read_assignment(data)[0]


def decode_topology(data: bytes) -> Topology | None:
    """Return the topology in the user data of an assignment, None in all but one. Raises MalformedUserData."""
    packed = _read_assignment(data)[1]
    if not packed:
        return None
    try:
        return Topology.from_json(json.loads(_inflate(packed)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedUserData(f"a topology: {error}") from None


def _read_assignment(data: bytes) -> tuple[TaskAssignment, bytes]:
    reader = Reader(data)
    _check_version(reader)
    flags = reader.take(1)[0]
    active, standby, warmup = (_read_tasks(reader) for _ in range(3))
    status = tuple((reader.int32(), reader.string()) for _ in range(reader.count(6)))
    topology = reader.nullable_bytes() or b""
    assignment = TaskAssignment(
        tasks=OwnedTasks(active=active, standby=standby, warmup=warmup),
        status=status,
        endpoints=MappingProxyType(_read_endpoints(_decompressed(reader))),
        follow_up=bool(flags & _FOLLOW_UP),
    )
    return assignment, topology


def _topology(topology: Topology | None) -> bytes:
    if topology is None:
        return struct.pack(">i", 0)
    return _compressed(json.dumps(topology.to_json(), separators=(",", ":")).encode())


def _read_endpoints(reader: Reader) -> dict[Endpoint, EndpointPartitions]:
    names = [reader.string() for _ in range(reader.count(2))]
    endpoints: dict[Endpoint, EndpointPartitions] = {}
    for _ in range(reader.count(12)):
        endpoint = _read_endpoint(reader)
        if endpoint is None:
            raise MalformedUserData("an endpoint without a host")
        active, standby = (_read_numbered(reader, names) for _ in range(2))
        endpoints[endpoint] = EndpointPartitions(active=active, standby=standby)
    return endpoints


def _read_numbered(reader: Reader, names: list[str]) -> Tasks:
    found: list[TaskId] = []
    for _ in range(reader.count(8)):
        number = reader.int32()
        if not 0 <= number < len(names):
            raise MalformedUserData(f"topic {number} of {len(names)}")
        found.extend((names[number], reader.int32()) for _ in range(reader.count(4)))
    return tasks_from(found)


def _compressed(section: bytes) -> bytes:
    packed = zlib.compress(section)
    return struct.pack(">i", len(packed)) + packed


def _decompressed(reader: Reader) -> Reader:
    """Return a reader of a compressed section. Raises MalformedUserData, also beyond `MOST_BYTES`."""
    return Reader(_inflate(reader.nullable_bytes() or b""))


def _inflate(packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        section = inflater.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise MalformedUserData(f"a compressed section: {error}") from None
    if not inflater.eof:
        raise MalformedUserData(f"a compressed section is cut, or has more than {MOST_BYTES:,} bytes")
    return section


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


def _offsets(offsets: Mapping[TaskId, int], ends: Mapping[TaskId, int]) -> bytes:
    """Return positions and ends of changelogs by subtopology."""
    by_name: dict[str, list[int]] = {}
    for name, partition in sorted({**offsets, **ends}):
        task = (name, partition)
        by_name.setdefault(name, []).extend((partition, offsets.get(task, _NONE), ends.get(task, _NONE)))
    encoded = [
        encode_string(name) + struct.pack(">i" + "iqq" * (len(numbers) // 3), len(numbers) // 3, *numbers)
        for name, numbers in by_name.items()
    ]
    return struct.pack(">i", len(encoded)) + b"".join(encoded)


def _read_offsets(reader: Reader) -> tuple[dict[TaskId, int], dict[TaskId, int]]:
    offsets: dict[TaskId, int] = {}
    ends: dict[TaskId, int] = {}
    for _ in range(reader.count(6)):
        name = reader.string()
        for _ in range(reader.count(20)):
            partition, offset, end = struct.unpack(">iqq", reader.take(20))
            if offset != _NONE:
                offsets[name, partition] = offset
            if end != _NONE:
                ends[name, partition] = end
    return offsets, ends
