"""A member of a consumer group at the points at which tests begin."""

from __future__ import annotations

from typing import Any

from tests.client.membership.group_script import GroupScript, assigned, metadata

from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import (
    SubscribedTopics,
)

FLIGHTS = SubscribedTopics(names=("flights",))


def script(wanted: SubscribedTopics = FLIGHTS, **settings: Any) -> GroupScript:
    made = GroupScript(ConsumerMembership("g", "m1", chance=lambda: 0.0, **settings))
    made.member.subscribe(wanted, made.now_ms)
    made.find_coordinator()
    return made


def settled(**settings: Any) -> GroupScript:
    """Joined, with flights-0 and flights-1 acknowledged."""
    made = script(**settings)
    made.next_sent()
    made.answer(assigned({"flights": [0, 1]}))
    made.next_sent()
    (event,) = made.answer(metadata({"flights": 4}))
    made.acknowledge(event)
    made.next_sent()
    made.answer(assigned(None))
    return made
