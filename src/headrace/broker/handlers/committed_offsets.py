"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete.

Topics and partitions that do not exist are refused here, each alone; the rest is the coordinator's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeVar

from kio.schema.types import TopicName
from kio.static.primitive import i64

from headrace.broker.metadata.cluster_metadata import TopicDescription
from headrace.broker.requests.partial_response import (
    Api,
    GuardedRequest,
    map_response,
)
from headrace.broker.requests.request_context import RequestContext
from headrace.broker.security.acls import Operation
from headrace.broker.services import NO_THROTTLE, Services
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "APIS",
    "handle_offset_commit",
    "handle_offset_delete",
    "handle_offset_fetch",
    "merge_topics",
    "split_existing",
]


class _Asked(Protocol):
    @property
    def partition_index(self) -> int: ...


_Part = TypeVar("_Part", bound=_Asked)
_Topic = TypeVar("_Topic")


def split_existing(asked: Iterable[_Part], count: int) -> tuple[tuple[_Part, ...], tuple[_Part, ...]]:
    """Split what is asked of a topic with `count` partitions into what exists and what does not, in one pass."""
    there: list[_Part] = []
    missing: list[_Part] = []
    for part in asked:
        (there if 0 <= part.partition_index < count else missing).append(part)
    return tuple(there), tuple(missing)


def merge_topics(topics: Iterable[_Topic]) -> tuple[_Topic, ...]:
    """Merge entries of the same topic, by name and id, into one with all partitions."""
    first: dict[object, Any] = {}
    partitions: dict[object, list[object]] = {}
    # A request may name a topic twice, and answers and refusals of one topic come separately; clients expect it once.
    for topic in topics:
        found: Any = topic
        key = found.name, getattr(found, "topic_id", None)
        first.setdefault(key, found)
        partitions.setdefault(key, []).extend(found.partitions)
    return tuple(dataclasses.replace(topic, partitions=tuple(partitions[key])) for key, topic in first.items())


def handle_offset_commit(
    request: m.offset_commit_request.OffsetCommitRequest, context: RequestContext, broker: Services
) -> m.offset_commit_response.OffsetCommitResponse | Awaitable[m.offset_commit_response.OffsetCommitResponse]:
    """OffsetCommit (API 8): positions of a group, per partition.

    Version notes: v6 leader epochs; v7 instance ids; v8 flexible; v9 member epochs of the new groups (KIP-848); v10
    topic ids. Topics and partitions that do not exist are refused here, each alone; the rest is the coordinator's.
    """
    known: list[m.offset_commit_request.OffsetCommitRequestTopic] = []
    unknown: list[m.offset_commit_response.OffsetCommitResponseTopic] = []
    # Unknown topics are sorted out here, because the coordinator knows no topics: a commit for a deleted one would
    # never expire.
    for asked in request.topics:
        topic = (
            broker.metadata.topic_by_id(asked.topic_id)
            if context.api_version >= 10
            else broker.metadata.topic(asked.name)
        )
        if topic is None:
            code = ErrorCode.unknown_topic_id if context.api_version >= 10 else ErrorCode.unknown_topic_or_partition
            unknown.append(_refuse_commit(asked, code))
            continue
        named = _with_name_and_id(asked, topic)
        there, missing = split_existing(asked.partitions, topic.partitions)
        if there:
            known.append(dataclasses.replace(named, partitions=there))
        if missing:
            gone = dataclasses.replace(named, partitions=missing)
            unknown.append(_refuse_commit(gone, ErrorCode.unknown_topic_or_partition))
    if not known:
        return _commit_response(unknown)
    # The rule sees names only; ids are the wire's.
    resolved = dataclasses.replace(request, topics=tuple(known))

    def refuse(code: ErrorCode, _message: str) -> m.offset_commit_response.OffsetCommitResponse:
        return _commit_response([*(_refuse_commit(asked, code) for asked in known)])

    # The reply waits for the records of the commit, and under `headrace.flush.policy=always` for the disk.
    answer = broker.coordinator.answer(
        request.group_id,
        context,
        lambda shard, now_ms: shard.offset_commit(resolved, context.coordinator, now_ms=now_ms),
        refuse,
    )
    if isinstance(answer, Awaitable):
        return _complete_commit_later(answer, unknown, broker)
    return _complete_commit(answer, unknown, broker)


async def _complete_commit_later(
    answer: Awaitable[m.offset_commit_response.OffsetCommitResponse],
    unknown: list[m.offset_commit_response.OffsetCommitResponseTopic],
    broker: Services,
) -> m.offset_commit_response.OffsetCommitResponse:
    return _complete_commit(await answer, unknown, broker)


def _complete_commit(
    answer: m.offset_commit_response.OffsetCommitResponse,
    unknown: list[m.offset_commit_response.OffsetCommitResponseTopic],
    broker: Services,
) -> m.offset_commit_response.OffsetCommitResponse:
    """Names and ids on both, since the version decides which of them travels."""
    topics = []
    for topic in answer.topics:
        # The topic may have been deleted while the commit waited; its id from the request still answers it.
        described = broker.metadata.topic(topic.name) or broker.metadata.topic_by_id(topic.topic_id)
        topics.append(
            m.offset_commit_response.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=described.topic_id if described is not None else topic.topic_id,
                partitions=topic.partitions,
            )
        )
    return _commit_response([*topics, *unknown])


def _with_name_and_id(
    asked: m.offset_commit_request.OffsetCommitRequestTopic, topic: TopicDescription
) -> m.offset_commit_request.OffsetCommitRequestTopic:
    return m.offset_commit_request.OffsetCommitRequestTopic(
        name=TopicName(topic.name), topic_id=topic.topic_id, partitions=asked.partitions
    )


def _refuse_commit(
    asked: m.offset_commit_request.OffsetCommitRequestTopic, code: ErrorCode
) -> m.offset_commit_response.OffsetCommitResponseTopic:
    return m.offset_commit_response.OffsetCommitResponseTopic(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=tuple(
            m.offset_commit_response.OffsetCommitResponsePartition(
                partition_index=part.partition_index, error_code=code
            )
            for part in asked.partitions
        ),
    )


def _commit_response(
    topics: Iterable[m.offset_commit_response.OffsetCommitResponseTopic],
) -> m.offset_commit_response.OffsetCommitResponse:
    """Merge the topics of a response, so that each occurs once."""
    return m.offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=merge_topics(topics))


def handle_offset_fetch(
    request: m.offset_fetch_request.OffsetFetchRequest, context: RequestContext, broker: Services
) -> m.offset_fetch_response.OffsetFetchResponse:
    """OffsetFetch (API 9): committed positions of groups.

    Version notes: v2 all topics by null; v6 flexible; v7 require_stable; v8 several groups; v9 member id and epoch of
    the new groups (KIP-848); v10 topic ids: a topic that is gone has none, so it is left out of "all topics".
    """
    groups = tuple(
        _fetch_group(group, context, broker, require_stable=request.require_stable) for group in request.groups
    )
    return m.offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)


def _fetch_group(
    group: m.offset_fetch_request.OffsetFetchRequestGroup,
    context: RequestContext,
    broker: Services,
    *,
    require_stable: bool,
) -> m.offset_fetch_response.OffsetFetchResponseGroup:
    by_id = context.api_version >= 10
    # From version 10 on topics are ids (KIP-848): resolved for the coordinator, which knows names.
    resolved, unknown = _resolve_topic_ids(group, broker) if by_id else (group, [])
    try:
        answer: m.offset_fetch_response.OffsetFetchResponseGroup = broker.coordinator.shard_of(
            group.group_id
        ).offset_fetch(resolved, context.coordinator, require_stable=require_stable)
    except CoordinatorError as error:
        return m.offset_fetch_response.OffsetFetchResponseGroup(
            group_id=group.group_id, topics=(), error_code=error.code
        )
    if not answer.topics and not unknown:
        return answer
    return dataclasses.replace(answer, topics=(*_with_ids(answer.topics, broker, by_id=by_id), *unknown))


def _resolve_topic_ids(
    group: m.offset_fetch_request.OffsetFetchRequestGroup, broker: Services
) -> tuple[m.offset_fetch_request.OffsetFetchRequestGroup, list[m.offset_fetch_response.OffsetFetchResponseTopics]]:
    if group.topics is None:
        return group, []
    known: list[m.offset_fetch_request.OffsetFetchRequestTopics] = []
    unknown: list[m.offset_fetch_response.OffsetFetchResponseTopics] = []
    for asked in group.topics:
        topic = broker.metadata.topic_by_id(asked.topic_id)
        if topic is None:
            unknown.append(_unknown_offsets(asked))
        else:
            known.append(dataclasses.replace(asked, name=TopicName(topic.name)))
    return dataclasses.replace(group, topics=tuple(known)), unknown


def _with_ids(
    topics: Iterable[m.offset_fetch_response.OffsetFetchResponseTopics], broker: Services, *, by_id: bool
) -> list[m.offset_fetch_response.OffsetFetchResponseTopics]:
    result = []
    for topic in topics:
        described = broker.metadata.topic(topic.name)
        if described is not None:
            result.append(dataclasses.replace(topic, topic_id=described.topic_id))
        # A deleted topic still has committed offsets for a while. By name they are reported; by id there is nothing to
        # report them under.
        elif not by_id:
            result.append(topic)
    return result


def _unknown_offsets(
    asked: m.offset_fetch_request.OffsetFetchRequestTopics,
) -> m.offset_fetch_response.OffsetFetchResponseTopics:
    return m.offset_fetch_response.OffsetFetchResponseTopics(
        topic_id=asked.topic_id,
        partitions=tuple(
            m.offset_fetch_response.OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=i64(-1),
                metadata="",
                error_code=ErrorCode.unknown_topic_id,
            )
            for partition in asked.partition_indexes
        ),
    )


def handle_offset_delete(
    request: m.offset_delete_request.OffsetDeleteRequest, context: RequestContext, broker: Services
) -> m.offset_delete_response.OffsetDeleteResponse | Awaitable[m.offset_delete_response.OffsetDeleteResponse]:
    """OffsetDelete (API 47, KIP-496): committed positions of single partitions are forgotten.

    Version notes: v0 only. Topics and partitions that do not exist are refused here; the rest is the coordinator's.
    """
    known: list[m.offset_delete_request.OffsetDeleteRequestTopic] = []
    unknown: list[m.offset_delete_response.OffsetDeleteResponseTopic] = []
    for asked in request.topics:
        topic = broker.metadata.topic(asked.name)
        count = topic.partitions if topic is not None else 0
        there, missing = split_existing(asked.partitions, count)
        # A known topic is asked about even without a known partition: the coordinator answers for the group then.
        if topic is not None:
            known.append(dataclasses.replace(asked, partitions=there))
        if missing:
            unknown.append(_unknown_deletion(dataclasses.replace(asked, partitions=missing)))
    resolved = dataclasses.replace(request, topics=tuple(known))

    def refuse(code: ErrorCode, _message: str) -> m.offset_delete_response.OffsetDeleteResponse:
        return m.offset_delete_response.OffsetDeleteResponse(error_code=code, throttle_time=NO_THROTTLE, topics=())

    answer = broker.coordinator.answer(
        request.group_id,
        context,
        lambda shard, now_ms: shard.offset_delete(resolved, context.coordinator, now_ms=now_ms),
        refuse,
    )
    if isinstance(answer, Awaitable):
        return _complete_delete_later(answer, unknown)
    return _complete_delete(answer, unknown)


async def _complete_delete_later(
    answer: Awaitable[m.offset_delete_response.OffsetDeleteResponse],
    unknown: list[m.offset_delete_response.OffsetDeleteResponseTopic],
) -> m.offset_delete_response.OffsetDeleteResponse:
    return _complete_delete(await answer, unknown)


def _complete_delete(
    answer: m.offset_delete_response.OffsetDeleteResponse,
    unknown: list[m.offset_delete_response.OffsetDeleteResponseTopic],
) -> m.offset_delete_response.OffsetDeleteResponse:
    """Merge the topics of a response, so that each occurs once."""
    if answer.error_code is not ErrorCode.none:
        return answer
    return dataclasses.replace(answer, topics=merge_topics((*answer.topics, *unknown)))


def _unknown_deletion(
    asked: m.offset_delete_request.OffsetDeleteRequestTopic,
) -> m.offset_delete_response.OffsetDeleteResponseTopic:
    r = m.offset_delete_response
    return r.OffsetDeleteResponseTopic(
        name=asked.name,
        partitions=tuple(
            r.OffsetDeleteResponsePartition(
                partition_index=part.partition_index, error_code=ErrorCode.unknown_topic_or_partition
            )
            for part in asked.partitions
        ),
    )


# --- access rules ---


def authorize_offset_commit(guarded: GuardedRequest) -> object:
    """Check READ of the group, READ of each topic."""
    request, allow, context = guarded.request, guarded.allow, guarded.context
    if not allow.on_group(context, Operation.READ, request.group_id):
        return guarded.refuse(ErrorCode.group_authorization_failed)

    def permitted(item: m.offset_commit_request.OffsetCommitRequestTopic) -> bool:
        name = guarded.topic_name(item.name, item.topic_id)
        return name is None or allow.on_topic(context, Operation.READ, name)

    return guarded.split("topics", "topics", permitted, ErrorCode.topic_authorization_failed)


def authorize_offset_fetch(guarded: GuardedRequest) -> object:
    """Check DESCRIBE of the group, DESCRIBE of each topic; without names, what may be seen."""
    allow, context = guarded.allow, guarded.context
    r = m.offset_fetch_response
    answers: dict[int, m.offset_fetch_response.OffsetFetchResponseGroup] = {}
    asked: list[tuple[int, m.offset_fetch_request.OffsetFetchRequestGroup]] = []
    hidden: dict[int, tuple[m.offset_fetch_response.OffsetFetchResponseTopics, ...]] = {}

    def may_see(
        item: m.offset_fetch_request.OffsetFetchRequestTopics | m.offset_fetch_response.OffsetFetchResponseTopics,
    ) -> bool:
        name = guarded.topic_name(item.name, item.topic_id)
        return name is None or allow.on_topic(context, Operation.DESCRIBE, name)

    # 1. Groups without DESCRIBE are answered here. Of the others, topics that the client may not see are taken out.
    for position, group in enumerate(guarded.request.groups):
        if not allow.on_group(context, Operation.DESCRIBE, group.group_id):
            answers[position] = r.OffsetFetchResponseGroup(
                group_id=group.group_id, topics=(), error_code=ErrorCode.group_authorization_failed
            )
            continue
        if group.topics is not None:
            hidden[position] = tuple(_hidden_offsets(item) for item in group.topics if not may_see(item))
            group = dataclasses.replace(group, topics=tuple(filter(may_see, group.topics)))
        asked.append((position, group))

    def merged(
        answer: m.offset_fetch_response.OffsetFetchResponse,
    ) -> m.offset_fetch_response.OffsetFetchResponse:
        # 2. The handler's answers go to their places; "all topics" is filtered now that they are known.
        for (position, group), found in zip(asked, answer.groups, strict=True):
            topics = found.topics
            if group.topics is None:
                topics = tuple(topic for topic in topics if may_see(topic))
            if found.error_code is ErrorCode.none:
                topics = (*topics, *hidden.get(position, ()))
            answers[position] = dataclasses.replace(found, topics=topics)
        return dataclasses.replace(answer, groups=tuple(answers[position] for position in sorted(answers)))

    return map_response(guarded.handle(groups=tuple(group for _, group in asked)), merged)


def _hidden_offsets(
    item: m.offset_fetch_request.OffsetFetchRequestTopics,
) -> m.offset_fetch_response.OffsetFetchResponseTopics:
    r = m.offset_fetch_response
    return r.OffsetFetchResponseTopics(
        name=item.name,
        topic_id=item.topic_id,
        partitions=tuple(
            r.OffsetFetchResponsePartitions(
                partition_index=partition,
                committed_offset=i64(-1),
                metadata="",
                error_code=ErrorCode.topic_authorization_failed,
            )
            for partition in item.partition_indexes
        ),
    )


def authorize_offset_delete(guarded: GuardedRequest) -> object:
    """Check DELETE of the group, READ of each topic."""
    allow, context = guarded.allow, guarded.context
    if not allow.on_group(context, Operation.DELETE, guarded.request.group_id):
        return dataclasses.replace(guarded.refuse(ErrorCode.group_authorization_failed), topics=())
    return guarded.split(
        "topics",
        "topics",
        lambda item: allow.on_topic(context, Operation.READ, item.name),
        ErrorCode.topic_authorization_failed,
    )


APIS = {
    ApiKey.OFFSET_COMMIT: Api(handle_offset_commit, authorize_offset_commit),
    ApiKey.OFFSET_FETCH: Api(handle_offset_fetch, authorize_offset_fetch),
    ApiKey.OFFSET_DELETE: Api(handle_offset_delete, authorize_offset_delete),
}
