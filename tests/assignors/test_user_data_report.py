"""User data of subscriptions and assignments in words: known layouts decoded, others as they are, garbage harmless."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.assignors.assignor import Assignment, Assignor, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.assignors.experimental import LeaderIndependentSticky, Load, WarmSpares, WeightedByLoad
from headrace.assignors.kafka_assignors import CooperativeStickyAssignor, StickyAssignor
from headrace.assignors.user_data_report import Role, report_user_data

KNOWN = ("sticky", "cooperative-sticky", LeaderIndependentSticky.name, WarmSpares.name, WeightedByLoad.name)
HELD = Assignment(partitions=(("flights", 1), ("flights", 0)))


def told(assignor: Assignor) -> tuple[Any, Any]:
    """One member's user data in both directions, in its second generation (the first one is 7)."""
    alone = {"m1": Subscription(topics=("flights",))}
    assignor.on_assignment(assignor.assign({"flights": 2}, alone)["m1"], 7)
    subscription = Subscription(topics=("flights",), user_data=assignor.subscription_user_data(("flights",)))
    given = assignor.assign({"flights": 2}, {"m1": subscription})["m1"]
    sent = (("subscription", encode_subscription(subscription)), ("assignment", encode_assignment(given)))
    reports = [report_user_data(assignor.name, role, data) for role, data in sent]  # type: ignore[arg-type]
    assert [report.role for report in reports] == ["subscription", "assignment"]
    assert all(report.decoded is None or json.loads(report.text()) == report.decoded for report in reports)
    return reports[0].decoded, reports[1].decoded


@pytest.mark.parametrize(
    ("assignor", "to_the_leader", "to_the_member"),
    [
        (StickyAssignor(), {"generation": 7, "owned": {"flights": [0, 1]}}, None),
        (CooperativeStickyAssignor(), {"generation": 7}, None),
        (
            LeaderIndependentSticky(),
            {"generation": 7, "assignment": {"m:m1": {"flights": [0, 1]}}},
            {"assignment": {"m:m1": {"flights": [0, 1]}}},
        ),
        (WarmSpares(), {"generation": 7, "active": {"flights": [0, 1]}, "spare": {}}, {"spare": {}}),
        (
            WeightedByLoad(lambda: Load(cpu=0.25, memory=0.5, lag=12, rack="eu-1a")),
            {
                "cpu": 0.25,
                "memory": 0.5,
                "lag": 12,
                "rack": "eu-1a",
                "generation": 7,
                "owned": {"flights": [0, 1]},
            },
            None,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Assignor) else "",
)
def test_user_data_of_known_assignors_is_decoded(assignor: Assignor, to_the_leader: Any, to_the_member: Any) -> None:
    assert told(assignor) == (to_the_leader, to_the_member)


def test_user_data_of_other_assignors_is_shown_as_it_is() -> None:
    subscription = encode_subscription(Subscription(topics=("flights",), user_data=b"\x00cpu=3"))
    assert report_user_data("their-own", "subscription", subscription).text() == "0x006370753d33 (6 bytes)"
    long = encode_assignment(Assignment(user_data=b"\xff" * 65))
    assert report_user_data("their-own", "assignment", long).text() == f"0x{'ff' * 64}… (65 bytes)"
    assert report_user_data("range", "assignment", encode_assignment(HELD)).text() == "-"
    assert report_user_data("range", "assignment", b"").text() == "-"
    # A subscription and an assignment with the same user data are two reports that name their direction.
    assert report_user_data("sticky", "subscription", b"\x00").text().startswith("unreadable subscription: ")


@given(
    assignor=st.sampled_from((*KNOWN, "their-own")),
    role=st.sampled_from(("subscription", "assignment")),
    data=st.binary(max_size=80),
    wrapped=st.booleans(),
)
def test_foreign_bytes_are_reported_and_never_raise(assignor: str, role: Role, data: bytes, wrapped: bool) -> None:
    sent = data
    if wrapped and role == "subscription":
        sent = encode_subscription(Subscription(topics=("t",), user_data=data))
    elif wrapped:
        sent = encode_assignment(Assignment(user_data=data))
    report = report_user_data(assignor, role, sent)
    assert report.text()
    if wrapped:
        assert report.user_data == data
