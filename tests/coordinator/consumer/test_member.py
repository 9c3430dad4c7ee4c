"""Partitions of consumer group members: normal forms, unions, records of older brokers, and a member's next step."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.coordinator.consumer.member import (
    ConsumerGroupMember,
    MemberState,
    contains_any,
    merge_partitions,
    partition_count,
    partition_epochs_from_records,
    partitions_from_records,
    partitions_of,
    partitions_to_records,
    with_epochs,
    without_epochs,
)
from headrace.coordinator.records.schemas import CurrentTopicPartitions, TopicPartitions

A, B = UUID(int=1), UUID(int=2)


def test_partitions_have_one_form_whatever_the_order() -> None:
    found = partitions_of([(B, [1]), (A, [3, 1]), (None, [9]), (A, [1, 2]), (B, [])])
    assert found == {A: (1, 2, 3), B: (1,)}
    assert list(found) == [A, B]
    assert partitions_of([(A, [])]) == {}


def test_records_hold_the_same_partitions() -> None:
    partitions = partitions_of([(A, [0, 2]), (B, [1])])
    assert partitions_from_records(partitions_to_records(partitions)) == partitions
    assert partitions_to_records({A: (0,)}) == (TopicPartitions(topic_id=A, partitions=(0,)),)


def test_epochs_are_added_and_dropped() -> None:
    assert with_epochs({A: (0, 1)}, 7) == {A: {0: 7, 1: 7}}
    assert without_epochs({A: {1: 7, 0: 8}}) == {A: (0, 1)}
    assert partition_count({A: {1: 7, 0: 8}, B: {0: 1}}) == 3


@pytest.mark.parametrize(
    ("partitions", "common"), [({A: (1, 5)}, True), ({A: (2,)}, False), ({B: (0,)}, False), ({}, False)]
)
def test_common_partitions(partitions: dict[UUID, tuple[int, ...]], common: bool) -> None:
    assert contains_any({A: {0: 1, 1: 1}}, partitions) is common


def test_the_later_epoch_wins_in_a_union() -> None:
    assert merge_partitions({A: {1: 1, 0: 1}}, {A: {1: 2}, B: {0: 2}}) == {A: {0: 1, 1: 2}, B: {0: 2}}
    same = {A: {0: 1}}
    assert merge_partitions(same, {}) is same


@pytest.mark.parametrize(
    ("epochs", "member_epoch", "found"),
    [((5, 6), 9, {0: 5, 1: 6}), (None, 9, {0: 9, 1: 9}), ((5,), 9, {0: 9, 1: 9}), (None, -2, {0: 0, 1: 0})],
)
def test_the_member_epoch_stands_in_for_missing_epochs(
    epochs: tuple[int, ...] | None, member_epoch: int, found: dict[int, int]
) -> None:
    record = CurrentTopicPartitions(topic_id=A, partitions=(0, 1), assignment_epochs=epochs)
    assert partition_epochs_from_records([record], member_epoch=member_epoch) == {A: found}


def test_a_record_without_partitions_is_no_topic() -> None:
    empty = CurrentTopicPartitions(topic_id=A, partitions=(), assignment_epochs=())
    assert partition_epochs_from_records([empty], member_epoch=1) == {}


def test_an_unknown_state_of_a_record_is_kept_as_unknown() -> None:
    assert [MemberState.of(number) for number in (0, 1, 2, 99)] == [
        MemberState.STABLE,
        MemberState.UNREVOKED_PARTITIONS,
        MemberState.UNRELEASED_PARTITIONS,
        MemberState.UNKNOWN,
    ]


def test_a_step_keeps_the_epoch_before_it() -> None:
    member = ConsumerGroupMember(member_id="m", member_epoch=3, previous_member_epoch=1)
    revoking = member.with_assignment(
        epoch=3, state=MemberState.UNREVOKED_PARTITIONS, assigned={}, pending_revocation={A: {0: 3}}
    )
    assert (revoking.member_epoch, revoking.previous_member_epoch) == (3, 3)
    assert (revoking.is_revoking, revoking.is_stable) == (True, False)
    stable = revoking.with_assignment(epoch=4, state=MemberState.STABLE, assigned={A: {1: 4}})
    assert (stable.member_epoch, stable.previous_member_epoch) == (4, 3)
    assert (stable.pending_revocation, stable.is_stable) == ({}, True)
