"""A member of a classic group at the points at which tests begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.client.membership.group_script import GroupScript, joined

from headrace.assignors.assignor import Subscription
from headrace.assignors.consumer_protocol import (
    encode_subscription,
)
from headrace.assignors.registry import parse_assignors
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.group_events import (
    SubscribedTopics,
)

FLIGHTS = SubscribedTopics(names=("flights",))


BOTH = (("flights", 0), ("flights", 1))


def script(strategy: Any = "range", wanted: SubscribedTopics = FLIGHTS, **settings: Any) -> GroupScript:
    made = GroupScript(ClassicMembership("g", parse_assignors(strategy), chance=lambda: 0.0, **settings))
    made.member.subscribe(wanted, made.now_ms)
    made.find_coordinator()
    return made


def lead(strategy: Any = "range", members: Mapping[str, bytes] | None = None) -> GroupScript:
    made = script(strategy)
    (offered, *_) = made.next_sent().protocols
    listed = members or {
        "m1": encode_subscription(Subscription(topics=("flights",))),
        "m2": encode_subscription(Subscription(topics=("flights", "delays"))),
    }
    made.answer(joined(leader="m1", members=listed, protocol=offered.name))
    return made
