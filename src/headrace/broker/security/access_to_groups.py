"""Checks of the APIs about groups and their positions, and of what streams groups need of topics (KIP-1071)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64

from headrace.broker.coordinators.classic_group_requests import names_its_protocol, refuse_member
from headrace.broker.security.access_to_topics import name_of
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.partial_response import MESSAGES, Checked, then
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "delete_groups",
    "describe_groups",
    "find_coordinator",
    "list_groups",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "read_group",
    "streams_group_describe",
    "streams_group_heartbeat",
    "sync_group",
]

_TOPIC_FAILED = ErrorCode.topic_authorization_failed
_GROUP_FAILED = ErrorCode.group_authorization_failed
_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_NOT_ASKED = -(2**31)


def find_coordinator(checked: Checked) -> Any:
    """DESCRIBE of the group or transactional id; of share groups CLUSTER_ACTION."""
    allow, call = checked.allow, checked.call
    if checked.request.key_type == _GROUP_KEY:
        return checked.split(
            "coordinator_keys",
            "coordinators",
            lambda key: allow.on_group(call, Operation.DESCRIBE, key),
            _GROUP_FAILED,
            lambda key: _no_coordinator(key, _GROUP_FAILED),
        )
    failed = ErrorCode.transactional_id_authorization_failed
    if checked.request.key_type == _TRANSACTION_KEY:
        return checked.split(
            "coordinator_keys",
            "coordinators",
            lambda key: allow.on_transactional_id(call, Operation.DESCRIBE, key),
            failed,
            lambda key: _no_coordinator(key, failed),
        )
    if allow.on_cluster(call, Operation.CLUSTER_ACTION):
        return checked.handled()
    return checked.refused(ErrorCode.cluster_authorization_failed)


def _no_coordinator(key: str, code: ErrorCode) -> Any:

    return m.find_coordinator_response.Coordinator(
        key=key, node_id=BrokerId(-1), host="", port=i32(-1), error_code=code, error_message=""
    )


def offset_commit(checked: Checked) -> Any:
    """READ of the group, READ of each topic."""
    request, allow, call = checked.request, checked.allow, checked.call
    if not allow.on_group(call, Operation.READ, request.group_id):
        return checked.refused(_GROUP_FAILED)

    def permitted(item: Any) -> bool:
        name = name_of(checked, item.name, item.topic_id)
        return name is None or allow.on_topic(call, Operation.READ, name)

    return checked.split("topics", "topics", permitted, _TOPIC_FAILED)


def offset_delete(checked: Checked) -> Any:
    """DELETE of the group, READ of each topic."""
    allow, call = checked.allow, checked.call
    if not allow.on_group(call, Operation.DELETE, checked.request.group_id):
        return dataclasses.replace(checked.refused(_GROUP_FAILED), topics=())
    return checked.split(
        "topics", "topics", lambda item: allow.on_topic(call, Operation.READ, item.name), _TOPIC_FAILED
    )


def offset_fetch(checked: Checked) -> Any:
    """DESCRIBE of the group, DESCRIBE of each topic; without names, what may be seen."""
    allow, call = checked.allow, checked.call
    r = m.offset_fetch_response
    answers: dict[int, Any] = {}
    asked: list[tuple[int, Any]] = []
    hidden: dict[int, tuple[Any, ...]] = {}

    def may_see(item: Any) -> bool:
        name = name_of(checked, item.name, item.topic_id)
        return name is None or allow.on_topic(call, Operation.DESCRIBE, name)

    for position, group in enumerate(checked.request.groups):
        if not allow.on_group(call, Operation.DESCRIBE, group.group_id):
            answers[position] = r.OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=_GROUP_FAILED)
            continue
        if group.topics is not None:
            hidden[position] = tuple(_hidden(item) for item in group.topics if not may_see(item))
            group = dataclasses.replace(group, topics=tuple(filter(may_see, group.topics)))
        asked.append((position, group))

    def merged(answer: Any) -> Any:
        for (position, group), found in zip(asked, answer.groups, strict=True):
            topics = found.topics
            if group.topics is None:
                topics = tuple(topic for topic in topics if may_see(topic))
            if found.error_code is ErrorCode.none:
                topics = (*topics, *hidden.get(position, ()))
            answers[position] = dataclasses.replace(found, topics=topics)
        return dataclasses.replace(answer, groups=tuple(answers[position] for position in sorted(answers)))

    return then(checked.handled(groups=tuple(group for _, group in asked)), merged)


def _hidden(item: Any) -> Any:

    r = m.offset_fetch_response
    return r.OffsetFetchResponseTopics(
        name=item.name,
        topic_id=item.topic_id,
        partitions=tuple(
            r.OffsetFetchResponsePartitions(
                partition_index=partition, committed_offset=i64(-1), metadata="", error_code=_TOPIC_FAILED
            )
            for partition in item.partition_indexes
        ),
    )


def describe_groups(checked: Checked) -> Any:
    """Check DESCRIBE of each named group."""
    return _described(checked, "groups")


def streams_group_describe(checked: Checked) -> Any:
    """A group with a topic in its topology that may not be seen is refused as a whole."""

    def shown(group: Any) -> Any:
        names = _topics_of(group.topology.subtopologies or ()) if group.topology is not None else iter(())
        if all(checked.allow.on_topic(checked.call, Operation.DESCRIBE, name) for name in names):
            return group
        hidden = _undescribed(group, "The described group uses topics that the client is not authorized to describe.")
        return dataclasses.replace(hidden, topology=None)

    return then(
        _described(checked, "group_ids"),
        lambda answer: dataclasses.replace(answer, groups=tuple(map(shown, answer.groups))),
    )


def _described(checked: Checked, asked: str) -> Any:
    """DESCRIBE of the group; the bits of operations for groups that are described."""
    allow, call = checked.allow, checked.call

    def finished(answer: Any) -> Any:
        if not checked.request.include_authorized_operations:
            return answer
        groups = (
            dataclasses.replace(group, authorized_operations=allow.operations(call, ResourceType.GROUP, group.group_id))
            if group.error_code is ErrorCode.none
            else group
            for group in answer.groups
        )
        return dataclasses.replace(answer, groups=tuple(groups))

    return then(
        checked.split(
            asked, "groups", lambda group_id: allow.on_group(call, Operation.DESCRIBE, group_id), _GROUP_FAILED
        ),
        finished,
    )


def list_groups(checked: Checked) -> Any:
    """All with DESCRIBE of the cluster, else those with DESCRIBE of their own."""
    allow, call = checked.allow, checked.call
    if allow.on_cluster(call, Operation.DESCRIBE):
        return checked.handled()
    return then(
        checked.handled(),
        lambda answer: dataclasses.replace(
            answer,
            groups=tuple(group for group in answer.groups if allow.on_group(call, Operation.DESCRIBE, group.group_id)),
        ),
    )


def delete_groups(checked: Checked) -> Any:
    """Check DELETE of each named group."""
    allow, call = checked.allow, checked.call
    return checked.split(
        "groups_names", "results", lambda group_id: allow.on_group(call, Operation.DELETE, group_id), _GROUP_FAILED
    )


def _undescribed(group: Any, message: str) -> Any:
    """The group's id and the refusal alone: not its state, not its epochs."""
    return dataclasses.replace(
        group,
        error_code=_TOPIC_FAILED,
        error_message=message,
        group_state="",
        group_epoch=i32(0),
        assignment_epoch=i32(0),
        members=(),
        authorized_operations=i32(_NOT_ASKED),
    )


def consumer_group_describe(checked: Checked) -> Any:
    """A group with a topic that may not be seen, subscribed to or assigned, is refused as a whole."""

    def shown(group: Any) -> Any:
        names = dict.fromkeys(name for member in group.members for name in _topics_of_consumer(member))
        if all(checked.allow.on_topic(checked.call, Operation.DESCRIBE, name) for name in names):
            return group
        return _undescribed(group, "The group has described topic(s) that the client is not authorized to describe.")

    return then(
        _described(checked, "group_ids"),
        lambda answer: dataclasses.replace(answer, groups=tuple(shown(group) for group in answer.groups)),
    )


def consumer_group_heartbeat(checked: Checked) -> Any:
    """READ of the group. The handler asks for DESCRIBE of the topics that the member names or matches."""
    from headrace.broker.handlers.consumer_group_heartbeat import refuse

    if checked.allow.on_group(checked.call, Operation.READ, checked.request.group_id):
        return checked.handled()
    return refuse(_GROUP_FAILED, MESSAGES[_GROUP_FAILED])


def streams_group_heartbeat(checked: Checked) -> Any:
    """READ of the group. The handler asks for DESCRIBE of every topic in the topology, once that is known to be legal,
    and for CREATE of the internal topics that are missing."""
    from headrace.broker.handlers.streams_group_heartbeat import refuse

    if checked.allow.on_group(checked.call, Operation.READ, checked.request.group_id):
        return checked.handled()
    return refuse(_GROUP_FAILED, MESSAGES[_GROUP_FAILED])


def read_group(checked: Checked) -> Any:
    """READ of the group, of everything that members of classic groups send."""
    if checked.allow.on_group(checked.call, Operation.READ, checked.request.group_id):
        return checked.handled()
    return refuse_member(checked.key, _GROUP_FAILED)


def sync_group(checked: Checked) -> Any:
    """The same; a request that does not name what its version must name is refused for that, as in Kafka."""
    return read_group(checked) if names_its_protocol(checked.request, checked.call) else checked.handled()


def _topics_of_consumer(member: Any) -> Iterator[str]:
    yield from member.subscribed_topic_names
    yield from (each.topic_name for each in member.assignment.topic_partitions)
    yield from (each.topic_name for each in member.target_assignment.topic_partitions)


def _topics_of(subtopologies: tuple[Any, ...]) -> Iterator[str]:
    for subtopology in subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)
