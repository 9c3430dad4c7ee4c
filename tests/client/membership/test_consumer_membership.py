"""A member of a consumer group, exchange by exchange."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.client.membership.consumer_scripts import FLIGHTS, script, settled
from tests.client.membership.group_script import assigned, metadata, topic_id

from headrace.client.membership.group_events import (
    GroupLeft,
    PartitionsLost,
    Rebalance,
    SubscribedTopics,
)
from headrace.client.membership.group_member import GroupMemberState
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def owned(request: Any) -> dict[Any, tuple[int, ...]] | None:
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: tuple(topic.partitions) for topic in request.topic_partitions}


def test_joining_tells_everything_and_owns_nothing() -> None:
    member = script(rack_id="r1", server_assignor="range")
    request = member.next_sent()
    assert (request.member_epoch, request.member_id, owned(request)) == (0, "m1", {})
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (("flights",), None)
    assert (request.rack_id, request.server_assignor) == ("r1", "range")
    assert member.sent() is None  # one request at a time


def test_names_are_asked_for_and_an_assignment_is_acknowledged_at_once() -> None:
    member = script()
    member.next_sent()
    assert member.answer(assigned({"flights": [0, 1]})) == ()
    assert member.next_sent().topics[0].topic_id == topic_id("flights")
    (event,) = member.answer(metadata({"flights": 4}))
    assert event == Rebalance(number=1, assigned=(("flights", 0), ("flights", 1)))
    assert member.member.state is GroupMemberState.RECONCILING
    assert owned(member.next_sent()) is None  # still with the application: heartbeats go on, nothing is claimed
    member.answer(assigned(None))
    member.acknowledge(event)
    before = member.now_ms
    assert owned(member.next_sent()) == {topic_id("flights"): (0, 1)}
    assert member.now_ms == before
    assert member.member.owned == (("flights", 0), ("flights", 1))


def test_a_newer_target_waits_for_the_acknowledgement() -> None:
    member = settled()
    member.next_sent()
    (first,) = member.answer(assigned({"flights": [1]}, epoch=2))
    assert first == Rebalance(number=2, revoked=(("flights", 0),), assigned=())
    member.next_sent()
    assert member.answer(assigned({"flights": [2]}, epoch=2)) == ()
    member.acknowledge(first)
    (second,) = member.member.take_events()
    assert second == Rebalance(number=3, revoked=(("flights", 1),), assigned=(("flights", 2),))


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id])
def test_a_fenced_member_loses_everything_and_joins_again(code: ErrorCode) -> None:
    member = settled()
    member.next_sent()
    (event,) = member.answer(assigned(None, code=code))
    assert isinstance(event, PartitionsLost)
    assert not member.member.identity.is_member
    assert member.sent() is None  # the application has not heard it yet
    member.acknowledge(event)
    request = member.next_sent()
    assert (request.member_epoch, request.member_id, owned(request)) == (0, "m1", {})


def test_a_loss_replaces_what_was_not_begun() -> None:
    member = script()
    member.next_sent()
    member.answer(assigned({"flights": [0]}))
    member.next_sent()
    member.member.on_response(metadata({"flights": 4}), member.now_ms)
    member.next_sent()
    (event,) = member.answer(assigned(None, code=ErrorCode.fenced_member_epoch))
    assert isinstance(event, PartitionsLost)


def test_an_acknowledgement_that_comes_too_late_means_nothing() -> None:
    member = settled()
    member.next_sent()
    (event,) = member.answer(assigned({"flights": []}, epoch=2))
    member.next_sent()
    (lost,) = member.answer(assigned(None, code=ErrorCode.fenced_member_epoch))
    member.acknowledge(event)
    assert member.member.state is GroupMemberState.LOST
    member.acknowledge(lost)
    assert member.member.state is GroupMemberState.JOINING


def test_after_a_lost_answer_everything_is_told_again() -> None:
    member = settled()
    member.next_sent()
    member.fail()
    member.find_coordinator()
    request = member.next_sent()
    assert owned(request) == {topic_id("flights"): (0, 1)}
    assert request.subscribed_topic_names == ("flights",)
    assert request.member_epoch == 1


def test_subscription_changed_during_heartbeat_is_sent_with_the_next() -> None:
    member = settled()
    assert member.next_sent().subscribed_topic_names is None
    member.member.subscribe(SubscribedTopics(names=("delays",)), member.now_ms)
    member.answer(assigned(None))
    before = member.now_ms
    assert member.next_sent().subscribed_topic_names == ("delays",)
    assert member.now_ms - before <= 200


def test_patterns_of_the_broker_travel_and_are_taken_back() -> None:
    member = script(SubscribedTopics(broker_regex="f.*"))
    request = member.next_sent()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ((), "f.*")
    member.answer(assigned({}))
    member.member.subscribe(FLIGHTS, member.now_ms)
    request = member.next_sent()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (("flights",), "")


def test_our_own_patterns_are_resolved_before_the_join_and_looked_at_again() -> None:
    member = script(SubscribedTopics(matching=re.compile("f.*")), metadata_max_age_ms=1_000)
    assert member.next_sent().topics is None
    member.answer(metadata({"flights": 1, "delays": 1}))
    assert member.next_sent().subscribed_topic_names == ("flights",)
    member.answer(assigned({}))
    while not isinstance(member.next_sent(), m.metadata_request.MetadataRequest):
        member.answer(assigned(None))
    member.answer(metadata({"flights": 1, "ferries": 1}))
    assert member.next_sent().subscribed_topic_names == ("ferries", "flights")


def test_a_membership_that_begins_anew_is_told_its_whole_share() -> None:
    """Found by the simulator: who left because nobody polled, and got the same partitions again, was told nothing."""
    member = settled()
    member.member.leave(member.now_ms)
    member.next_sent()
    member.answer(assigned(None, epoch=-1))
    member.member.subscribe(FLIGHTS, member.now_ms)
    member.next_sent()
    (event,) = member.answer(assigned({"flights": [0, 1]}, epoch=3))
    assert event == Rebalance(number=2, assigned=(("flights", 0), ("flights", 1)))


def test_a_refused_member_that_subscribes_anew_is_told_its_whole_share() -> None:
    member = script()
    member.next_sent()
    member.answer(assigned({"flights": [0]}))
    member.next_sent()
    member.answer(metadata({"flights": 4}))  # not acknowledged
    member.next_sent()
    member.answer(assigned(None, code=ErrorCode.group_authorization_failed))
    member.member.subscribe(FLIGHTS, member.now_ms)
    member.next_sent()
    (event,) = member.answer(assigned({"flights": [0]}, epoch=3))
    assert isinstance(event, Rebalance)
    assert event.assigned == (("flights", 0),)


def test_pending_assignment_is_claimed_as_owned() -> None:
    """Found by the simulator: a heartbeat with everything, sent between the assignment and its acknowledgement, said
    that the member has nothing, so the coordinator gave to others what the application began a moment later."""
    member = script()
    member.next_sent()
    member.answer(assigned({"flights": [0], "trains": [1]}))
    member.next_sent()
    member.answer(metadata({"flights": 4}))  # flights-0 is with the application; trains has no name yet
    member.next_sent()
    member.fail()
    member.find_coordinator()
    request = member.next_sent()
    while not hasattr(request, "member_epoch"):
        member.answer(metadata({"flights": 4}))
        request = member.next_sent()
    assert owned(request) == {topic_id("flights"): (0,), topic_id("trains"): (1,)}


def test_an_answer_to_what_was_given_up_means_nothing() -> None:
    """Found by the simulator: a member that had left took the late answer for a mistake of its own, and was over."""
    member = settled()
    request = member.next_sent()
    assert request.member_epoch == 1
    member.member.leave(member.now_ms)
    member.now_ms += 6_000  # the leave has no answer in time
    assert member.sent() is None or member.member.state is GroupMemberState.LEAVING
    member.now_ms += 6_000
    member.sent()
    assert member.member.state is GroupMemberState.UNSUBSCRIBED
    assert member.answer(assigned({"flights": [0]})) == (GroupLeft(confirmed=False),)
    member.fail()
    assert member.member.state is GroupMemberState.UNSUBSCRIBED


def test_a_regular_expression_is_forgotten_until_somebody_heard_it() -> None:
    """Found by the simulator: when the request that took it back was lost, the coordinator kept it for ever."""
    member = script(SubscribedTopics(broker_regex="f.*"))
    assert member.next_sent().subscribed_topic_regex == "f.*"
    member.answer(assigned(None))
    member.member.subscribe(FLIGHTS, member.now_ms)
    assert member.next_sent().subscribed_topic_regex == ""
    member.fail()
    member.find_coordinator()
    assert member.next_sent().subscribed_topic_regex == ""
    member.answer(assigned(None))
    member.next_sent()
    member.fail()
    member.find_coordinator()
    request = member.next_sent()
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (("flights",), None)
