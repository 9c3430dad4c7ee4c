"""A member of a classic group, exchange by exchange: eager and cooperative, follower and leader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.membership.classic_scripts import BOTH, FLIGHTS, lead, script
from tests.client.membership.group_script import GroupScript, beaten, joined, metadata, synced
from tests.harness.values import not_none

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.membership.group_events import (
    GroupFatal,
    GroupLeft,
    PartitionsLost,
    Rebalance,
    SubscribedTopics,
)
from headrace.client.membership.group_member import GroupMemberState
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode


def settled(strategy: str = "range", partitions: Sequence[tuple[str, int]] = BOTH, **settings: Any) -> GroupScript:
    """A follower with two partitions, in generation 1."""
    made = script(strategy, **settings)
    made.next_sent()
    made.answer(joined(ErrorCode.member_id_required))
    made.next_sent()
    made.answer(joined(protocol=strategy))
    made.next_sent()
    (event,) = made.answer(synced(encode_assignment(Assignment(partitions=tuple(partitions)))))
    made.acknowledge(event)
    return made


def test_the_coordinator_gives_the_id_and_the_member_joins_with_it() -> None:
    member = script()
    request = member.next_sent()
    assert (request.member_id, request.protocol_type) == ("", "consumer")
    (protocol,) = request.protocols
    assert decode_subscription(protocol.metadata) == Subscription(topics=("flights",))
    member.answer(joined(ErrorCode.member_id_required))
    assert not_none(member.sent()).member_id == "m1"
    member.answer(joined())
    request = member.sent()
    assert isinstance(request, m.sync_group_request.SyncGroupRequest)
    assert (request.generation_id, request.assignments) == (1, ())
    events = member.answer(synced(encode_assignment(Assignment(partitions=BOTH))))
    assert events == (Rebalance(number=1, assigned=BOTH),)


def test_an_eager_member_gives_everything_back_before_it_joins_again() -> None:
    member = settled()
    member.next_sent()
    assert member.answer(beaten(ErrorCode.rebalance_in_progress)) == ()
    member.member.poll(member.now_ms)
    (event,) = member.member.take_events()
    assert event == Rebalance(number=2, revoked=BOTH, assigned=None, all_revoked=True)
    assert isinstance(
        member.next_sent(), m.heartbeat_request.HeartbeatRequest
    )  # it goes on while the application commits
    member.answer(beaten(ErrorCode.rebalance_in_progress))
    member.acknowledge(event)
    request = member.sent()
    assert isinstance(request, m.join_group_request.JoinGroupRequest)
    assert decode_subscription(request.protocols[0].metadata).owned_partitions == ()


def test_cooperative_member_keeps_reading_and_rejoins_after_revocation() -> None:
    member = settled("cooperative-sticky")
    member.next_sent()
    member.answer(beaten(ErrorCode.rebalance_in_progress))
    request = member.sent()
    assert isinstance(request, m.join_group_request.JoinGroupRequest)
    told = decode_subscription(request.protocols[0].metadata)
    assert (told.owned_partitions, told.generation_id) == (BOTH, 1)
    member.answer(joined(generation=2, protocol="cooperative-sticky"))
    member.sent()
    (event,) = member.answer(synced(encode_assignment(Assignment(partitions=BOTH[:1]))))
    assert event == Rebalance(number=2, revoked=BOTH[1:], assigned=())
    member.acknowledge(event)
    request = member.sent()
    assert isinstance(request, m.join_group_request.JoinGroupRequest)
    assert decode_subscription(request.protocols[0].metadata).owned_partitions == BOTH[:1]


def test_a_cooperative_member_gives_back_topics_that_it_reads_no_more() -> None:
    member = settled("cooperative-sticky")
    member.member.subscribe(SubscribedTopics(names=("delays",)), member.now_ms)
    member.member.poll(member.now_ms)
    (event,) = member.member.take_events()
    assert event == Rebalance(number=2, revoked=BOTH, assigned=None)


def test_subscription_changed_during_join_is_sent_with_another_join() -> None:
    member = script()
    member.next_sent()
    member.member.subscribe(SubscribedTopics(names=("delays",)), member.now_ms)
    member.answer(joined())
    member.sent()
    (event,) = member.answer(synced(encode_assignment(Assignment())))
    member.acknowledge(event)
    member.member.poll(member.now_ms)
    (event,) = member.member.take_events()
    member.acknowledge(event)
    request = member.next_sent()
    assert isinstance(request, m.join_group_request.JoinGroupRequest)
    assert decode_subscription(request.protocols[0].metadata).topics == ("delays",)


def test_the_leader_asks_what_there_is_and_divides_it() -> None:
    leader = lead()
    request = leader.sent()
    assert request is not None
    assert [topic.name for topic in request.topics] == ["delays", "flights"]
    leader.answer(metadata({"flights": 3}))
    given = {each.member_id: decode_assignment(each.assignment) for each in not_none(leader.sent()).assignments}
    assert given == {
        "m1": Assignment(partitions=(("flights", 0), ("flights", 1))),
        "m2": Assignment(partitions=(("flights", 2),)),
    }


def test_leader_starts_a_rebalance_when_partitions_were_added() -> None:
    leader = lead()
    leader.sent()
    leader.answer(metadata({"flights": 3, "delays": 1}))
    leader.sent()
    (event,) = leader.answer(synced(encode_assignment(Assignment())))
    leader.acknowledge(event)
    while not isinstance(leader.next_sent(), m.metadata_request.MetadataRequest):
        leader.answer(beaten())
    assert leader.now_ms >= 300_000
    leader.answer(metadata({"flights": 4, "delays": 1}))
    leader.member.poll(leader.now_ms)
    (event,) = leader.member.take_events()
    assert event.all_revoked


def test_a_static_leader_that_came_back_leaves_the_assignment_as_it_is() -> None:
    member = script(instance_id="one")
    member.next_sent()
    listed = {"m1": encode_subscription(Subscription(topics=("flights",)))}
    member.answer(joined(leader="m1", members=listed, skip_assignment=True))
    member.sent()
    member.answer(metadata({"flights": 2}))
    assert not_none(member.sent()).assignments == ()


@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.unknown_member_id, ""), (ErrorCode.illegal_generation, "m1")]
)
def test_a_fenced_member_loses_everything_and_joins_again(code: ErrorCode, member_id: str) -> None:
    member = settled()
    member.next_sent()
    (event,) = member.answer(beaten(code))
    assert isinstance(event, PartitionsLost)
    assert member.sent() is None
    member.acknowledge(event)
    assert member.next_sent().member_id == member_id


def test_rebalance_during_sync_rejoins_without_another_revocation() -> None:
    member = script()
    member.next_sent()
    member.answer(joined())
    member.sent()
    assert member.answer(synced(code=ErrorCode.rebalance_in_progress)) == ()
    assert isinstance(member.sent(), m.join_group_request.JoinGroupRequest)


def test_heartbeats_continue_while_the_application_takes_over() -> None:
    member = script(heartbeat_interval_ms=2_000)
    member.next_sent()
    member.answer(joined())
    member.sent()
    member.answer(synced())
    assert member.member.state is GroupMemberState.RECONCILING
    before = member.now_ms
    assert isinstance(member.next_sent(), m.heartbeat_request.HeartbeatRequest)
    assert member.now_ms - before == 2_000


def test_a_join_may_take_as_long_as_the_rebalance_and_a_little() -> None:
    member = script(rebalance_timeout_ms=60_000)
    member.next_sent()
    assert member.member.poll(member.now_ms).next_poll_ms == member.now_ms + 65_000


@pytest.mark.parametrize(
    ("instance_id", "for_good", "asked"), [(None, None, True), ("i", None, False), ("i", True, True)]
)
def test_leaving(instance_id: str | None, for_good: bool | None, asked: bool) -> None:
    member = settled(instance_id=instance_id)
    member.member.leave(member.now_ms, for_good=for_good)
    request = member.sent()
    if not asked:
        assert request is None
        assert member.member.take_events() == (GroupLeft(confirmed=False),)
        return
    (gone,) = not_none(request).members
    assert (gone.member_id, gone.group_instance_id) == ("m1", instance_id)
    reply = m.leave_group_response
    zero = beaten().throttle_time  # type: ignore[attr-defined]
    answered = reply.LeaveGroupResponse(throttle_time=zero, error_code=ErrorCode.none, members=())
    assert member.answer(answered) == (GroupLeft(confirmed=True),)


def test_a_leave_does_not_wait_for_a_join_that_is_out() -> None:
    member = settled()
    member.next_sent()
    member.answer(beaten(ErrorCode.rebalance_in_progress))
    member.member.poll(member.now_ms)
    (event,) = member.member.take_events()
    member.acknowledge(event)
    assert isinstance(member.sent(), m.join_group_request.JoinGroupRequest)
    member.member.leave(member.now_ms)
    assert isinstance(member.sent(), m.leave_group_request.LeaveGroupRequest)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.inconsistent_group_protocol, "assignors-differ"),
        (ErrorCode.fenced_instance_id, "instance-fenced"),
        (ErrorCode.group_max_size_reached, "group-full"),
        (ErrorCode.group_authorization_failed, "not-authorized"),
        (ErrorCode.invalid_session_timeout, "heartbeat-refused"),
    ],
)
def test_fatal_errors_end_the_membership(code: ErrorCode, kind: str) -> None:
    member = script()
    member.next_sent()
    (event,) = member.answer(joined(code, protocol=None))
    assert isinstance(event, GroupFatal)
    assert event.error.code == kind


def test_our_own_patterns_are_resolved_before_the_join() -> None:
    member = script(wanted=SubscribedTopics(matching=re.compile("f.*")))
    assert member.next_sent().topics is None
    member.fail()
    member.next_sent()  # asked again; no join without knowing what is read
    member.answer(metadata({"flights": 1, "delays": 1}))
    assert decode_subscription(member.next_sent().protocols[0].metadata).topics == ("flights",)


def test_a_static_member_that_left_in_the_middle_of_a_request_lives_on() -> None:
    """Found by the simulator: the answer to what it had given up ended the membership."""
    member = settled(instance_id="i1")
    member.next_sent()
    member.member.leave(member.now_ms)
    assert member.sent() is None
    assert member.member.state is GroupMemberState.UNSUBSCRIBED
    member.answer(beaten())
    member.fail()
    assert member.member.state is GroupMemberState.UNSUBSCRIBED
    member.member.subscribe(FLIGHTS, member.now_ms)
    assert isinstance(member.next_sent(), m.join_group_request.JoinGroupRequest)
