"""Groups as an administrator sees them: list, describe, delete, and forget single positions (KIP-1071, KIP-496).

Each call travels to the coordinator of its group and answers for each group (or partition) by itself, so that one
refusal does not hide what became of the others. How members are removed: `member_removal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from headrace.client.admin_results import GroupListing, Outcomes, StreamsGroupDescription, read_streams_group
from headrace.client.broker_errors import raise_for, refusal
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable

__all__ = ["delete_groups", "delete_offsets", "describe_streams_groups", "list_groups", "plain_name"]

TopicPartition = tuple[str, int]


def list_groups(
    client: NetworkClient, states: Iterable[str], types: Iterable[str], protocols: Iterable[str]
) -> tuple[GroupListing, ...]:
    """The groups of all brokers, ordered by id; an empty filter asks for all.

    The broker filters by type. States are compared here, in any spelling: Kafka 4.3's own filter never finds NotReady.
    """
    wanted_states = {plain_name(state) for state in states}
    wanted_protocols = set(protocols)
    request = m.list_groups_request.ListGroupsRequest(states_filter=(), types_filter=tuple(types))
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


def _answers_when_loaded(client: NetworkClient, requests: list[tuple[int | None, Any]]) -> list[Any]:
    """A broker that has just started is asked again until its coordinators have read their logs."""
    deadline, backoff = Deadline.after_ms(client.api_timeout_ms), Backoff()
    while True:
        responses = client.call_all(requests, timeout_ms=max(deadline.remaining_s, 0.1) * 1000)
        if deadline.passed or not any(is_retriable(response.error_code) for response in responses):
            return responses
        backoff.pause(deadline)


def plain_name(name: str) -> str:
    """`NotReady`, `not_ready` and `NOT-READY` are one name."""
    return name.strip().replace("_", "").replace("-", "").lower()


def describe_streams_groups(client: NetworkClient, group_ids: Iterable[str]) -> Outcomes[str, StreamsGroupDescription]:
    """StreamsGroupDescribe; `group-missing` also stands for a group of another type."""
    done: dict[str, StreamsGroupDescription] = {}
    errors: dict[str, BrokerError] = {}
    for group_id in dict.fromkeys(group_ids):
        request = m.streams_group_describe_request.StreamsGroupDescribeRequest(
            group_ids=(GroupId(group_id),), include_authorized_operations=False
        )
        response = client.call_coordinator(group_id, request, lambda r: (g.error_code for g in r.groups))
        (group,) = response.groups
        if group.error_code == ErrorCode.none:
            done[group_id] = read_streams_group(group)
        else:
            what = f"to describe the streams group {group_id}"
            errors[group_id] = refusal(
                group.error_code, what, api="StreamsGroupDescribe", message=group.error_message, group_id=group_id
            )
    return Outcomes(done=done, errors=errors)


def delete_groups(client: NetworkClient, group_ids: Iterable[str]) -> Outcomes[str, None]:
    """DeleteGroups: groups of any type, with their positions; `group-not-empty`, `group-missing`."""
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
    """OffsetDelete. A partition of a topic that living members read is refused (`group-not-empty`), the others are
    done. Raises BrokerError when the whole group is refused (`group-missing`)."""
    wanted = sorted(set(partitions))
    response = client.call_coordinator(group_id, _delete_request(group_id, wanted), _delete_errors)
    raise_for(response.error_code, f"to delete offsets of {group_id}", api="OffsetDelete", group_id=group_id)
    codes = {
        (str(topic.name), int(partition.partition_index)): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    answered = {key: codes.get(key, ErrorCode.unknown_topic_or_partition) for key in wanted}
    return Outcomes(
        done={key: None for key, code in answered.items() if code == ErrorCode.none},
        errors={
            key: refusal(code, f"to delete the offset of {key[0]}-{key[1]}", api="OffsetDelete", group_id=group_id)
            for key, code in answered.items()
            if code != ErrorCode.none
        },
    )


def _delete_request(group_id: str, partitions: list[TopicPartition]) -> object:
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


def _delete_errors(response: Any) -> list[ErrorCode]:
    return [response.error_code, *(p.error_code for topic in response.topics for p in topic.partitions)]
