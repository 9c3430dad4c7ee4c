"""Who may commit offsets, by kind of group, epoch and version, and what is written: the rule of OffsetCommit itself."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64
from tests.coordinator.coordinator_context import CoordinatorContext

from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.offsets.offset_commit import offset_commit
from headrace.coordinator.records import schemas as s
from headrace.coordinator.request_context import CoordinatorError, RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.messages import offset_commit_request as req

IN, OTHER = UUID(int=1), UUID(int=2)
IMAGE = MetadataImage(
    version=1,
    topics={
        "other": TopicImage(name="other", topic_id=OTHER, partitions=2),
        "in": TopicImage(name="in", topic_id=IN, partitions=4),
    },
)
Group = StreamsGroup | ClassicGroup | ConsumerGroup | None


def topic(
    name: str = "in", partition: int = 0, *, topic_id: UUID | None = None, metadata: str | None = ""
) -> req.OffsetCommitRequestTopic:
    return req.OffsetCommitRequestTopic(
        name=TopicName(name),
        topic_id=topic_id,
        partitions=(
            req.OffsetCommitRequestPartition(
                partition_index=i32(partition),
                committed_offset=i64(42),
                committed_leader_epoch=i32(6),
                committed_metadata=metadata,
            ),
        ),
    )


def commit(
    group: Group,
    *topics: req.OffsetCommitRequestTopic,
    member_id: str = "",
    epoch: int = -1,
    instance_id: str | None = None,
    version: int = 9,
) -> CoordinatorResult:
    request = req.OffsetCommitRequest(
        group_id=GroupId("g"),
        generation_id_or_member_epoch=i32(epoch),
        member_id=member_id,
        group_instance_id=instance_id,
        topics=topics or (topic(),),
    )
    context = RequestContext(token=77, client_id="c", client_host="/h", api_version=version)
    return offset_commit(group, request, context, image=IMAGE, metadata_max_bytes=4, now_ms=123)


def codes(result: CoordinatorResult) -> list[str]:
    (reply,) = result.replies
    return [each.error_code.name for found in reply.response.topics for each in found.partitions]  # type: ignore[attr-defined]


def outcome(
    group: Group,
    *topics: req.OffsetCommitRequestTopic,
    member_id: str = "",
    epoch: int = -1,
    instance_id: str | None = None,
    version: int = 9,
) -> str:
    """What became of the request: the code of its one partition, or of its refusal as a whole."""
    try:
        result = commit(group, *topics, member_id=member_id, epoch=epoch, instance_id=instance_id, version=version)
    except CoordinatorError as error:
        return error.code.name
    (code,) = set(codes(result))
    assert bool(result.records) == (code == "none")
    return code


def streams_group() -> StreamsGroup:
    """m1 has the partitions 0 and 1 of topic `in` since epoch 2, m2 has 2 and 3 since epoch 3."""
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    ctx.heartbeat("m2", 3)
    group = ctx.shard._registry.get("g")
    assert isinstance(group, StreamsGroup)
    return group


def consumer_group(**changes: object) -> ConsumerGroup:
    """A member at epoch 5 that has in-1 since epoch 4 and in-2 since epoch 5."""
    member = ConsumerGroupMember(member_id="c1", member_epoch=5, previous_member_epoch=4, assigned={IN: {1: 4, 2: 5}})
    return ConsumerGroup(group_id="g", members={"c1": replace(member, **changes)})  # type: ignore[arg-type]


def classic_group() -> ClassicGroup:
    """One static member at generation 4."""
    member = s.GroupMember(
        member_id="c1",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        session_timeout_ms=1,
        subscription=b"",
        assignment=b"",
    )
    return ClassicGroup(
        group_id="g", metadata=s.GroupMetadataValue(protocol_type="consumer", generation=4, members=(member,))
    )


def test_offset_commit_records_and_response() -> None:
    result = commit(None, topic("in", 3, topic_id=IN, metadata="meta"), topic("other", 1, metadata=None))
    value = s.OffsetCommitValue(offset=42, leader_epoch=6, metadata="meta", commit_timestamp=123, topic_id=IN)
    assert result.records == (
        CoordinatorRecord(key=s.OffsetCommitKey(group="g", topic="in", partition=3), value=value),
        CoordinatorRecord(
            key=s.OffsetCommitKey(group="g", topic="other", partition=1),
            value=replace(value, metadata="", topic_id=None),
        ),
    )
    (reply,) = result.replies
    assert reply.token == 77
    response = reply.response
    assert response.throttle_time.total_seconds() == 0  # type: ignore[attr-defined]
    found = [
        (each.name, each.topic_id, [(int(p.partition_index), p.error_code.name) for p in each.partitions])
        for each in response.topics  # type: ignore[attr-defined]
    ]
    assert found == [("in", IN, [(3, "none")]), ("other", None, [(1, "none")])]


def test_topics_are_found_by_name_or_by_id() -> None:
    by_id = commit(None, topic("", topic_id=IN), topic("", topic_id=UUID(int=9)), topic("", topic_id=None))
    assert codes(by_id) == ["none", "unknown_topic_id", "unknown_topic_id"]
    assert [record.key for record in by_id.records] == [s.OffsetCommitKey(group="g", topic="in", partition=0)]
    assert [each.name for each in by_id.replies[0].response.topics] == ["in", "", ""]  # type: ignore[attr-defined]
    named = commit(None, topic("in", topic_id=OTHER))
    assert [record.key for record in named.records] == [s.OffsetCommitKey(group="g", topic="in", partition=0)]


def test_metadata_has_a_bound_in_bytes() -> None:
    assert [outcome(None, topic(metadata=text)) for text in ("1234", "ääa", None)] == [
        "none",
        "offset_metadata_too_large",
        "none",
    ]


@pytest.mark.parametrize(
    ("epoch", "version", "code"),
    [
        (-1, 8, "none"),
        (-2, 9, "none"),
        (0, 9, "group_id_not_found"),
        (3, 10, "group_id_not_found"),
        (0, 8, "illegal_generation"),
    ],
)
def test_a_group_that_does_not_exist(epoch: int, version: int, code: str) -> None:
    assert outcome(None, epoch=epoch, version=version) == code


def test_why_a_group_is_not_found() -> None:
    with pytest.raises(CoordinatorError, match=r"^Group g not found"):
        commit(None, epoch=1)


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "version", "code"),
    [
        ("m1", 3, 0, 9, "none"),
        ("m1", 2, 0, 9, "none"),
        ("m1", 3, 0, 10, "none"),
        ("m1", 1, 0, 9, "stale_member_epoch"),
        ("m1", 0, 0, 9, "stale_member_epoch"),
        ("m1", -1, 0, 9, "stale_member_epoch"),
        ("m1", -2, 0, 9, "stale_member_epoch"),
        ("m1", 4, 0, 9, "stale_member_epoch"),
        ("m1", 3, 2, 9, "stale_member_epoch"),
        ("m2", 2, 2, 9, "stale_member_epoch"),
        ("m2", 3, 2, 9, "none"),
        ("m1", 3, 0, 8, "unsupported_version"),
        ("m9", 3, 0, 9, "unknown_member_id"),
        ("", -1, 0, 9, "unknown_member_id"),
    ],
)
def test_commit_validation_in_a_streams_group(
    member_id: str, epoch: int, partition: int, version: int, code: str
) -> None:
    """A fenced member, one with an older assignment, another member's partition: none of them moves an offset."""
    given = topic("in", partition)
    assert outcome(streams_group(), given, member_id=member_id, epoch=epoch, version=version) == code


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "words"),
    [
        ("m9", 3, 9, "^Member m9 is not a member of group g.$"),
        ("m1", 3, 8, "^OffsetCommit version 9 or above must be used by members using the streams group protocol.$"),
        ("m1", 4, 9, "^Received member epoch 4 is newer than current member epoch 3.$"),
        ("m1", -1, 9, "^Received member epoch -1 is no epoch of a member, unlike current member epoch 3.$"),
    ],
)
def test_why_a_streams_member_is_refused(member_id: str, epoch: int, version: int, words: str) -> None:
    with pytest.raises(CoordinatorError, match=words):
        commit(streams_group(), member_id=member_id, epoch=epoch, version=version)


def test_an_epoch_zero_is_that_of_a_member_and_has_no_partitions() -> None:
    group = streams_group()
    group.members["m1"] = replace(group.members["m1"], member_epoch=0)
    assert outcome(group, topic("other"), member_id="m1", epoch=0) == "none"
    assert outcome(group, topic("in"), member_id="m1", epoch=0) == "stale_member_epoch"


def test_empty_streams_group_accepts_only_commits_without_epoch() -> None:
    group = StreamsGroup.new("g")
    assert outcome(group) == "none"
    assert outcome(group, epoch=0) == "unknown_member_id"


@pytest.mark.parametrize(
    ("member_id", "epoch", "given", "version", "code"),
    [
        ("c1", 5, topic("in", 1), 9, "none"),
        ("c1", 5, topic("other", 1), 9, "none"),
        ("c1", 4, topic("in", 1), 9, "none"),
        ("c1", 4, topic("", 1, topic_id=IN), 10, "none"),
        ("c1", 4, topic("in", 2), 9, "stale_member_epoch"),
        ("c1", 4, topic("in", 3), 9, "stale_member_epoch"),
        ("c1", 4, topic("other", 1), 9, "stale_member_epoch"),
        ("c1", 3, topic("in", 1), 9, "stale_member_epoch"),
        ("c1", 6, topic("in", 1), 9, "stale_member_epoch"),
        ("c1", 5, topic("in", 1), 8, "unsupported_version"),
        ("c9", 5, topic("in", 1), 9, "unknown_member_id"),
        ("", -1, topic("in", 1), 9, "unknown_member_id"),
    ],
)
def test_commit_validation_in_a_consumer_group(
    member_id: str, epoch: int, given: req.OffsetCommitRequestTopic, version: int, code: str
) -> None:
    """A consumer that was fenced, or lost the partition since its epoch, moves no offset."""
    assert outcome(consumer_group(), given, member_id=member_id, epoch=epoch, version=version) == code


def test_one_foreign_partition_refuses_the_request_of_a_consumer() -> None:
    with pytest.raises(CoordinatorError, match="older than assignment epoch 5 for partition in-2"):
        commit(consumer_group(), topic("in", 1), topic("in", 2), member_id="c1", epoch=4)
    pending = consumer_group(assigned={}, pending_revocation={IN: {1: 4}})
    assert outcome(pending, topic("in", 1), member_id="c1", epoch=4) == "none", "not yet given up"


@pytest.mark.parametrize(
    ("member_id", "instance_id", "generation", "code"),
    [
        ("c1", None, 4, "none"),
        ("c1", "i", 4, "none"),
        ("c1", None, 3, "illegal_generation"),
        ("c1", None, 5, "illegal_generation"),
        ("c9", None, 4, "unknown_member_id"),
        ("c9", "i", 4, "fenced_instance_id"),
        ("", None, -1, "unknown_member_id"),
    ],
)
def test_commit_validation_in_a_classic_group(
    member_id: str, instance_id: str | None, generation: int, code: str
) -> None:
    given = {"member_id": member_id, "instance_id": instance_id, "epoch": generation}
    assert outcome(classic_group(), **given) == code  # type: ignore[arg-type]
