"""Protocols and subscriptions of a classic group's members."""

from __future__ import annotations

import pytest
from tests.coordinator.classic_context import ClassicContext, member

from headrace.coordinator.classic.group import (
    select_protocol,
    subscribed_topics,
)


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


def test_the_vote() -> None:
    members = [member("a", "x", "y", "z"), member("b", "z", "y"), member("c", "y", "z")]
    assert select_protocol(members, {"y", "z"}) == "y", "two for y, whom a prefers when x is none that all speak"
    assert select_protocol(members[1:], {"y", "z"}) == "y", "a draw, by Java's order"
    assert select_protocol(members[:0:-1], {"y", "z"}) == "y"
