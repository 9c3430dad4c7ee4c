"""Classic and consumer groups as an administrator sees them (ConsumerGroupDescribe, KIP-848; else DescribeGroups).

Kafka's tools ask in this order, and so do we: a broker that does not know the first call, or a group that is none of
its kind, is asked with the second. Classic groups have no epochs and no targets; what their members have is read from
the bytes that the leader wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kio.schema.types import GroupId

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment
from headrace.client.admin_results import Outcomes
from headrace.client.broker_errors import refusal
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["ConsumerGroupDescription", "ConsumerMemberDescription", "describe_consumer_groups"]

TopicPartition = tuple[str, int]
CONSUMER_PROTOCOL = "consumer"
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
_NOT_OF_THIS_KIND = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    """One member. None: its protocol knows no such thing, or (`uses_consumer_protocol`) the broker did not say."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    rack_id: str | None = None
    member_epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    uses_consumer_protocol: bool | None = None
    subscription_bytes: bytes | None = None
    """Of a classic member, as it sent them with JoinGroup; brokers keep them for stable groups only."""
    assignment_bytes: bytes | None = None
    """Of a classic member, as the leader sent them with SyncGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group of consumers; `group_type` classic or consumer. Epochs are those of KIP-848, None for classic ones."""

    group_id: str
    group_type: str
    state: str
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None


def describe_consumer_groups(
    client: NetworkClient, group_ids: Iterable[str]
) -> Outcomes[str, ConsumerGroupDescription]:
    """Members by id. `group-missing` where there is none, `group-kind` where it is of others than consumers."""
    done: dict[str, ConsumerGroupDescription] = {}
    errors: dict[str, BrokerError] = {}
    for group_id in dict.fromkeys(group_ids):
        try:
            done[group_id] = _described(client, group_id)
        except BrokerError as error:
            errors[group_id] = error
    return Outcomes(done=done, errors=errors)


def _described(client: NetworkClient, group_id: str) -> ConsumerGroupDescription:
    request = m.consumer_group_describe_request.ConsumerGroupDescribeRequest(
        group_ids=(GroupId(group_id),), include_authorized_operations=False
    )
    try:
        response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.groups))
    except BrokerError as error:
        if error.code != "unsupported-api":
            raise
        return _classic(client, group_id)
    (group,) = response.groups
    if group.error_code in _NOT_OF_THIS_KIND:
        return _classic(client, group_id)
    if group.error_code != ErrorCode.none:
        raise _refused(group, "ConsumerGroupDescribe")
    return _consumer_group(group)


def _refused(group: Any, api: str) -> BrokerError:
    what = f"to describe the group {group.group_id}"
    return refusal(group.error_code, what, api=api, message=group.error_message, group_id=str(group.group_id))


def _consumer_group(group: Any) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group_id=str(group.group_id),
        group_type="consumer",
        state=group.group_state,
        assignor=group.assignor_name,
        group_epoch=int(group.group_epoch),
        assignment_epoch=int(group.assignment_epoch),
        members=tuple(
            ConsumerMemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_epoch=int(member.member_epoch),
                assignment=_partitions(member.assignment),
                target_assignment=_partitions(member.target_assignment),
                subscribed_topics=tuple(sorted(str(name) for name in member.subscribed_topic_names)),
                subscribed_regex=member.subscribed_topic_regex or None,
                uses_consumer_protocol=_protocol(int(member.member_type)),
            )
            for member in sorted(group.members, key=lambda member: str(member.member_id))
        ),
    )


def _protocol(member_type: int) -> bool | None:
    return member_type == CONSUMER_MEMBER if member_type in (CLASSIC_MEMBER, CONSUMER_MEMBER) else None


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(sorted((str(t.topic_name), int(p)) for t in assignment.topic_partitions for p in t.partitions))


def _classic(client: NetworkClient, group_id: str) -> ConsumerGroupDescription:
    request = m.describe_groups_request.DescribeGroupsRequest(
        groups=(GroupId(group_id),), include_authorized_operations=False
    )
    response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.groups))
    (group,) = response.groups
    if group.error_code != ErrorCode.none:
        raise _refused(group, "DescribeGroups")
    if group.group_state == "Dead":  # what brokers before 4.0 say of a group that is not there
        raise refusal(
            ErrorCode.group_id_not_found, f"to describe the group {group_id}", api="DescribeGroups", group_id=group_id
        )
    if group.protocol_type not in ("", CONSUMER_PROTOCOL):
        raise BrokerError(
            "group-kind",
            f'"{group_id}" is a group of the protocol "{group.protocol_type}", not one of consumers',
            "see all groups with:  headrace groups --list",
            group_id=group_id,
        )
    return ConsumerGroupDescription(
        group_id=group_id,
        group_type="classic",
        state=group.group_state,
        assignor=group.protocol_data,
        members=tuple(
            ConsumerMemberDescription(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                assignment=_read_assignment(member.member_assignment),
                subscription_bytes=bytes(member.member_metadata),
                assignment_bytes=bytes(member.member_assignment),
            )
            for member in sorted(group.members, key=lambda member: str(member.member_id))
        ),
    )


def _read_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Bytes that nobody can read hold nothing: one strange leader must not hide the other members."""
    try:
        return tuple(sorted(decode_assignment(bytes(data)).partitions))
    except MalformedUserData:
        return ()
