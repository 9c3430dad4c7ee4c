"""ClassicTransition: one state transition of a classic group, from its cause to its `CoordinatorResult`.

A rule changes a copy of the membership and collects records, replies, timers and events here. If the log refuses the
records, the group keeps its old membership and no reply is sent. The replies are built as the newest versions of their
APIs have them; `protocol.version_conversion` leaves out what older versions lack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kio.static.primitive import i32

from headrace.coordinator.classic.group import ClassicMember, ClassicMembership
from headrace.coordinator.configuration import ClassicGroupConfiguration
from headrace.coordinator.records.schemas import group_metadata_record
from headrace.coordinator.result import (
    CancelTimer,
    CoordinatorEvent,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
    TimerKey,
)
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import (
    heartbeat_response,
    join_group_response,
    leave_group_response,
    sync_group_response,
)

__all__ = [
    "JOIN",
    "NEW_MEMBER_TIMEOUT_MS",
    "SESSION",
    "SYNC",
    "ClassicTransition",
    "follower_join_reply",
    "group_timer",
    "heartbeat_reply",
    "join_error_reply",
    "join_reply",
    "leave_reply",
    "session_timer",
    "sync_error_reply",
    "sync_reply",
    "sync_reply_with",
]


_NO_THROTTLE = from_ms(0)
_NO_GENERATION = i32(-1)


def join_reply(
    group: ClassicMembership, member_id: str, *, leader: str | None = None, skip_assignment: bool = False
) -> join_group_response.JoinGroupResponse:
    """Return the reply for the current generation; only the leader learns the members. `leader` overrides it."""
    members: tuple[join_group_response.JoinGroupResponseMember, ...] = ()
    # A client before JoinGroup v9 that replaced the static leader gets the former leader's id: it acts as a follower
    # then, because there is no field that says "the assignment stands" (KIP-814).
    named = leader if leader is not None else group.leader or ""
    if named == member_id:
        members = tuple(
            join_group_response.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                # The bytes of the chosen protocol only: a leader cannot use those of another assignor.
                metadata=member.metadata(group.protocol),
            )
            for member in group.members.values()
        )
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=i32(group.generation),
        protocol_type=group.protocol_type or None,
        protocol_name=group.protocol,
        leader=named,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def follower_join_reply(
    member_id: str, generation: int, *, protocol_type: str, protocol_name: str
) -> join_group_response.JoinGroupResponse:
    """Return the reply to a member of a group without a leader."""
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=i32(generation),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


def join_error_reply(code: ErrorCode, member_id: str = "") -> join_group_response.JoinGroupResponse:
    """Return an error reply; with MEMBER_ID_REQUIRED, it carries the id to join with."""
    return join_group_response.JoinGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=code,
        generation_id=_NO_GENERATION,
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


def sync_reply(group: ClassicMembership, member: ClassicMember) -> sync_group_response.SyncGroupResponse:
    """Return the SyncGroup response with the member's assignment in the current generation."""
    return sync_reply_with(member.assignment, group.protocol_type or None, group.protocol)


def sync_reply_with(
    assignment: bytes, protocol_type: str | None, protocol_name: str | None
) -> sync_group_response.SyncGroupResponse:
    """Return a SyncGroup reply with this assignment."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=_NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignment=assignment,
    )


def sync_error_reply(code: ErrorCode) -> sync_group_response.SyncGroupResponse:
    """Return a SyncGroup reply with an error code."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=_NO_THROTTLE, error_code=code, protocol_type=None, protocol_name=None, assignment=b""
    )


def heartbeat_reply(code: ErrorCode = ErrorCode.none) -> heartbeat_response.HeartbeatResponse:
    """Return a Heartbeat reply."""
    return heartbeat_response.HeartbeatResponse(throttle_time=_NO_THROTTLE, error_code=code)


def leave_reply(
    members: tuple[leave_group_response.MemberResponse, ...], code: ErrorCode = ErrorCode.none
) -> leave_group_response.LeaveGroupResponse:
    """Return a LeaveGroup reply with one result per member."""
    return leave_group_response.LeaveGroupResponse(throttle_time=_NO_THROTTLE, error_code=code, members=members)


SESSION = "session"
JOIN = "classic-join"
SYNC = "classic-sync"
NEW_MEMBER_TIMEOUT_MS = 300_000
"""Longest wait of a new member's JoinGroup (`ClassicGroup.NEW_MEMBER_JOIN_TIMEOUT_MS` in Kafka).

A new member does not know its id yet: it can neither send heartbeats nor rejoin if its connection breaks.
"""


class ClassicTransition:
    """One state transition. Mutable; used for one result."""

    def __init__(
        self,
        group: ClassicMembership,
        configuration: ClassicGroupConfiguration,
        *,
        now_ms: int,
        take: Callable[[ClassicMembership], None],
        records: tuple[CoordinatorRecord, ...] = (),
    ) -> None:
        """Start a transition.

        Args:
            group: a copy of the membership, which the transition may change.
            configuration: the settings of classic groups.
            now_ms: the time of the cause.
            take: makes the changed copy the group's membership, once the records are replayed.
            records: records that come before those of the transition.
        """
        self.group = group
        self.configuration = configuration
        self.now_ms = now_ms
        self._take = take
        self._records = list(records)
        self._timers: list[SetTimer | CancelTimer] = []
        self._replies: list[Reply] = []
        self._events: list[CoordinatorEvent] = []

    def result(self) -> CoordinatorResult:
        return CoordinatorResult(
            records=tuple(self._records),
            replies=tuple(self._replies),
            timers=tuple(self._timers),
            events=tuple(self._events),
            # The membership is soft state: the record holds a part of it. It takes effect when the records are
            # replayed, so a failed append changes nothing.
            soft=partial(self._take, self.group),
        )

    # --- what shall happen ---

    def write_group(self, assignments: dict[str, bytes] | None = None) -> None:
        """Append the group's record, as the group is now."""
        # One record holds the whole group, all members with all their protocols: classic groups have no record per
        # member.
        self._records.append(group_metadata_record(self.group.group_id, self.group.record_value(assignments)))

    def reply(self, token: int, response: object) -> None:
        self._replies.append(Reply(token=token, response=response))

    def add_event(self, name: str, **details: str) -> None:
        pairs = tuple(sorted(details.items()))
        self._events.append(CoordinatorEvent(name=name, group_id=self.group.group_id, details=pairs))

    def set_session_timer(self, member: ClassicMember, timeout_ms: int | None = None) -> None:
        """Start the session timer with the member's session timeout, or with a given one."""
        deadline_ms = self.now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.set_timer(session_timer(self.group.group_id, member.member_id), deadline_ms)

    def cancel_session_timer(self, member_id: str) -> None:
        self._timers.append(CancelTimer(key=session_timer(self.group.group_id, member_id)))

    def set_group_timer(self, kind: str, delay_ms: int) -> None:
        self.set_timer(group_timer(kind, self.group.group_id), self.now_ms + delay_ms)

    def cancel_group_timer(self, kind: str) -> None:
        self._timers.append(CancelTimer(key=group_timer(kind, self.group.group_id)))

    def set_timer(self, key: TimerKey, deadline_ms: int) -> None:
        self._timers.append(SetTimer(key=key, deadline_ms=deadline_ms))

    # --- members that wait for an answer ---

    def refuse_parked_join(self, member: ClassicMember, code: ErrorCode, member_id: str = "") -> ClassicMember:
        """Refuse a parked JoinGroup, if there is one. Returns the member without it."""
        if member.join_token is None:
            return member
        self.reply(member.join_token, join_error_reply(code, member_id))
        return self._now(replace(member, join_token=None))

    def refuse_parked_sync(self, member: ClassicMember, code: ErrorCode) -> ClassicMember:
        """Refuse a parked SyncGroup, if there is one. Returns the member without it."""
        if member.sync_token is None:
            return member
        self.reply(member.sync_token, sync_error_reply(code))
        return self._now(replace(member, sync_token=None))

    def remove(self, member: ClassicMember) -> None:
        """Remove a member and refuse its parked requests. A new member may retry: it never learnt its id."""
        # Both answers before the member goes: an unanswered request would hold its connection until the client's
        # timeout.
        member = self.refuse_parked_join(member, ErrorCode.unknown_member_id)
        member = self.refuse_parked_sync(member, ErrorCode.unknown_member_id)
        self.group.remove(member.member_id)
        self.cancel_session_timer(member.member_id)

    def _now(self, member: ClassicMember) -> ClassicMember:
        self.group.put(member)
        return member


def session_timer(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's session timer."""
    return TimerKey(kind=SESSION, group_id=group_id, member_id=member_id)


def group_timer(kind: str, group_id: str) -> TimerKey:
    """Return the key of a timer of the whole group."""
    return TimerKey(kind=kind, group_id=group_id)
