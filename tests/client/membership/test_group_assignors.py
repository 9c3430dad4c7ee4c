"""Assignors that run in the leader: their user data, their errors, and what members send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.client.membership.classic_scripts import BOTH, lead, script
from tests.client.membership.group_script import joined, metadata, synced
from tests.harness.values import not_none

from headrace.assignors.assignor import Assignment, Assignor, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.membership.group_events import (
    GroupFatal,
    GroupWarning,
    Rebalance,
)
from headrace.errors import UserCodeError


def test_a_member_that_sends_nonsense_gets_nothing_and_the_others_all() -> None:
    leader = lead(members={"m1": encode_subscription(Subscription(topics=("flights",))), "evil": b"\0\1\xff\xff\xff"})
    assert any(isinstance(event, GroupWarning) and "evil" in event.message for event in leader.events)
    leader.sent()
    leader.answer(metadata({"flights": 2}))
    given = {each.member_id: decode_assignment(each.assignment) for each in not_none(leader.sent()).assignments}
    assert given == {"m1": Assignment(partitions=BOTH), "evil": Assignment()}


class UserData(Assignor):
    """Gives each member back what it said, and everything to the first."""

    name = "echo"

    def __init__(self) -> None:
        self.heard: list[tuple[Assignment, int]] = []

    def subscription_user_data(self, topics: Sequence[str]) -> bytes:
        return b"I am " + ",".join(topics).encode()

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Assignment]:
        first = min(members)
        return {
            member: Assignment(
                partitions=tuple(("flights", n) for n in range(partitions["flights"])) if member == first else (),
                user_data=subscription.user_data,
            )
            for member, subscription in members.items()
        }

    def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
        self.heard.append((assignment, generation_id))


def test_an_assignor_of_ones_own_has_user_data_in_both_directions() -> None:
    own = UserData()
    member = script(own)
    sent = member.next_sent().protocols[0]
    assert (sent.name, decode_subscription(sent.metadata).user_data) == ("echo", b"I am flights")
    member.answer(joined(leader="m1", members={"m1": sent.metadata}, protocol="echo"))
    member.sent()
    member.answer(metadata({"flights": 2}))
    (given,) = not_none(member.sent()).assignments
    member.answer(synced(given.assignment))
    assert own.heard == [(Assignment(partitions=BOTH, user_data=b"I am flights"), 1)]


def test_an_assignor_that_raises_ends_the_membership_in_words() -> None:
    class Broken(UserData):
        def assign(self, partitions: Any, members: Any) -> Any:
            raise ZeroDivisionError("no racks")

    leader = lead(Broken())
    leader.sent()
    (event,) = leader.answer(metadata({"flights": 2}))
    assert isinstance(event, GroupFatal)
    assert isinstance(event.error, UserCodeError)
    assert "no racks" in str(event.error)


@pytest.mark.parametrize("what", [{"m1": 7}, {"m1": Assignment(partitions=(("flights", "one"),))}, None])  # type: ignore[arg-type]
def test_an_assignor_that_gives_what_cannot_be_written_is_named(what: Any) -> None:
    class Strange(UserData):
        def assign(self, partitions: Any, members: Any) -> Any:
            return what

    leader = lead(Strange())
    leader.sent()
    (event,) = leader.answer(metadata({"flights": 2}))
    assert isinstance(event, GroupFatal)
    assert event.error.code == "user-code"


@pytest.mark.parametrize("data", ["no bytes", 7])
def test_user_data_that_are_no_bytes_are_named(data: Any) -> None:
    class Strange(UserData):
        def subscription_user_data(self, topics: Sequence[str]) -> Any:
            return data

    member = script(Strange())
    assert member.sent() is None
    (event,) = member.member.take_events()
    assert isinstance(event, GroupFatal)
    assert event.error.code == "user-code"


def test_on_assignment_errors_are_reported() -> None:
    class Strange(UserData):
        def on_assignment(self, assignment: Assignment, generation_id: int) -> None:
            raise KeyError("rack")

    member = script(Strange())
    member.next_sent()
    member.answer(joined(protocol="echo"))
    member.sent()
    (event,) = member.answer(synced(encode_assignment(Assignment(partitions=BOTH))))
    assert isinstance(event, GroupFatal)
    assert "KeyError" in str(event.error)


def test_assignments_to_unknown_members_are_ignored() -> None:
    member = script()
    member.next_sent()
    member.answer(joined(protocol="range"))
    member.sent()
    wrong = (*BOTH, ("delays", 0), ("flights", -1), ("flights", 0))
    notice, event = member.answer(synced(encode_assignment(Assignment(partitions=wrong))))
    assert isinstance(notice, GroupWarning)
    assert "delays-0" in notice.message
    assert isinstance(event, Rebalance)
    assert event.assigned == BOTH
