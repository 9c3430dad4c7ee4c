"""Descriptions of classic groups whose members run streams, from the user data that DescribeGroups returns.

The tasks are in the members' assignments, and one of these has the topology. Process, tags and endpoint are in the
subscriptions, which brokers return for stable groups only: a group that rebalances is described without them.
"""

from __future__ import annotations

from kio.schema.types import GroupId

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, decode_subscription
from headrace.client.admin_results import (
    GroupListing,
    StreamsGroupDescription,
    StreamsMemberAssignment,
    StreamsMemberDescription,
)
from headrace.client.membership import classic_user_data
from headrace.client.membership.classic_task_leader import TaskAssignment
from headrace.client.membership.classic_user_data import MemberReport
from headrace.client.membership.streams_protocol import OUR_PROTOCOLS
from headrace.client.membership.topology import Topology
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["NO_EPOCH", "find_classic_streams_group", "may_run_streams", "read_classic_streams_group"]

NO_EPOCH = -1
"""Epoch of classic groups: DescribeGroups does not return the generation."""

_PROTOCOL_TYPE = "consumer"  # as that of consumers, so that Kafka's tools show the group

DescribedGroup = m.describe_groups_response.DescribedGroup
DescribedMember = m.describe_groups_response.DescribedGroupMember


def may_run_streams(listed: GroupListing) -> bool:
    """Return whether a listed group may be a classic group whose members run streams; only its description tells."""
    # Brokers before 3.8 list no types, those before 2.6 no states.
    kind, state = listed.group_type.lower(), listed.state.lower()
    return kind in ("classic", "") and listed.protocol_type == _PROTOCOL_TYPE and state not in ("empty", "dead")


def find_classic_streams_group(client: NetworkClient, group_id: str) -> StreamsGroupDescription | None:
    """Return the description of a classic group whose members run streams; None for any other group.

    Raises:
        CannotConnect: No broker answered.
        BrokerError: The coordinator is not available.
    """
    request = m.describe_groups_request.DescribeGroupsRequest(
        groups=(GroupId(group_id),), include_authorized_operations=False
    )
    response = client.call_coordinator(group_id, request, lambda answer: [each.error_code for each in answer.groups])
    (group,) = response.groups
    return read_classic_streams_group(group) if group.error_code == ErrorCode.none else None


def read_classic_streams_group(group: DescribedGroup) -> StreamsGroupDescription | None:
    """Return a DescribedGroup of DescribeGroups as a streams group; None if its members do not run streams.

    A group without members is None too: nothing is left that names the protocol.
    """
    if group.protocol_data not in OUR_PROTOCOLS:
        return None
    members = sorted(group.members, key=lambda member: str(member.member_id))
    topology = next((found for found in map(_topology, members) if found is not None), None)
    # During a rebalance the protocol is empty, as in every classic group: then the topology is what tells them apart.
    if not members or (topology is None and not group.protocol_data):
        return None
    return StreamsGroupDescription(
        group_id=str(group.group_id),
        group_type="classic",
        state=group.group_state,
        group_epoch=NO_EPOCH,
        assignment_epoch=NO_EPOCH,
        topology=topology,
        members=tuple(_member(member, topology) for member in members),
    )


def _member(member: DescribedMember, topology: Topology | None) -> StreamsMemberDescription:
    report = _report(member)
    assignment = _assignment(member)
    endpoint = None if report is None or report.endpoint is None else (report.endpoint.host, report.endpoint.port)
    return StreamsMemberDescription(
        member_id=member.member_id,
        member_epoch=NO_EPOCH,
        instance_id=member.group_instance_id,
        rack_id=None,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=NO_EPOCH if topology is None else topology.epoch,
        process_id="" if report is None else report.process_id,
        user_endpoint=endpoint,
        client_tags={} if report is None else dict(report.client_tags),
        assignment=assignment,
        # A rebalance ends with the assignment; there is no target beside it.
        target_assignment=assignment,
    )


def _assignment(member: DescribedMember) -> StreamsMemberAssignment:
    tasks = _task_assignment(member).tasks
    return StreamsMemberAssignment(active=tasks.active, standby=tasks.standby, warmup=tasks.warmup)


# Bytes that cannot be decoded hide neither the member nor the others: it is shown without tasks, or without a process.


def _task_assignment(member: DescribedMember) -> TaskAssignment:
    try:
        return classic_user_data.decode_assignment(_assignment_data(member))
    except MalformedUserData:
        return TaskAssignment()


def _topology(member: DescribedMember) -> Topology | None:
    try:
        return classic_user_data.decode_topology(_assignment_data(member))
    except MalformedUserData:
        return None


def _assignment_data(member: DescribedMember) -> bytes:
    return decode_assignment(bytes(member.member_assignment)).user_data or b""


def _report(member: DescribedMember) -> MemberReport | None:
    try:
        subscription = decode_subscription(bytes(member.member_metadata), instance_id=member.group_instance_id)
        return classic_user_data.decode_report(subscription.user_data or b"")
    except MalformedUserData:
        return None
