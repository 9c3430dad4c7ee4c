"""Members that an operator removes from their group: the explicit leave, sent for somebody else.

Kafka's Admin has this for classic groups only (`removeMembersFromConsumerGroup`, LeaveGroup), because groups of
KIP-848 and KIP-1071 have no LeaveGroup. Their leave is a heartbeat with epoch -1, which names its member, so that it
can be sent for a member whose process is gone. A member that is alive is fenced (UNKNOWN_MEMBER_ID) and joins again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kio.schema.types import GroupId
from kio.static.primitive import i32

from headrace.client.admin_results import Outcomes
from headrace.client.broker_errors import raise_for, refusal
from headrace.client.membership.group_events import GroupIdentity
from headrace.client.membership.group_requests import LEAVE_EPOCH, leave_group_request
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["RemovableMember", "remove_members"]

_REASON = "removed by an operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovableMember:
    """A member and the protocol it leaves by: `streams`, `consumer` or `classic`."""

    member_id: str
    instance_id: str | None
    protocol: str


def remove_members(client: NetworkClient, group_id: str, members: Iterable[RemovableMember]) -> Outcomes[str, None]:
    """Remove members from a group of any type, one by one.

    Args:
        client: A client of the cluster.
        group_id: The group.
        members: The members, as they were described.

    Returns:
        Which members were removed, and why others were not, by member id. A member that has left meanwhile counts as
        removed.
    """
    done: dict[str, None] = {}
    errors: dict[str, BrokerError] = {}
    for member in members:
        code, message, api = _leave(client, group_id, member)
        if code in (ErrorCode.none, ErrorCode.unknown_member_id):
            done[member.member_id] = None
        else:
            what = f"to remove the member {member.member_id} from the group {group_id}"
            errors[member.member_id] = refusal(code, what, api=api, message=message, group_id=group_id)
    return Outcomes(done=done, errors=errors)


def _leave(client: NetworkClient, group_id: str, member: RemovableMember) -> tuple[ErrorCode, str | None, str]:
    if member.protocol == "classic":
        return _leave_classic_group(client, group_id, member)
    request = _streams_leave(group_id, member) if member.protocol == "streams" else _consumer_leave(group_id, member)
    response = client.call_coordinator(group_id, request, lambda r: (r.error_code,))
    api = "StreamsGroupHeartbeat" if member.protocol == "streams" else "ConsumerGroupHeartbeat"
    return response.error_code, response.error_message, api


def _leave_classic_group(
    client: NetworkClient, group_id: str, member: RemovableMember
) -> tuple[ErrorCode, str | None, str]:
    identity = GroupIdentity(member_id=member.member_id, instance_id=member.instance_id)
    request = leave_group_request(group_id, identity, _REASON)
    response = client.call_coordinator(group_id, request, lambda r: (r.error_code,))
    raise_for(response.error_code, f"to remove members from {group_id}", api="LeaveGroup", group_id=group_id)
    (result,) = response.members
    return result.error_code, None, "LeaveGroup"


def _streams_leave(group_id: str, member: RemovableMember) -> Any:
    # Without the instance id any member may be named; with it a static member that is away would be looked up by it.
    return m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest(
        group_id=GroupId(group_id),
        member_id=member.member_id,
        member_epoch=i32(LEAVE_EPOCH),
        endpoint_information_epoch=i32(-1),
        rebalance_timeout=from_ms(-1),
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        client_tags=None,
        task_end_offsets=None,
        task_offsets=None,
    )


def _consumer_leave(group_id: str, member: RemovableMember) -> Any:
    return m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
        group_id=GroupId(group_id), member_id=member.member_id, member_epoch=i32(LEAVE_EPOCH), topic_partitions=None
    )
