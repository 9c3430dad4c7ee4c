"""Rules that members of classic and consumer groups share: leaving, fatal errors, a coordinator that moves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.membership.consumer_scripts import script, settled
from tests.client.membership.group_script import assigned, found
from tests.harness.values import not_none

from headrace.client.membership.group_events import (
    GroupFatal,
    GroupLeft,
    GroupWarning,
)
from headrace.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(("instance_id", "for_good", "epoch"), [(None, None, -1), ("one", None, -2), ("one", True, -1)])
def test_leaving(instance_id: str | None, for_good: bool | None, epoch: int) -> None:
    member = settled(instance_id=instance_id)
    member.member.leave(member.now_ms, for_good=for_good)
    assert member.next_sent().member_epoch == epoch
    assert member.answer(assigned(None, epoch=epoch)) == (GroupLeft(confirmed=True),)


def test_a_leave_does_not_wait_for_the_request_that_is_out_nor_for_ever() -> None:
    member = settled()
    member.next_sent()
    member.member.leave(member.now_ms)
    assert not_none(member.sent()).member_epoch == -1
    member.now_ms += 5_001
    assert member.sent() is None
    assert member.member.take_events() == (GroupLeft(confirmed=False),)


def test_a_held_instance_id_is_waited_for_and_then_given_up() -> None:
    member = script(instance_id="one")
    began = member.now_ms
    events: list[Any] = []
    while not any(isinstance(event, GroupFatal) for event in events):
        request = member.next_sent()
        code = ErrorCode.unreleased_instance_id if request.member_epoch == 0 else ErrorCode.none
        events += member.answer(assigned(None, code=code))
    assert isinstance(events[0], GroupWarning)
    assert events[-1].error.code == "instance-taken"
    assert 50_000 < member.now_ms - began < 60_000


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.unsupported_version, "unsupported-api"),
        (ErrorCode.group_authorization_failed, "not-authorized"),
        (ErrorCode.group_max_size_reached, "group-full"),
        (ErrorCode.invalid_regular_expression, "heartbeat-refused"),
        (ErrorCode.unsupported_assignor, "heartbeat-refused"),
        (ErrorCode.fenced_instance_id, "instance-fenced"),
        (ErrorCode.group_id_not_found, "group-kind"),
    ],
)
def test_fatal_errors_end_the_membership(code: ErrorCode, kind: str) -> None:
    member = script()
    member.next_sent()
    (event,) = member.answer(assigned(None, code=code, message="because"))
    assert isinstance(event, GroupFatal)
    assert event.error.code == kind
    assert member.sent() is None


def test_a_coordinator_that_moved_is_looked_for() -> None:
    member = settled()
    member.next_sent()
    member.answer(assigned(None, code=ErrorCode.not_coordinator))
    member.next_sent()
    member.answer(found(ErrorCode.coordinator_not_available))
    member.find_coordinator()
    assert member.next_sent().member_epoch == 1
