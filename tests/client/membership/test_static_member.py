"""Static members: where the id is sent, what a conflict means, who is named, and how a member leaves to come back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.membership.scripted_coordinator import SESSION_TIMEOUT_MS, ScriptedCoordinator

from headrace.client.membership import events as e
from headrace.client.membership.member_core import MemberState
from headrace.errors import BrokerError, Fenced
from headrace.protocol.error_codes import ErrorCode

ALL_OF_IT = {"flights": (0, 1, 2, 3)}


def name(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


def begun(version: int = 1) -> ScriptedCoordinator:
    """A static member whose join is on the wire."""
    script = ScriptedCoordinator(instance_id="pod-1")
    script.member.join(script.now_ms)
    assert name(script.next_sent()) == "FindCoordinator"
    script.find_coordinator()
    assert name(script.next_sent()) == "ApiVersions"
    script.speaks(version)
    return script


def joined() -> ScriptedCoordinator:
    script = begun()
    assert script.next_sent().instance_id == "pod-1"
    script.answer(active=ALL_OF_IT)
    script.member.acknowledge(ALL_OF_IT, script.now_ms)
    assert script.next_sent().instance_id == "pod-1", "in every heartbeat"
    script.answer()
    script.events()
    return script


def refused() -> ScriptedCoordinator:
    """A joiner whose id somebody holds, and who has found out that it is not itself."""
    script = begun()
    script.next_sent()
    script.answer(code=ErrorCode.unreleased_instance_id)
    release = script.sent()
    assert release is not None
    assert (release.member_epoch, release.member_id) == (-2, "m-1")
    script.answer(code=ErrorCode.fenced_instance_id)
    assert script.next_sent().member_epoch == 0
    script.answer(code=ErrorCode.unreleased_instance_id)
    return script


def test_a_dynamic_member_asks_nobody_for_versions() -> None:
    script = ScriptedCoordinator()
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert name(script.next_sent()) == "StreamsGroupHeartbeat"


def test_dynamic_member_with_a_notice_without_static_member_support() -> None:
    script = begun(version=0)
    join = script.next_sent()
    assert (join.member_epoch, join.instance_id) == (0, None)
    script.answer(active=ALL_OF_IT)
    ignored, assigned = script.events()
    assert isinstance(ignored, e.SettingIgnored)
    assert ignored.setting == "group.instance.id"
    assert "pod-1" in ignored.message
    assert "4.4" in ignored.fix
    assert isinstance(assigned, e.Assigned)
    script.next_sent()
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    assert name(script.next_sent()) == "ApiVersions", "the coordinator may be another broker now"
    script.speaks(0)
    assert script.next_sent().instance_id is None
    assert script.events() == ()


def test_versions_that_are_refused_are_asked_for_again() -> None:
    script = ScriptedCoordinator(instance_id="pod-1")
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    script.next_sent()
    script.speaks(1, ErrorCode.unknown_server_error)
    assert name(script.next_sent()) == "FindCoordinator"
    script.find_coordinator()
    asked_ms = script.now_ms
    assert name(script.next_sent()) == "ApiVersions"
    assert script.now_ms > asked_ms


def test_leaving_for_a_while_says_so_and_leaving_for_good_too() -> None:
    for for_a_while, epoch in ((True, -2), (False, -1)):
        script = joined()
        script.member.leave(script.now_ms, for_a_while=for_a_while)
        leave = script.next_sent()
        assert (leave.member_epoch, leave.instance_id) == (epoch, "pod-1")
        script.answer(epoch=epoch)
        assert script.events() == (e.Lost(reason="left"), e.Left(confirmed=True, will_return=for_a_while))


def test_a_dynamic_member_that_leaves_for_a_while_just_leaves() -> None:
    script = ScriptedCoordinator()
    script.settled(active=ALL_OF_IT)
    script.member.leave(script.now_ms, for_a_while=True)
    assert script.next_sent().member_epoch == -1
    script.answer(epoch=-1)
    assert script.events()[-1] == e.Left(confirmed=True, will_return=False)


def test_a_member_that_was_refused_static_membership_leaves_for_good() -> None:
    script = begun(version=0)
    script.next_sent()
    script.answer(active=ALL_OF_IT)
    script.member.leave(script.now_ms, for_a_while=True)
    assert script.next_sent().member_epoch == -1


def test_an_id_that_somebody_holds_is_waited_for_and_its_holder_is_named() -> None:
    script = refused()
    assert name(script.next_sent()) == "StreamsGroupDescribe"
    script.describe(("other", "pod-1", {}), ("third", "pod-2", {}))
    assert script.events() == (
        e.InstanceIdTaken(instance_id="pod-1", member_id="m-1", holder="other (client-of-other at 10.0.0.7)"),
    )
    again = script.next_sent()
    assert (again.member_epoch, again.instance_id) == (0, "pod-1")
    script.answer(code=ErrorCode.unreleased_instance_id)
    script.next_sent()
    script.describe(("other", "pod-1", {}))
    assert script.events() == (), "told once"
    script.next_sent()
    script.answer(active=ALL_OF_IT)
    assert isinstance(script.events()[0], e.Assigned)


def test_instance_id_held_beyond_the_session_is_fatal_and_names_both() -> None:
    script = refused()
    began_ms = script.now_ms
    while True:
        assert name(script.next_sent()) == "StreamsGroupDescribe"
        script.describe(("other", "pod-1", {}))
        if script.state is MemberState.FATAL:
            break
        assert script.next_sent().member_epoch == 0
        script.answer(code=ErrorCode.unreleased_instance_id)
    assert SESSION_TIMEOUT_MS < script.now_ms - began_ms < SESSION_TIMEOUT_MS + 10_000
    fatal = script.events()[-1]
    assert isinstance(fatal, e.Fatal)
    assert isinstance(fatal.error, BrokerError)
    assert fatal.error.code == "instance-taken"
    for word in ("other", "m-1", "pod-1", "app"):
        assert word in str(fatal.error)
    assert fatal.error.kafka_name == "UNRELEASED_INSTANCE_ID"
    assert fatal.error.fix


def test_a_holder_that_may_not_be_seen_is_another_member() -> None:
    script = refused()
    script.next_sent()
    script.describe(code=ErrorCode.group_authorization_failed)
    assert script.events() == (e.InstanceIdTaken(instance_id="pod-1", member_id="m-1", holder=None),)


def test_a_join_whose_reply_was_lost_does_not_lock_the_member_out() -> None:
    """The coordinator took the join, so the id is this member's own: it lets go of it and joins again."""
    script = begun()
    assert script.next_sent().member_epoch == 0
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    script.next_sent()
    script.speaks(1)
    assert script.next_sent().member_epoch == 0
    script.answer(code=ErrorCode.unreleased_instance_id)
    release = script.next_sent()
    assert (release.member_epoch, release.member_id, release.instance_id) == (-2, "m-1", "pod-1")
    script.answer(epoch=-2)
    assert script.next_sent().member_epoch == 0
    script.answer(active=ALL_OF_IT)
    assert [type(event).__name__ for event in script.events()] == ["Assigned"]


def test_new_guardian_releases_the_instance_id_of_the_killed_one() -> None:
    script = begun()
    script.next_sent()
    script.answer(code=ErrorCode.unreleased_instance_id)
    assert script.next_sent().member_epoch == -2
    script.answer(epoch=-2)
    assert script.next_sent().member_epoch == 0
    script.answer(active=ALL_OF_IT)
    assert [type(event).__name__ for event in script.events()] == ["Assigned"]


def test_member_that_keeps_its_id_leaves_silently_without_static_members() -> None:
    for version, kept, for_a_while, epoch in ((0, True, True, None), (0, True, False, -1), (0, False, True, -1),
                                              (1, True, True, -2)):  # fmt: skip
        script = ScriptedCoordinator(instance_id="pod-1", keeps_member_id=kept)
        script.member.join(script.now_ms)
        script.next_sent()
        script.find_coordinator()
        script.next_sent()
        script.speaks(version)
        script.next_sent()
        script.answer(active=ALL_OF_IT)
        script.member.acknowledge(ALL_OF_IT, script.now_ms)
        script.next_sent()
        script.answer()
        script.events()
        script.member.leave(script.now_ms, for_a_while=for_a_while)
        if epoch is None:
            assert script.events() == (e.Lost(reason="left"), e.Left(confirmed=False, will_return=True))
            assert script.sent() is None
            assert script.state is MemberState.UNSUBSCRIBED
        else:
            assert script.next_sent().member_epoch == epoch


def test_instance_id_taken_by_another_member_is_not_released() -> None:
    script = begun()
    script.next_sent()
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    script.next_sent()
    script.speaks(1)
    script.next_sent()
    script.answer(code=ErrorCode.unreleased_instance_id)
    assert script.next_sent().member_epoch == -2
    script.answer(code=ErrorCode.fenced_instance_id)
    assert script.next_sent().member_epoch == 0
    script.answer(code=ErrorCode.unreleased_instance_id)
    assert name(script.next_sent()) == "StreamsGroupDescribe", "no second release: the id is not ours"


def test_a_member_whose_lease_ran_out_lets_go_of_its_own_id() -> None:
    script = joined()
    script.next_sent()
    script.now_ms += 10 * SESSION_TIMEOUT_MS
    assert script.sent() is None
    assert script.events() == (e.Lost(reason="session-expired"),)
    script.answer()  # of the heartbeat before the pause
    assert script.next_sent().member_epoch == 0
    script.answer(code=ErrorCode.unreleased_instance_id)
    assert script.next_sent().member_epoch == -2


def test_the_older_of_two_lives_ends_and_says_who_took_its_place() -> None:
    script = joined()
    script.next_sent()
    script.answer(code=ErrorCode.fenced_instance_id, message="fenced")
    assert [type(event).__name__ for event in script.events()] == ["Fenced", "Lost"]
    assert script.member.assignment.active == {}
    assert name(script.next_sent()) == "StreamsGroupDescribe"
    script.describe(("newer", "pod-1", {}))
    (fatal,) = script.events()
    assert isinstance(fatal, e.Fatal)
    assert isinstance(fatal.error, Fenced)
    assert fatal.error.code == "instance-fenced"
    for word in ("newer (client-of-newer at 10.0.0.7)", "m-1", "pod-1"):
        assert word in str(fatal.error)
    assert script.state is MemberState.FATAL


@pytest.mark.parametrize("code", [ErrorCode.fenced_instance_id, ErrorCode.unreleased_instance_id])
def test_a_leave_that_finds_the_id_in_other_hands_has_reached_its_goal(code: ErrorCode) -> None:
    script = joined()
    script.member.leave(script.now_ms)
    script.next_sent()
    script.answer(code=code)
    assert script.events()[-1] == e.Left(confirmed=True)
