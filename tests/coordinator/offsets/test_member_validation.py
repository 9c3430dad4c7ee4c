"""Who may commit and fetch in a consumer group: epochs, generations of classic members, producers without a member."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.offsets.member_validation import check_consumer_commit, check_consumer_fetch
from headrace.coordinator.records.schemas import ClassicMemberMetadata
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

TOPIC = TopicImage(name="in", topic_id=UUID(int=1), partitions=4)
IMAGE = MetadataImage(topics={"in": TOPIC})


def group(*, classic: bool = False) -> ConsumerGroup:
    """One member at epoch 7: partition 0 since epoch 3, partition 1 (being revoked) since epoch 6."""
    member = ConsumerGroupMember(
        member_id="a",
        member_epoch=7,
        assigned={TOPIC.topic_id: {0: 3}},
        pending_revocation={TOPIC.topic_id: {1: 6}},
    )
    if classic:
        metadata = replace(member.metadata, classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=1))
        member = replace(member, metadata=metadata)
    made = ConsumerGroup(group_id="g")
    made.members["a"] = member
    return made


def commit(to: ConsumerGroup, epoch: int, *partitions: int, member_id: str = "a", **given: Any) -> ErrorCode:
    arguments: dict[str, Any] = {"image": IMAGE, "api_version": 9, **given}
    names = [("in", each) for each in partitions]
    try:
        check_consumer_commit(to, member_id, None, epoch, names, **arguments)
    except CoordinatorError as error:
        return error.code
    return ErrorCode.none


def test_with_its_own_epoch_a_member_commits_any_partition() -> None:
    assert commit(group(), 7, 0, 1, 2) is ErrorCode.none


@pytest.mark.parametrize(
    ("epoch", "partition", "code"),
    [
        (3, 0, ErrorCode.none),
        (2, 0, ErrorCode.stale_member_epoch),
        (6, 1, ErrorCode.none),
        (5, 1, ErrorCode.stale_member_epoch),
        (6, 2, ErrorCode.stale_member_epoch),
        (8, 0, ErrorCode.stale_member_epoch),
    ],
)
def test_an_older_epoch_counts_from_the_assignment_of_the_partition(
    epoch: int, partition: int, code: ErrorCode
) -> None:
    assert commit(group(), epoch, partition) is code


def test_a_partition_of_an_unknown_topic_is_not_assigned() -> None:
    assert commit(group(), 3, 0, image=MetadataImage()) is ErrorCode.stale_member_epoch


def test_classic_members_and_transactions_get_illegal_generation() -> None:
    assert commit(group(classic=True), 8, 0) is ErrorCode.illegal_generation
    assert commit(group(classic=True), 2, 0, api_version=8) is ErrorCode.illegal_generation
    assert commit(group(), 6, 2, transactional=True) is ErrorCode.illegal_generation


def test_only_members_commit_while_there_are_some() -> None:
    assert commit(group(), -1, 0, member_id="") is ErrorCode.unknown_member_id
    assert commit(group(), -1, 0, member_id="", transactional=True) is ErrorCode.none
    assert commit(ConsumerGroup(group_id="g"), -1, 0, member_id="") is ErrorCode.none


def test_members_of_the_consumer_protocol_need_offset_commit_9() -> None:
    assert commit(group(), 7, 0, api_version=8) is ErrorCode.unsupported_version


def test_a_fetch_names_the_present_epoch_or_no_member() -> None:
    check_consumer_fetch(group(), None, -1)
    check_consumer_fetch(group(), "a", 7)
    for given, member_id, epoch, code in (
        (group(), "a", 6, ErrorCode.stale_member_epoch),
        (group(classic=True), "a", 6, ErrorCode.illegal_generation),
        (group(), "b", 7, ErrorCode.unknown_member_id),
    ):
        with pytest.raises(CoordinatorError) as refusal:
            check_consumer_fetch(given, member_id, epoch)
        assert refusal.value.code is code
