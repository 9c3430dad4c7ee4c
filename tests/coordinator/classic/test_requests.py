"""JoinGroup and SyncGroup of members of a classic group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.classic_context import GROUP, ClassicContext

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import encode_subscription


def test_an_answer_is_given_to_the_last_of_two_that_ask_in_one_name() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1)
    c.admitted()
    first, second = c.join(one), c.join(one)
    assert c.code(first) == "rebalance_in_progress"
    assert c.code(second) == "waits"


@pytest.mark.parametrize(("topics", "rebalances"), [(("in",), False), (("in", "logs"), True)])
def test_returning_static_consumer_with_other_topics_starts_a_rebalance(
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
