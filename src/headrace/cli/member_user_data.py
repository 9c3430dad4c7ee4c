"""User data of a classic group's members, decoded by the group's protocol type and protocol. Pure.

`headrace.assignors` knows the layouts of assignors; Headrace's own streams members (`headrace-streams`) are a part of
the client, so they are added here.
"""

from __future__ import annotations

from functools import partial

from headrace.assignors.connect_user_data import (
    CONNECT_PROTOCOL_TYPE,
    decode_connect_assignment,
    decode_connect_metadata,
)
from headrace.assignors.consumer_protocol import MalformedUserData
from headrace.assignors.user_data_report import Role, UserDataReport, report_user_data
from headrace.client.membership.assignment import Tasks
from headrace.client.membership.classic_task_leader import PROTOCOL_NAME
from headrace.client.membership.classic_user_data import decode_assignment as decode_task_assignment
from headrace.client.membership.classic_user_data import decode_report

__all__ = ["report_member_data"]


def report_member_data(protocol_type: str, protocol: str, role: Role, data: bytes) -> UserDataReport:
    """Read a member's bytes of JoinGroup (`subscription`) or SyncGroup (`assignment`).

    Args:
        protocol_type: The group's protocol type: `consumer`, `connect` or another one.
        protocol: The protocol that the group has chosen: the name of an assignor.
        role: Which of the two `data` is.
        data: The member's bytes; empty where there are none.
    """
    if protocol_type == CONNECT_PROTOCOL_TYPE:
        decode = decode_connect_metadata if role == "subscription" else decode_connect_assignment
        return UserDataReport(role=role, user_data=data or None, decoded=decode(data) if data else None)
    if protocol_type != "consumer":
        return UserDataReport(role=role, user_data=data or None)
    known = partial(_streams_member, role) if protocol == PROTOCOL_NAME else None
    return report_user_data(protocol, role, data, known)


def _streams_member(role: Role, data: bytes) -> dict[str, object] | None:
    try:
        if role == "assignment":
            given = decode_task_assignment(data)
            tasks = {"active": given.tasks.active, "standby": given.tasks.standby, "warmup": given.tasks.warmup}
            return {
                **{name: _plain(found) for name, found in tasks.items()},
                "status": [list(each) for each in given.status],
                "follow_up": given.follow_up,
            }
        report = decode_report(data)
    except MalformedUserData:
        return None
    owned = report.tasks.owned
    return {
        "process_id": report.process_id,
        "topology_hash": report.topology_hash.hex(),
        "endpoint": None if report.endpoint is None else f"{report.endpoint.host}:{report.endpoint.port}",
        "client_tags": dict(report.client_tags),
        **{name: _plain(found) for name, found in (("active", owned.active), ("standby", owned.standby))},
        "offsets": {f"{name}_{number}": offset for (name, number), offset in sorted(report.tasks.task_offsets.items())},
        "shutdown_application": report.tasks.shutdown_application,
    }


def _plain(tasks: Tasks) -> dict[str, list[int]]:
    return {name: sorted(tasks[name]) for name in sorted(tasks)}
