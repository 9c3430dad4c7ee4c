"""Reconciliation of one member where the histories seldom come: states of a newer broker, topics that it left."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from headrace.coordinator.consumer.current_assignment import reconcile
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.member import ConsumerGroupMember, MemberState
from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.error_codes import ErrorCode

ORDERS, CLICKS = UUID(int=1), UUID(int=2)
STABLE = ConsumerGroupMember(
    member_id="a", member_epoch=5, previous_member_epoch=4, assigned={ORDERS: {0: 3}, CLICKS: {0: 5, 1: 5}}
)


def reconciled(member: ConsumerGroupMember, **given: Any) -> ConsumerGroupMember:
    arguments: dict[str, Any] = {
        "target": {ORDERS: (0,), CLICKS: (0, 1)},
        "target_epoch": 5,
        "readable": {ORDERS, CLICKS},
        "subscription_changed": False,
        "owned": None,
    }
    return reconcile(ConsumerGroup(group_id="g"), member, **{**arguments, **given})


def test_a_member_with_its_target_stays_the_same_object() -> None:
    assert reconciled(STABLE) is STABLE
    assert reconciled(STABLE, subscription_changed=True) is STABLE


def test_unsubscribed_topics_are_revoked_before_the_new_target() -> None:
    moved = reconciled(STABLE, subscription_changed=True, readable={ORDERS})
    assert (moved.state, moved.member_epoch) == (MemberState.UNREVOKED_PARTITIONS, 5)
    assert (moved.assigned, moved.pending_revocation) == ({ORDERS: {0: 3}}, {CLICKS: {0: 5, 1: 5}})


def test_topics_that_a_member_has_already_let_go_are_dropped_at_once() -> None:
    moved = reconciled(STABLE, subscription_changed=True, readable={ORDERS}, owned={ORDERS: (0,)})
    assert (moved.state, moved.assigned, moved.pending_revocation) == (MemberState.STABLE, {ORDERS: {0: 3}}, {})


def test_a_pending_revocation_waits_for_the_list_of_the_member() -> None:
    revoking = STABLE.with_assignment(
        epoch=5,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={ORDERS: {0: 3}},
        pending_revocation={CLICKS: {0: 5, 1: 5}},
    )
    target = {ORDERS: (0,)}
    assert reconciled(revoking, target=target, target_epoch=6) is revoking
    assert reconciled(revoking, target=target, target_epoch=6, owned={CLICKS: (1,)}) is revoking
    done = reconciled(revoking, target=target, target_epoch=6, owned={ORDERS: (0,)})
    assert (done.state, done.member_epoch, done.pending_revocation) == (MemberState.STABLE, 6, {})
    left = reconciled(revoking, target=target, target_epoch=6, subscription_changed=True, readable={CLICKS})
    assert left.pending_revocation == {ORDERS: {0: 3}, CLICKS: {0: 5, 1: 5}}


@pytest.mark.parametrize("owned", [None, {ORDERS: (0,)}])
def test_a_member_in_an_unknown_state_is_fenced_while_it_holds_anything(owned: Any) -> None:
    unknown = STABLE.with_assignment(epoch=5, state=MemberState.of(99), assigned=STABLE.assigned)
    with pytest.raises(CoordinatorError) as refusal:
        reconciled(unknown, target_epoch=6, owned=owned)
    assert refusal.value.code is ErrorCode.fenced_member_epoch


def test_a_member_in_an_unknown_state_that_holds_nothing_continues() -> None:
    unknown = STABLE.with_assignment(epoch=5, state=MemberState.of(99), assigned={})
    moved = reconciled(unknown, target_epoch=6, owned={})
    assert (moved.state, moved.member_epoch) == (MemberState.STABLE, 6)
    assert moved.assigned == {ORDERS: {0: 6}, CLICKS: {0: 6, 1: 6}}
