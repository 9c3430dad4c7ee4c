"""Classic groups in virtual time: the delays, the timeouts, restarts and disks that refuse. What requests are answered
is compared with Apache Kafka in `tests/interop/test_classic_groups_like_kafka.py`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.classic_context import GROUP, ClassicContext

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import encode_subscription
from headrace.coordinator.classic.group import (
    ENTERED_FROM,
    ClassicGroupState,
    ClassicMember,
    select_protocol,
    subscribed_topics,
)


def test_an_empty_group_waits_for_more_members() -> None:
    """Anew with each one that comes, but no longer than the rebalance timeout."""
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    first = c.join(c.admitted())
    c.sleep(2_999)
    assert c.code(first) == "waits"
    second = c.join(c.admitted())
    c.sleep(3_000)
    assert c.code(first) == "waits", "the delay that had begun ends first, then another one"
    c.sleep(1)
    assert (c.code(first), c.code(second)) == ("none", "none")
    assert c.answers[first].leader == c.answers[first].member_id
    assert len(c.answers[first].members) == 2
    assert c.answers[second].members == ()


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    tokens = []
    for _ in range(3):
        tokens.append(c.join(c.admitted(rebalance_ms=7_000), rebalance_ms=7_000))
        c.sleep(2_300)
    assert c.code(tokens[0]) == "waits", "3 s, 3 s, and the second that is left"
    c.sleep(100)
    assert {c.answers[token].generation_id for token in tokens} == {1}


def test_without_anybody_new_the_delay_is_not_longer() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=3_000)
    token = c.join(c.admitted())
    c.sleep(3_000)
    assert c.code(token) == "none"


def test_who_does_not_join_again_in_time_is_out() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    token = c.join(c.admitted(rebalance_ms=5_000), rebalance_ms=5_000)
    again = c.join(one, rebalance_ms=5_000)
    assert c.heartbeat(two, 2) == "illegal_generation" or c.heartbeat(two, 1) == "rebalance_in_progress"
    c.sleep(4_999)
    assert c.code(again) == "waits"
    c.sleep(1)
    assert c.code(again) == c.code(token) == "none"
    assert two not in c.membership.members
    assert c.heartbeat(two, 1) == "unknown_member_id"


def test_a_new_leader_when_the_old_one_stays_away() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    leader, other = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    c.join(c.admitted(rebalance_ms=5_000), rebalance_ms=5_000)
    token = c.join(other, rebalance_ms=5_000)
    c.sleep(5_000)
    assert c.answers[token].leader == other
    assert leader not in c.membership.members


def test_a_session_that_ends_begins_a_rebalance() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=10_000)
    generation = c.membership.generation
    c.sleep(9_000)
    assert c.heartbeat(one, generation) == "none"
    c.sleep(1_000)
    assert c.heartbeat(one, generation) == "rebalance_in_progress"
    assert two not in c.membership.members
    assert c.code(c.join(one)) == "none"


def test_who_waits_for_a_join_needs_no_heartbeat() -> None:
    """But for a new member, which cannot be found again: after five minutes it is gone."""
    c = ClassicContext(initial_rebalance_delay_ms=0)
    c.stable(1, session_ms=400_000, rebalance_ms=400_000)
    one = next(iter(c.membership.members))
    token = c.join(c.admitted(session_ms=6_000, rebalance_ms=400_000), session_ms=6_000, rebalance_ms=400_000)
    c.sleep(299_999)
    assert c.code(token) == "waits"
    c.sleep(1)
    assert c.code(token) == "unknown_member_id"
    assert list(c.membership.members) == [one]


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1, session_ms=60_000)
    member_id = c.admitted(session_ms=6_000)
    again = c.join(one, session_ms=60_000)
    assert c.code(again) == "waits", "a rebalance waits for ids that were given out"
    c.sleep(6_000)
    assert c.code(again) == "none"
    assert c.code(c.join(member_id)) == "unknown_member_id"


def test_who_does_not_sync_in_time_is_out() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=60_000, rebalance_ms=5_000)
    first, second = c.join(one, rebalance_ms=5_000), c.join(two, rebalance_ms=5_000)
    assert c.code(first) == c.code(second) == "none"
    generation = c.answers[first].generation_id
    assert c.code(c.sync(one, generation, {one: b"x"})) == "none"
    c.sleep(5_000)
    assert c.heartbeat(one, generation) == "rebalance_in_progress"
    assert c.heartbeat(two, generation) == "unknown_member_id"


def test_a_restart_keeps_the_generation_and_begins_sessions_anew() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    one, two = c.stable(2, session_ms=10_000)
    generation = c.membership.generation
    c.sleep(9_000)
    c.restart()
    assert c.state == "Stable"
    c.sleep(9_000)
    assert c.heartbeat(one, generation) == "none"
    token = c.sync(two, generation)
    assert c.answers[token].assignment == two.encode()
    c.sleep(10_000)
    assert c.state == "Empty"


def test_a_restart_in_a_rebalance_falls_back_to_the_last_generation() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1, session_ms=10_000)
    parked = c.join(c.admitted())
    c.restart()
    assert c.code(parked) == "waits", "its connection is gone with the broker"
    assert c.heartbeat(one, 1) == "none"
    assert c.state == "Stable"


def test_a_group_that_became_too_large_rebalances() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    ids = c.stable(3, session_ms=60_000)
    c.restart(initial_rebalance_delay_ms=0, max_size=2)
    tokens = [c.join(each) for each in ids]
    assert [c.code(token) for token in tokens] == ["waits", "waits", "group_max_size_reached"]
    c.sleep(20_000)
    assert len(c.membership.members) == 2


def test_a_disk_that_refuses_changes_nothing() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1)
    token = c.join(one)
    generation = c.answers[token].generation_id
    c.log.refuses = True
    assert c.code(c.sync(one, generation, {one: b"new"})) == "coordinator_not_available"
    assert c.state == "CompletingRebalance"
    assert c.leave(one) == "coordinator_not_available"
    assert one in c.membership.members
    c.log.refuses = False
    assert c.answers[c.sync(one, generation, {one: b"new"})].assignment == b"new"
    assert c.shard.digest() == c.replayed().digest()


def test_an_answer_is_given_to_the_last_of_two_that_ask_in_one_name() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1)
    c.admitted()
    first, second = c.join(one), c.join(one)
    assert c.code(first) == "rebalance_in_progress"
    assert c.code(second) == "waits"


def test_a_protocol_that_a_member_names_twice() -> None:
    """Kafka never answers: it counts such a protocol twice, and finds none that all members speak."""
    c = ClassicContext(initial_rebalance_delay_ms=0)
    twice = (("range", b"1"), ("range", b"2"))
    token = c.join(c.admitted(protocols=twice), protocols=twice)
    c.sleep(0)
    assert c.answers[token].members[0].metadata == b"1"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"a range"])
def test_a_hostile_subscription_is_no_reason_to_fail(data: bytes) -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    fields = {"protocols": (("range", data),), "protocol_type": "consumer"}
    (one,) = c.stable(1, **fields)
    assert subscribed_topics(data) is None
    assert c.membership.is_subscribed_to("anything")
    c.restart()
    assert c.heartbeat(one, 1) == "none"


def test_a_subscription() -> None:
    assert subscribed_topics(b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x02bc\x00\x00\x00\x01x" + b"more") == {"a", "bc"}


def member(name: str, *protocols: str) -> ClassicMember:
    return ClassicMember(
        member_id=name,
        client_id="",
        client_host="",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        protocols=tuple((each, b"") for each in protocols),
    )


def test_the_vote() -> None:
    members = [member("a", "x", "y", "z"), member("b", "z", "y"), member("c", "y", "z")]
    assert select_protocol(members, {"y", "z"}) == "y", "two for y, whom a prefers when x is none that all speak"
    assert select_protocol(members[1:], {"y", "z"}) == "y", "a draw, by Java's order"
    assert select_protocol(members[:0:-1], {"y", "z"}) == "y"


def test_the_table() -> None:
    """Dead is nowhere entered from; nothing else is without a way in."""
    assert ENTERED_FROM.keys() == set(ClassicGroupState)
    for state, before in ENTERED_FROM.items():
        assert before, state
        assert state is ClassicGroupState.DEAD or ClassicGroupState.DEAD not in before


@pytest.mark.parametrize(("topics", "rebalances"), [(("in",), False), (("in", "logs"), True)])
def test_a_static_consumer_that_comes_back_for_other_topics_begins_a_rebalance(
    topics: tuple[str, ...], rebalances: bool
) -> None:
    """What it owned, which its subscription says too, is no reason for one."""
    c = ClassicContext(initial_rebalance_delay_ms=0)
    claims = Subscription(topics=("in",), owned_partitions=(("in", 0),)), Subscription(topics=topics)
    one, other = (encode_subscription(said) for said in claims)
    token = c.join(protocols=(("range", one),), protocol_type="consumer", instance="i")
    c.sleep(0)
    first = c.answers[token]
    c.sync(first.member_id, first.generation_id, {first.member_id: b"all"})
    assert c.state == "Stable"
    again = c.join(protocols=(("range", other),), protocol_type="consumer", instance="i")
    c.sleep(0)
    assert c.answers[again].generation_id == first.generation_id + rebalances
    assert (c.state == "Stable") is not rebalances


@given(subscription=st.binary(max_size=40), assignment=st.binary(max_size=40))
def test_user_data_is_opaque_byte_for_byte(subscription: bytes, assignment: bytes) -> None:
    """What a member sends reaches the leader, and what the leader sends reaches the member, unread and unchanged."""
    ctx = ClassicContext()
    for protocol_type in ("connect", "consumer"):
        fields: dict[str, Any] = {"protocols": (("own", subscription),), "protocol_type": protocol_type}
        tokens = [ctx.join(ctx.admitted(**fields), **fields) for _ in range(2)]
        ctx.sleep(ctx.configuration.initial_rebalance_delay_ms * 3)
        leader, follower = sorted(
            (ctx.answers[each] for each in tokens), key=lambda each: each.leader != each.member_id
        )
        assert [bytes(each.metadata) for each in leader.members] == [subscription] * 2
        assert follower.members == ()
        waits = ctx.sync(follower.member_id, leader.generation_id)
        ctx.sync(leader.member_id, leader.generation_id, {follower.member_id: assignment})
        assert bytes(ctx.answers[waits].assignment) == assignment
        ctx.restart()  # and from the log
        (described,) = ctx.shard.describe_groups([GROUP], ctx.context(0))
        stored = {each.member_id: bytes(each.member_assignment) for each in described.members}
        assert stored == {leader.member_id: b"", follower.member_id: assignment}
        for each in (leader, follower):
            assert ctx.leave(each.member_id) == "none"


def test_the_first_to_join_leads_and_goes_on_leading() -> None:
    """The leader stays while it rejoins, whoever comes or goes: what it knows of the assignment is not lost."""
    ctx = ClassicContext()
    first = ctx.admitted()
    tokens = {first: ctx.join(first)}
    for _ in range(3):
        member = ctx.admitted()
        tokens[member] = ctx.join(member)
    ctx.sleep(ctx.configuration.initial_rebalance_delay_ms * 5)
    members = list(tokens)
    assert {ctx.answers[token].leader for token in tokens.values()} == {first}
    for change in ("joins", "leaves", "joins", "leaves"):
        if change == "leaves":
            assert ctx.leave(members.pop(1)) == "none"
            tokens = {}
        else:
            newcomer = ctx.admitted()
            tokens = {newcomer: ctx.join(newcomer)}
        # The leader is the last to come back; the order of JoinGroups within a rebalance does not depose it.
        tokens |= {each: ctx.join(each) for each in members[::-1]}
        members = [*members, *(each for each in tokens if each not in members)]
        assert {ctx.answers[token].leader for token in tokens.values()} == {first}
    assert len({ctx.answers[token].generation_id for token in tokens.values()}) == 1
