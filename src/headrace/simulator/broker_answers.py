"""Responses of the simulated broker: the rule for each request, error responses, and responses without a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32

from headrace.coordinator.classic.transition import heartbeat_reply, join_error_reply, leave_reply, sync_error_reply
from headrace.coordinator.consumer.heartbeat import heartbeat_reply as consumer_reply
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.coordinator.streams.heartbeat_messages import leave_reply as streams_leave_reply
from headrace.protocol import messages as m
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms

__all__ = ["NODE", "CommitRefused", "follow_rule", "plain_answer", "refusal"]

NODE = 1

Commit = m.offset_commit_request.OffsetCommitRequest
Find = m.find_coordinator_request.FindCoordinatorRequest
Join = m.join_group_request.JoinGroupRequest
Sync = m.sync_group_request.SyncGroupRequest
Leave = m.leave_group_request.LeaveGroupRequest
ClassicHeartbeat = m.heartbeat_request.HeartbeatRequest
ConsumerHeartbeat = m.consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
StreamsHeartbeat = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest
Metadata = m.metadata_request.MetadataRequest
Versions = m.api_versions_request.ApiVersionsRequest


class CommitRefused(Exception):
    """The whole commit was refused; carries the error code."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def follow_rule(
    shard: GroupCoordinatorShard, request: object, context: RequestContext, *, fresh_id: str, now_ms: int
) -> CoordinatorResult:
    """Return the result of the coordinator's rule for a request. Raises CoordinatorError."""
    match request:
        case StreamsHeartbeat():
            return shard.streams_group_heartbeat(request, context, now_ms=now_ms)
        case ConsumerHeartbeat():
            return shard.consumer_group_heartbeat(request, context, now_ms=now_ms)
        case Join():
            return shard.join_group(request, context, fresh_id=fresh_id, now_ms=now_ms)
        case Sync():
            return shard.sync_group(request, context, now_ms=now_ms)
        case ClassicHeartbeat():
            return shard.heartbeat(request, context, now_ms=now_ms)
        case Leave():
            return shard.leave_group(request, context, now_ms=now_ms)
        case Commit():
            return shard.offset_commit(request, context, now_ms=now_ms)
    # A request without a rule is a defect of the simulator: answering it with an error would let members retry for
    # ever, and the world would fail far from the cause.
    raise TypeError(f"the simulated broker knows no {type(request).__name__}")


def refusal(request: object, error: CoordinatorError) -> object:
    """Return a response with the error only."""
    code = error.code
    match request:
        case Commit():
            return CommitRefused(code)
        case ConsumerHeartbeat():
            # An error reply of a heartbeat carries code and message only, as in Kafka: a member that took its id or
            # epoch from it would join under another identity.
            reply = consumer_reply(member_id="", member_epoch=0)
            return replace(reply, member_id=None, error_code=code, error_message=error.message)
        case Join():
            return join_error_reply(code)
        case Sync():
            return sync_error_reply(code)
        case ClassicHeartbeat():
            return heartbeat_reply(code)
        case Leave():
            return leave_reply((), code)
    return replace(streams_leave_reply("", 0), error_code=code, error_message=error.message)


def plain_answer(request: object, image: MetadataImage) -> object | None:
    """Return the answer to a request that does not concern the shard; None for one that does."""
    match request:
        case Find():
            return _found(request)
        case Versions():
            return _versions()
        case Metadata():
            return _metadata(request, image.topics)
    return None


def _versions() -> object:
    r = m.api_versions_response
    # The one API whose version a member looks up: whether version 1 is there (task offsets and static members, Kafka
    # 4.4) changes what it sends.
    key = ApiKey.STREAMS_GROUP_HEARTBEAT
    offered = SUPPORTED[key]
    row = r.ApiVersion(api_key=i16(key), min_version=i16(offered.lowest), max_version=i16(offered.highest))
    return r.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=(row,), throttle_time=from_ms(0))


def _found(request: Find) -> object:
    r = m.find_coordinator_response
    return r.FindCoordinatorResponse(
        throttle_time=from_ms(0),
        coordinators=tuple(
            r.Coordinator(
                key=key,
                node_id=BrokerId(NODE),
                host="simulated",
                port=i32(9092),
                error_code=ErrorCode.none,
                error_message=None,
            )
            for key in request.coordinator_keys
        ),
    )


def _metadata(request: Metadata, topics: Mapping[str, TopicImage]) -> object:
    """All topics, or those that are named or given by id."""
    r = m.metadata_response
    if request.topics is None:
        found: list[Any] = [_topic(topic) for topic in topics.values()]
    else:
        by_id = {topic.topic_id: topic for topic in topics.values()}
        found = []
        for wanted in request.topics:
            # Metadata version 12 (KIP-516) asks by id, and a topic that was created again under its name must not
            # answer for the old id.
            topic = by_id.get(wanted.topic_id) if wanted.name is None else topics.get(wanted.name)  # type: ignore[arg-type]
            found.append(_missing(wanted) if topic is None else _topic(topic))
    return r.MetadataResponse(throttle_time=from_ms(0), brokers=(), topics=tuple(found), error_code=ErrorCode.none)


# Images are immutable, and the topic of the capacity world has 10,000 partitions: the same answer is built once.
@lru_cache(maxsize=256)
def _topic(topic: TopicImage) -> object:
    r = m.metadata_response
    return r.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        partitions=tuple(
            r.MetadataResponsePartition(
                error_code=ErrorCode.none, partition_index=i32(number), leader_id=BrokerId(NODE)
            )
            for number in range(topic.partitions)
        ),
    )


def _missing(wanted: m.metadata_request.MetadataRequestTopic) -> object:
    unknown = ErrorCode.unknown_topic_or_partition if wanted.topic_id is None else ErrorCode.unknown_topic_id
    return m.metadata_response.MetadataResponseTopic(
        error_code=unknown, name=wanted.name, topic_id=wanted.topic_id, partitions=()
    )
