"""Group administration: list, describe and delete groups, delete offsets, remove members.

Each call goes to the coordinator of its group and returns an outcome per group (partition, member), so that one refusal
does not hide the others. Streams groups are described by StreamsGroupDescribe (KIP-1071), consumer groups by
ConsumerGroupDescribe (KIP-848), classic groups by DescribeGroups, also those whose members run streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment
from headrace.client.admin_results import GroupListing, Outcomes, StreamsGroupDescription, read_streams_group
from headrace.client.broker_errors import raise_for, refusal
from headrace.client.classic_streams_groups import find_classic_streams_group
from headrace.client.deadline import Backoff, Deadline
from headrace.client.membership.group_events import GroupIdentity
from headrace.client.membership.group_requests import LEAVE_EPOCH, leave_group_request
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = [
    "ConsumerGroupDescription",
    "ConsumerMemberDescription",
    "RemovableMember",
    "delete_groups",
    "delete_offsets",
    "describe_consumer_groups",
    "describe_streams_groups",
    "list_groups",
    "plain_name",
    "remove_members",
]

TopicPartition = tuple[str, int]


def list_groups(
    client: NetworkClient, states: Iterable[str], types: Iterable[str], protocols: Iterable[str]
) -> tuple[GroupListing, ...]:
    """Return the groups of all brokers, sorted by id; an empty filter matches all.

    The broker filters by type. States are compared here, in any spelling: the filter of Kafka 4.3 never matches
    NotReady.
    """
    wanted_states = {plain_name(state) for state in states}
    # The broker has no filter for protocol types.
    wanted_protocols = set(protocols)
    request = m.list_groups_request.ListGroupsRequest(states_filter=(), types_filter=tuple(types))
    # Each broker lists the groups that it coordinates, so all are asked, with fresh metadata: a broker that is missing
    # in an old list would hide its groups.
    brokers = client.metadata((), refresh=True).brokers
    listed: dict[str, GroupListing] = {}
    for response in _answers_when_loaded(client, [(node, request) for node in sorted(brokers)]):
        raise_for(response.error_code, "to list groups", api="ListGroups")
        for group in response.groups:
            listed[str(group.group_id)] = GroupListing(
                group_id=str(group.group_id),
                group_type=group.group_type,
                state=group.group_state,
                protocol_type=group.protocol_type,
            )
    return tuple(
        group
        for _, group in sorted(listed.items())
        if (not wanted_states or plain_name(group.state) in wanted_states)
        and (not wanted_protocols or group.protocol_type in wanted_protocols)
    )


def _answers_when_loaded(
    client: NetworkClient, requests: list[tuple[int | None, RequestMessage]]
) -> list[m.list_groups_response.ListGroupsResponse]:
    """Repeat the requests while a broker that has just started still loads its coordinators' logs."""
    deadline, backoff = Deadline.after_ms(client.api_timeout_ms), Backoff()
    while True:
        responses = client.call_all(requests, timeout_ms=max(deadline.remaining_s, 0.1) * 1000)
        if deadline.passed or not any(is_retriable(response.error_code) for response in responses):
            return responses
        backoff.pause(deadline)


def plain_name(name: str) -> str:
    """Return the name of a state in one spelling: `NotReady`, `not_ready` and `NOT-READY` are the same."""
    return name.strip().replace("_", "").replace("-", "").lower()


def describe_streams_groups(client: NetworkClient, group_ids: Iterable[str]) -> Outcomes[str, StreamsGroupDescription]:
    """Describe streams groups, and classic groups whose members run streams.

    `group-missing` is also the error for a group of another type, `unsupported-api` that of a broker without streams
    groups.
    """
    done: dict[str, StreamsGroupDescription] = {}
    errors: dict[str, BrokerError] = {}
    for group_id in dict.fromkeys(group_ids):
        try:
            done[group_id] = _described_streams_group(client, group_id)
        except BrokerError as error:
            errors[group_id] = error
            # Members that run streams on a cluster without streams groups form a classic group.
            if error.code in ("group-missing", "unsupported-api") and (
                classic := find_classic_streams_group(client, group_id)
            ):
                del errors[group_id]
                done[group_id] = classic
    return Outcomes(done=done, errors=errors)


def _described_streams_group(client: NetworkClient, group_id: str) -> StreamsGroupDescription:
    # One group per request: groups have different coordinators, and a request that reaches a wrong one would be
    # repeated as a whole.
    request = m.streams_group_describe_request.StreamsGroupDescribeRequest(
        group_ids=(GroupId(group_id),), include_authorized_operations=False
    )
    response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.groups))
    (group,) = response.groups
    if group.error_code == ErrorCode.none:
        return read_streams_group(group)
    raise refusal(
        group.error_code,
        f"to describe the streams group {group_id}",
        api="StreamsGroupDescribe",
        message=group.error_message,
        group_id=group_id,
    )


def delete_groups(client: NetworkClient, group_ids: Iterable[str]) -> Outcomes[str, None]:
    """Delete groups of any type with their offsets; errors are `group-not-empty` and `group-missing`."""
    done: dict[str, None] = {}
    errors: dict[str, BrokerError] = {}
    for group_id in dict.fromkeys(group_ids):
        request = m.delete_groups_request.DeleteGroupsRequest(groups_names=(GroupId(group_id),))
        response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.results))
        (result,) = response.results
        if result.error_code == ErrorCode.none:
            done[group_id] = None
        else:
            what = f"to delete the group {group_id}"
            errors[group_id] = refusal(result.error_code, what, api="DeleteGroups", group_id=group_id)
    return Outcomes(done=done, errors=errors)


def delete_offsets(
    client: NetworkClient, group_id: str, partitions: Iterable[TopicPartition]
) -> Outcomes[TopicPartition, None]:
    """Delete committed offsets. A partition whose topic a member is subscribed to is refused (`group-not-empty`).

    Raises:
        BrokerError: The whole group is refused (`group-missing`).
    """
    wanted = sorted(set(partitions))
    response = client.call_coordinator(group_id, _delete_request(group_id, wanted), _delete_errors)
    raise_for(response.error_code, f"to delete offsets of {group_id}", api="OffsetDelete", group_id=group_id)
    codes = {
        (str(topic.name), int(partition.partition_index)): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    # A partition that the answer leaves out counts as unknown, not as deleted.
    answered = {key: codes.get(key, ErrorCode.unknown_topic_or_partition) for key in wanted}
    return Outcomes(
        done={key: None for key, code in answered.items() if code == ErrorCode.none},
        errors={
            key: refusal(code, f"to delete the offset of {key[0]}-{key[1]}", api="OffsetDelete", group_id=group_id)
            for key, code in answered.items()
            if code != ErrorCode.none
        },
    )


def _delete_request(group_id: str, partitions: list[TopicPartition]) -> RequestMessage:
    request = m.offset_delete_request
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return request.OffsetDeleteRequest(
        group_id=GroupId(group_id),
        topics=tuple(
            request.OffsetDeleteRequestTopic(
                name=TopicName(topic),
                partitions=tuple(request.OffsetDeleteRequestPartition(partition_index=i32(n)) for n in numbers),
            )
            for topic, numbers in by_topic.items()
        ),
    )


def _delete_errors(response: m.offset_delete_response.OffsetDeleteResponse) -> list[ErrorCode]:
    return [response.error_code, *(p.error_code for topic in response.topics for p in topic.partitions)]


# The protocol type of consumers in classic groups; Kafka Connect has "connect". Below: `memberType` of
# ConsumerGroupDescribe v1, which is -1 from a coordinator that does not know it.
CONSUMER_PROTOCOL = "consumer"
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
_NOT_OF_THIS_KIND = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    """One member of a classic or consumer group.

    None means that the protocol has no such attribute, or, for `uses_consumer_protocol`, that the broker did not report
    it.
    """

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
    """A classic member's bytes of JoinGroup; brokers keep them for stable groups only."""
    assignment_bytes: bytes | None = None
    """A classic member's bytes of SyncGroup, as the leader sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group of consumers; `group_type` is classic or consumer. Epochs (KIP-848) are None for classic groups."""

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
    """Describe groups of consumers.

    Errors are `group-missing`, and `group-kind` for a group whose members are not consumers. Kafka's tools ask in the
    same order: ConsumerGroupDescribe first, and DescribeGroups if the broker does not know it or the group is of
    another kind.
    """
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
    # A classic group is unknown to ConsumerGroupDescribe. Asking ListGroups for the type first was rejected: it needs a
    # request to every broker and another permission.
    if group.error_code in _NOT_OF_THIS_KIND:
        return _classic(client, group_id)
    if group.error_code != ErrorCode.none:
        raise _refused(group, "ConsumerGroupDescribe")
    return _consumer_group(group)


def _refused(
    group: m.consumer_group_describe_response.DescribedGroup | m.describe_groups_response.DescribedGroup, api: str
) -> BrokerError:
    what = f"to describe the group {group.group_id}"
    return refusal(group.error_code, what, api=api, message=group.error_message, group_id=str(group.group_id))


def _consumer_group(group: m.consumer_group_describe_response.DescribedGroup) -> ConsumerGroupDescription:
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


def _partitions(assignment: m.consumer_group_describe_response.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(sorted((str(t.topic_name), int(p)) for t in assignment.topic_partitions for p in t.partitions))


def _classic(client: NetworkClient, group_id: str) -> ConsumerGroupDescription:
    request = m.describe_groups_request.DescribeGroupsRequest(
        groups=(GroupId(group_id),), include_authorized_operations=False
    )
    response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.groups))
    (group,) = response.groups
    if group.error_code != ErrorCode.none:
        raise _refused(group, "DescribeGroups")
    if group.group_state == "Dead":  # the answer of brokers before 4.0 for a group that does not exist
        raise refusal(
            ErrorCode.group_id_not_found, f"to describe the group {group_id}", api="DescribeGroups", group_id=group_id
        )
    # "" is a group without members that has only offsets (a simple consumer's).
    if group.protocol_type not in ("", CONSUMER_PROTOCOL):
        raise BrokerError(
            "group-kind",
            f'"{group_id}" is a group of the protocol "{group.protocol_type}", not a group of consumers',
            "List all groups with `headrace groups --list`.",
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
    """Decode a classic member's assignment; one that cannot be decoded is empty, so that it does not hide the other
    members.
    """
    try:
        return tuple(sorted(decode_assignment(bytes(data)).partitions))
    except MalformedUserData:
        return ()


_REASON = "removed by an operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovableMember:
    """A member and the protocol by which it leaves: `streams`, `consumer` or `classic`."""

    member_id: str
    instance_id: str | None
    protocol: str


def remove_members(client: NetworkClient, group_id: str, members: Iterable[RemovableMember]) -> Outcomes[str, None]:
    """Remove members from a group of any type, one by one.

    Kafka's Admin has this for classic groups only (`removeMembersFromConsumerGroup`, LeaveGroup). Groups of KIP-848 and
    KIP-1071 have no LeaveGroup: the leave is a heartbeat with epoch -1 that names its member, so it can be sent for a
    member whose process is gone. A member that is alive is fenced (UNKNOWN_MEMBER_ID) and joins again.

    Args:
        client: A client of the cluster.
        group_id: The group.
        members: The members, as they were described.

    Returns:
        Removed members and errors, by member id. A member that has left meanwhile counts as removed.
    """
    done: dict[str, None] = {}
    errors: dict[str, BrokerError] = {}
    for member in members:
        code, message, api = _leave(client, group_id, member)
        # The member is gone either way: the caller asked for that, not for the request.
        if code in (ErrorCode.none, ErrorCode.unknown_member_id):
            done[member.member_id] = None
        else:
            what = f"to remove the member {member.member_id} from the group {group_id}"
            errors[member.member_id] = refusal(code, what, api=api, message=message, group_id=group_id)
    return Outcomes(done=done, errors=errors)


def _leave(client: NetworkClient, group_id: str, member: RemovableMember) -> tuple[ErrorCode, str | None, str]:
    # The id in the request is the removed member's. Coordinators do not compare it with the connection, nor the epoch
    # of a leave with the member's.
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
    # Since v3 the outcome is per member; the error of the whole request is the group's.
    (result,) = response.members
    return result.error_code, None, "LeaveGroup"


def _streams_leave(group_id: str, member: RemovableMember) -> RequestMessage:
    # Without the instance id the coordinator finds any member by its member id. With it, it would look up the present
    # holder of the id and fence this request instead.
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


def _consumer_leave(group_id: str, member: RemovableMember) -> RequestMessage:
    return m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
        group_id=GroupId(group_id), member_id=member.member_id, member_epoch=i32(LEAVE_EPOCH), topic_partitions=None
    )
