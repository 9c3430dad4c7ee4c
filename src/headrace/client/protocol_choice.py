"""Lookup of the group protocol that a cluster offers to members that run streams: `group.protocol=auto`."""

from __future__ import annotations

from kio.schema.types import GroupId

from headrace.client.membership.streams_protocol import (
    OUR_PROTOCOLS,
    CoordinatorOffer,
    GroupProtocol,
    ProtocolChoice,
    choose_protocol,
)
from headrace.client.membership.target_assignment_poller import describe_request, described_group
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = ["find_group_protocol", "has_classic_members"]

_NEEDED = (ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE)


def find_group_protocol(client: NetworkClient, group_id: str, wanted: GroupProtocol = "auto") -> ProtocolChoice:
    """Return the protocol with which to join a group.

    Args:
        client: A client of the cluster.
        group_id: The group.
        wanted: `group.protocol`; nothing is asked unless it is "auto".

    Raises:
        CannotConnect: No broker answered.
        BrokerError: The coordinator refused to describe the group (`not-authorized`).
    """
    offer = CoordinatorOffer(has_heartbeat=True) if wanted != "auto" else _ask(client, group_id)
    return choose_protocol(wanted, offer, group_id=group_id)


def has_classic_members(client: NetworkClient, group_id: str) -> bool:
    """Return whether a classic group has members that run streams. Raises CannotConnect, BrokerError."""
    members, protocol = _classic_group(client, group_id)
    return members > 0 and protocol in OUR_PROTOCOLS


def _ask(client: NetworkClient, group_id: str) -> CoordinatorOffer:
    # The coordinator is asked, not any broker: during an upgrade brokers of one cluster differ.
    node = client.coordinator_for(group_id)
    if any(client.supported_range(api, node) is None for api in _NEEDED):
        return CoordinatorOffer(has_heartbeat=False)
    response = client.call_coordinator(
        group_id, describe_request(group_id), lambda answer: [group.error_code for group in answer.groups]
    )
    group = described_group(response, group_id)
    code = ErrorCode.group_id_not_found if group is None else group.error_code
    if code != ErrorCode.group_id_not_found:
        return CoordinatorOffer(has_heartbeat=True, described=code)
    members, protocol = _classic_group(client, group_id)
    return CoordinatorOffer(has_heartbeat=True, described=code, classic_members=members, classic_protocol=protocol)


def _classic_group(client: NetworkClient, group_id: str) -> tuple[int, str]:
    """Return number of members and protocol of a classic group; 0 if there is none."""
    request = m.describe_groups_request.DescribeGroupsRequest(
        groups=(GroupId(group_id),), include_authorized_operations=False
    )
    response = client.call_coordinator(group_id, request, lambda answer: [each.error_code for each in answer.groups])
    # GROUP_ID_NOT_FOUND from v6 on, else the state Dead without members.
    found = next((each for each in response.groups if each.error_code == ErrorCode.none), None)
    if found is None or found.protocol_type != "consumer":
        return 0, ""
    return len(found.members), found.protocol_data
