"""Messages between driver and guardian: one JSON object per line, in both directions.

Driver to guardian: the settings first, then `acknowledge`, `progress`, `offsets`, `shutdown`, `watch`, `leave`,
`close`. Guardian to driver: each event with the snapshot after it. Errors carry class, code, message and fix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypedDict

from headrace import errors
from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.endpoints import Endpoint, EndpointPartitions
from headrace.client.membership.membership_configuration import MembershipConfiguration
from headrace.client.membership.target_assignment_poller import TargetAssignment
from headrace.client.membership.topology import Topology
from headrace.errors import HeadraceError

__all__ = ["GuardianSettings", "read_event", "read_settings", "write_event", "write_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianSettings(MembershipConfiguration):
    """Settings of a guardian: the membership that it holds, and how it reaches brokers and watches its driver.

    Keep `member_id` and `process_id` for the life of the driver's process.

    Attributes:
        bootstrap_servers: Addresses of brokers.
        client_id: `client.id` of the guardian's connections.
        max_poll_interval_ms: Time without progress of the driver after which the member leaves.
        request_timeout_ms: Time for one request.
        api_timeout_ms: Time after which a member that never reached a broker ends.
        task_offsets: (subtopology id, partition, changelog offset) of the stores found on disk.
        security: Client settings by Kafka's name.
    """

    bootstrap_servers: str
    client_id: str = "headrace"
    max_poll_interval_ms: int = 300_000
    request_timeout_ms: int = 10_000
    api_timeout_ms: int = 60_000
    task_offsets: tuple[tuple[str, int, int], ...] = ()
    security: Mapping[str, str] = field(default_factory=dict, repr=False)


# Fields with a form of their own in JSON; every other one is a plain value or a tuple of them.
_CONVERTED = frozenset({"topology", "endpoint"})


def write_settings(settings: GuardianSettings, *, driver_pid: int) -> str:
    """Return the first line that a guardian reads."""
    return json.dumps(
        {
            "settings": {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _CONVERTED},
            "topology": settings.topology.to_json(),
            "endpoint": None if settings.endpoint is None else str(settings.endpoint),
            "driver_pid": driver_pid,
        }
    )


def read_settings(line: str | bytes) -> tuple[GuardianSettings, int]:
    """Return the settings and the driver's process id."""
    document = json.loads(line)
    endpoint = document["endpoint"]
    plain = document["settings"]
    settings = GuardianSettings(
        topology=Topology.from_json(document["topology"]),
        endpoint=None if endpoint is None else Endpoint.parse(endpoint),
        # JSON turns tuples into lists.
        task_offsets=tuple((name, partition, offset) for name, partition, offset in plain.pop("task_offsets")),
        **plain,
    )
    return settings, int(document["driver_pid"])


_EVENTS: Mapping[str, Callable[..., e.MemberEvent]] = {
    kind.__name__: kind
    for kind in (
        e.Assigned,
        e.AssignmentChanged,
        e.Fenced,
        e.Lost,
        e.NotReady,
        e.Ready,
        e.ShutdownRequested,
        e.TargetSeen,
        e.EndpointsChanged,
        e.SettingIgnored,
        e.InstanceIdTaken,
        e.Left,
        e.Fatal,
    )
}


class _SnapshotDocument(TypedDict):
    member_id: str
    member_epoch: int
    active: Mapping[str, list[int]]
    standby: Mapping[str, list[int]]
    warmup: Mapping[str, list[int]]
    status: list[tuple[int, str]]
    version: int
    held_since: list[tuple[str, int, int]] | None


_ErrorDocument = TypedDict(
    "_ErrorDocument", {"class": str, "code": str, "message": str, "fix": str, "facts": Mapping[str, object]}
)


def write_event(event: e.MemberEvent, snapshot: AssignmentSnapshot) -> str:
    """Return an event and the snapshot after it as one line, without the line end."""
    body: dict[str, object] = {}
    # Events are plain dataclasses, so their fields are written generically; only fields that JSON cannot hold are
    # converted. `_from_json` is the inverse, by the name of the field.
    for each in fields(event):
        value = getattr(event, each.name)
        if isinstance(value, HeadraceError):
            value = _error_to_json(value)
        elif isinstance(value, AssignmentSnapshot):
            value = _snapshot_to_json(value)
        elif isinstance(value, TargetAssignment):
            value = asdict(value)
        elif each.name == "endpoints":
            value = [[point.host, point.port, asdict(partitions)] for point, partitions in value.items()]
        body[each.name] = value
    document = {"event": type(event).__name__, "body": body, "assignment": _snapshot_to_json(snapshot)}
    return json.dumps(document, default=str)


def read_event(line: str | bytes) -> tuple[e.MemberEvent, AssignmentSnapshot]:
    """Return the event and the snapshot after it."""
    document = json.loads(line)
    kind = _EVENTS[document["event"]]
    body = {name: _from_json(name, value) for name, value in document["body"].items()}
    return kind(**body), _snapshot(document["assignment"])


def _from_json(name: str, value: Any) -> object:  # the shape of the value follows from the name
    match name:
        case "assignment":
            return _snapshot(value)
        case "target":
            return TargetAssignment(
                group_epoch=value["group_epoch"],
                assignment_epoch=value["assignment_epoch"],
                active=_tasks(value["active"]),
                standby=_tasks(value["standby"]),
                warmup=_tasks(value["warmup"]),
            )
        case "endpoints":
            return MappingProxyType(
                {
                    Endpoint(host, port): EndpointPartitions(
                        active=_tasks(partitions["active"]), standby=_tasks(partitions["standby"])
                    )
                    for host, port, partitions in value
                }
            )
        case _ if name == "to_come" or name.endswith(("added", "removed", "revoked")):
            return _tasks(value)
        case "status":
            return _status(value)
        case "error":
            return _error(value)
        case _:
            return value


def _snapshot_to_json(snapshot: AssignmentSnapshot) -> dict[str, object]:
    held = snapshot.held_since
    # JSON has no tuples as keys.
    listed = None if held is None else [(name, number, since) for (name, number), since in held.items()]
    return {
        "member_id": snapshot.member_id,
        "member_epoch": snapshot.member_epoch,
        "active": snapshot.active,
        "standby": snapshot.standby,
        "warmup": snapshot.warmup,
        "status": snapshot.status,
        "version": snapshot.version,
        "held_since": listed,
    }


def _snapshot(document: _SnapshotDocument) -> AssignmentSnapshot:
    held = document["held_since"]
    return AssignmentSnapshot(
        member_id=document["member_id"],
        member_epoch=document["member_epoch"],
        active=_tasks(document["active"]),
        standby=_tasks(document["standby"]),
        warmup=_tasks(document["warmup"]),
        status=_status(document["status"]),
        version=document["version"],
        held_since=None if held is None else {(name, number): since for name, number, since in held},
    )


def _tasks(document: Mapping[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(partitions) for name, partitions in document.items()}


def _status(document: list[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    return tuple((code, detail) for code, detail in document)


def _error_to_json(error: HeadraceError) -> dict[str, object]:
    return {
        "class": type(error).__name__,
        "code": error.code,
        "message": error.message,
        "fix": error.fix,
        "facts": error.facts,
    }


def _error(document: _ErrorDocument) -> HeadraceError:
    kind = getattr(errors, document["class"], HeadraceError)
    error: HeadraceError = kind(document["code"], document["message"], document["fix"], **document["facts"])
    return error
