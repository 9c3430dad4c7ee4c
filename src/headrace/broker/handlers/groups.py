"""Groups of every kind: FindCoordinator, ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import TypeVar

from kio.schema.types import BrokerId, GroupId
from kio.static.primitive import i32

from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    Message,
    map_response,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.authorizer import ON_GROUP
from headrace.broker.services import ALL_OPERATIONS_UNKNOWN, NO_THROTTLE, Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "APIS",
    "authorize_described_groups",
    "handle_delete_groups",
    "handle_describe_groups",
    "handle_find_coordinator",
    "handle_list_groups",
    "hide_group",
]

_Group = TypeVar(
    "_Group",
    "m.consumer_group_describe_response.DescribedGroup",
    "m.streams_group_describe_response.DescribedGroup",
)

# `FindCoordinatorRequest.CoordinatorType`.
GROUP, TRANSACTION, SHARE = 0, 1, 2


def handle_find_coordinator(
    request: m.find_coordinator_request.FindCoordinatorRequest, context: RequestContext, broker: Services
) -> m.find_coordinator_response.FindCoordinatorResponse:
    """FindCoordinator (API 10): who coordinates this group, or this transactional id.

    Version notes: v1 key type (0 group, 1 transaction); v3 flexible; v4 several keys (KIP-699); v6 key type 2, share
    groups (KIP-932). There is one broker, so it coordinates everything. The first question for a transactional id makes
    `__transaction_state`, as in Kafka.
    """
    r = m.find_coordinator_response
    host, port = broker.address_of(context)
    code, message = _coordinator_error(request.key_type, broker)
    # Node -1 without a host is Kafka's Node.noNode, which clients take as "ask again".
    found = code is ErrorCode.none
    return r.FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=tuple(
            r.Coordinator(
                key=key,
                node_id=broker.node_id if found else BrokerId(-1),
                host=host if found else "",
                port=i32(port if found else -1),
                error_code=code,
                error_message=message,
            )
            for key in request.coordinator_keys
        ),
    )


def _coordinator_error(key_type: int, broker: Services) -> tuple[ErrorCode, str | None]:
    if key_type == GROUP:
        return ErrorCode.none, None
    if key_type == TRANSACTION:
        # The topic is made here, as in Kafka, so that the first InitProducerId finds its coordinator.
        try:
            broker.transactions.ready()
        except CoordinatorError as error:
            return error.code, error.message
        return ErrorCode.none, None
    if key_type == SHARE:
        return ErrorCode.unsupported_version, "Share groups are not supported by this broker."
    return ErrorCode.invalid_request, f"Unknown coordinator key type {key_type}."


def handle_list_groups(
    request: m.list_groups_request.ListGroupsRequest, _context: RequestContext, broker: Services
) -> m.list_groups_response.ListGroupsResponse:
    """ListGroups (API 16): all groups of this broker.

    Version notes: v3 flexible; v4 filter by state; v5 filter by type. Names of filters are taken in any case.
    """
    # Shards whose log could not be read are left out: their groups have another state than Dead, and it is unknown.
    groups = [
        group
        for shard in broker.coordinator.shards()
        for group in shard.list_groups(request.states_filter, request.types_filter)
    ]
    return m.list_groups_response.ListGroupsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        groups=tuple(sorted(groups, key=lambda group: group.group_id)),
    )


def handle_describe_groups(
    request: m.describe_groups_request.DescribeGroupsRequest, context: RequestContext, broker: Services
) -> m.describe_groups_response.DescribeGroupsResponse:
    """DescribeGroups (API 15): classic groups. A group of another kind, or none, is Dead.

    Version notes: v4 instance ids; v5 flexible; v6 GROUP_ID_NOT_FOUND with a message instead of a silent Dead.
    """
    groups: list[m.describe_groups_response.DescribedGroup] = []
    for group_id in request.groups:
        try:
            # A shard that is loading or failed refuses its groups; those of other shards are described.
            groups += broker.coordinator.shard_of(group_id).describe_groups((group_id,), context.coordinator)
        except CoordinatorError as error:
            groups.append(
                m.describe_groups_response.DescribedGroup(
                    error_code=error.code,
                    error_message=error.message,
                    group_id=group_id,
                    group_state="",
                    protocol_type="",
                    protocol_data="",
                    members=(),
                )
            )
    if request.include_authorized_operations:
        groups = [
            dataclasses.replace(group, authorized_operations=ON_GROUP) if group.error_code is ErrorCode.none else group
            for group in groups
        ]
    return m.describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(groups))


def handle_delete_groups(
    request: m.delete_groups_request.DeleteGroupsRequest, context: RequestContext, broker: Services
) -> m.delete_groups_response.DeleteGroupsResponse | Awaitable[m.delete_groups_response.DeleteGroupsResponse]:
    """DeleteGroups (API 42): empty groups with all their positions, each with its own answer.

    Version notes: v2 flexible. The groups may live in different shards, so each is its own write.
    """
    # Groups may live in different shards, so each is a write of its own; one that has to wait does not hold up the
    # others.
    # All writes begin before the first is awaited: they wait for the same flush.
    answers = [_delete_group(group_id, context, broker) for group_id in dict.fromkeys(request.groups_names)]
    if any(isinstance(answer, Awaitable) for answer in answers):
        return _merge_deletions_later(answers)
    return _merge_deletions([answer for answer in answers if not isinstance(answer, Awaitable)])


def _delete_group(
    group_id: GroupId, context: RequestContext, broker: Services
) -> m.delete_groups_response.DeleteGroupsResponse | Awaitable[m.delete_groups_response.DeleteGroupsResponse]:
    def refuse(code: ErrorCode, _message: str) -> m.delete_groups_response.DeleteGroupsResponse:
        r = m.delete_groups_response
        result = r.DeletableGroupResult(group_id=group_id, error_code=code)
        return r.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=(result,))

    answer: m.delete_groups_response.DeleteGroupsResponse | Awaitable[m.delete_groups_response.DeleteGroupsResponse] = (
        broker.coordinator.answer(
            group_id,
            context,
            lambda shard, now_ms: shard.delete_groups((group_id,), context.coordinator, now_ms=now_ms),
            refuse,
        )
    )
    return answer


async def _merge_deletions_later(
    answers: list[
        m.delete_groups_response.DeleteGroupsResponse | Awaitable[m.delete_groups_response.DeleteGroupsResponse]
    ],
) -> m.delete_groups_response.DeleteGroupsResponse:
    return _merge_deletions([await answer if isinstance(answer, Awaitable) else answer for answer in answers])


def _merge_deletions(
    answers: list[m.delete_groups_response.DeleteGroupsResponse],
) -> m.delete_groups_response.DeleteGroupsResponse:
    return m.delete_groups_response.DeleteGroupsResponse(
        throttle_time=NO_THROTTLE, results=tuple(result for answer in answers for result in answer.results)
    )


# --- access rules ---


def authorize_find_coordinator(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the group or transactional id; of share groups CLUSTER_ACTION."""
    allow, context = guarded.allow, guarded.context
    # DESCRIBE, not READ: tools that only look at a group have to find its coordinator too.
    if guarded.request.key_type == GROUP:
        return guarded.split(
            "coordinator_keys",
            "coordinators",
            lambda key: allow.on_group(context, Operation.DESCRIBE, key),
            ErrorCode.group_authorization_failed,
            lambda key: _no_coordinator(key, ErrorCode.group_authorization_failed),
        )
    failed = ErrorCode.transactional_id_authorization_failed
    if guarded.request.key_type == TRANSACTION:
        return guarded.split(
            "coordinator_keys",
            "coordinators",
            lambda key: allow.on_transactional_id(context, Operation.DESCRIBE, key),
            failed,
            lambda key: _no_coordinator(key, failed),
        )
    if allow.on_cluster(context, Operation.CLUSTER_ACTION):
        return guarded.handle()
    return guarded.refuse(ErrorCode.cluster_authorization_failed)


def _no_coordinator(key: str, code: ErrorCode) -> m.find_coordinator_response.Coordinator:
    return m.find_coordinator_response.Coordinator(
        key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=code, error_message=""
    )


def authorize_list_groups(guarded: GuardedRequest) -> object:
    """List all groups with DESCRIBE of the cluster, else those with DESCRIBE of their own."""
    allow, context = guarded.allow, guarded.context
    if allow.on_cluster(context, Operation.DESCRIBE):
        return guarded.handle()
    return map_response(
        guarded.handle(),
        lambda answer: dataclasses.replace(
            answer,
            groups=tuple(
                group for group in answer.groups if allow.on_group(context, Operation.DESCRIBE, group.group_id)
            ),
        ),
    )


def authorize_describe_groups(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of each named group."""
    return authorize_described_groups(guarded, "groups")


def authorize_described_groups(guarded: GuardedRequest, asked: str) -> object:
    """Check DESCRIBE of each group, and add the allowed operations."""
    allow, context = guarded.allow, guarded.context

    def finished(answer: Message) -> object:
        # The handler answers with all operations; the client's own ones are known only here.
        if not guarded.request.include_authorized_operations:
            return answer
        groups = (
            dataclasses.replace(
                group, authorized_operations=allow.operations(context, ResourceType.GROUP, group.group_id)
            )
            if group.error_code is ErrorCode.none
            else group
            for group in answer.groups
        )
        return dataclasses.replace(answer, groups=tuple(groups))

    return map_response(
        guarded.split(
            asked,
            "groups",
            lambda group_id: allow.on_group(context, Operation.DESCRIBE, group_id),
            ErrorCode.group_authorization_failed,
        ),
        finished,
    )


def authorize_delete_groups(guarded: GuardedRequest) -> object:
    """Check DELETE of each named group."""
    allow, context = guarded.allow, guarded.context
    return guarded.split(
        "groups_names",
        "results",
        lambda group_id: allow.on_group(context, Operation.DELETE, group_id),
        ErrorCode.group_authorization_failed,
    )


def hide_group(group: _Group, message: str) -> _Group:
    """Return a described group without what the client may not see: id and refusal alone, no state, no epochs."""
    return dataclasses.replace(
        group,
        error_code=ErrorCode.topic_authorization_failed,
        error_message=message,
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        members=(),
        authorized_operations=i32(ALL_OPERATIONS_UNKNOWN),
    )


APIS = {
    ApiKey.FIND_COORDINATOR: Api(handle_find_coordinator, authorize_find_coordinator),
    ApiKey.LIST_GROUPS: Api(handle_list_groups, authorize_list_groups),
    ApiKey.DESCRIBE_GROUPS: Api(handle_describe_groups, authorize_describe_groups),
    ApiKey.DELETE_GROUPS: Api(handle_delete_groups, authorize_delete_groups),
}
