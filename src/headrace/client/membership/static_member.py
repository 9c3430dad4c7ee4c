"""Ownership of an instance id: static members of streams groups (`group.instance.id`, KIP-345, in Kafka 4.4).

Rules:

- The id is sent only to a coordinator that offers heartbeat v1: older ones refuse the whole heartbeat. There the member
  joins as a dynamic one and emits `SettingIgnored` once.
- `UNRELEASED_INSTANCE_ID` at a join: the id is held, possibly by this member's own former self, because the reply to
  its join was lost, its lease ran out, or its guardian died and was replaced. So the member first releases the id
  (epoch -2 with its own member id, which can release only its own membership). If another member holds it, the member
  looks up the holder, notifies the application, and retries until the session of a crashed process must have ended.
- `FENCED_INSTANCE_ID`: a newer process took the id over. This one looks up the holder, and stops.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.membership.events import InstanceIdTaken
from headrace.errors import BrokerError, Fenced, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["Holder", "StaticMember"]

# The coordinator's session timer starts when the last heartbeat of the crashed process arrives, and runs coarsely.
RELEASE_MARGIN_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The member that has an instance id, as StreamsGroupDescribe returns it."""

    member_id: str
    client_id: str
    client_host: str

    def __str__(self) -> str:
        return f"{self.member_id} ({self.client_id} at {self.client_host.removeprefix('/')})"


class StaticMember:
    """State of a member and its instance id. Mutable. `instance_id` None: a dynamic member."""

    def __init__(self, instance_id: str | None, *, group_id: str, member_id: str, session_timeout_ms: int) -> None:
        """Args:
        instance_id: `group.instance.id`, or None.
        group_id: The group.
        member_id: This member's id.
        session_timeout_ms: The group's session timeout: how long a crashed process holds the id.
        """
        self.instance_id = instance_id
        self._group_id = group_id
        self._member_id = member_id
        # No holder that crashed lasts longer than this. One that is still there runs, and waiting would not end.
        self._patience_ms = session_timeout_ms + RELEASE_MARGIN_MS
        self._refused_since_ms: int | None = None
        self.maybe_held_by_us = instance_id is not None
        self.conflict: ErrorCode | None = None
        self.release_first = False
        self.look_is_due = False
        self.holder: Holder | None = None
        self._told = False

    def mark_held(self) -> None:
        """Note that the coordinator accepted the id, or may have."""
        self.maybe_held_by_us = self.instance_id is not None

    def on_joined(self) -> None:
        """Note that a join with the id succeeded."""
        self.mark_held()
        self._refused_since_ms = None
        self.conflict = None
        self.release_first = False
        self.look_is_due = False
        self.holder = None
        self._told = False

    def mark_released(self) -> None:
        """Note that the coordinator has no member of this process under the id."""
        self.maybe_held_by_us = False
        self.release_first = False

    def on_conflict(self, code: ErrorCode, now_ms: int) -> None:
        """Handle a conflict; `release_first` or `look_is_due` determine the next request."""
        # 1. The holder may be this member: then a release with its own id ends the conflict without any other member
        #    noticing. A release never harms another holder, because the coordinator compares the member id (KIP-345).
        if code == ErrorCode.unreleased_instance_id and self.maybe_held_by_us:
            self.release_first = True
            return
        self.release_first = False
        self.conflict = code
        self.look_is_due = True
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms

    def set_holder(self, members: tuple[m.streams_group_describe_response.Member, ...]) -> bool:
        """Find the holder of the id among all members.

        Returns:
            Whether the application is to be notified.
        """
        self.look_is_due = False
        before = self.holder
        # Another member only: this member's own former self is released, not reported.
        self.holder = next(
            (
                Holder(member_id=other.member_id, client_id=other.client_id, client_host=other.client_host)
                for other in members
                if other.instance_id == self.instance_id and other.member_id != self._member_id
            ),
            None,
        )
        # The refused join is repeated about once a second; the application is notified only when the holder changes.
        is_news = not self._told or self.holder != before
        self._told = True
        return is_news and self.conflict == ErrorCode.unreleased_instance_id

    def taken_event(self) -> InstanceIdTaken:
        """Return the event for the application."""
        return InstanceIdTaken(
            instance_id=self.instance_id or "",
            member_id=self._member_id,
            holder=None if self.holder is None else str(self.holder),
        )

    def is_final(self, now_ms: int) -> bool:
        """Return whether the conflict ends the membership."""
        # At once: FENCED_INSTANCE_ID means that another process joined later with the id. Joining again would fence
        # that one in its turn, and so on without end.
        if self.conflict == ErrorCode.fenced_instance_id:
            return True
        return self._refused_since_ms is not None and now_ms - self._refused_since_ms >= self._patience_ms

    def fatal_error(self) -> HeadraceError:
        """Return the error that names both members and the fix."""
        assert self.conflict is not None
        other = str(self.holder) if self.holder is not None else "another member"
        facts = {
            "kafka_code": int(self.conflict),
            "kafka_name": kafka_name(self.conflict),
            "retriable": False,
            "api": "StreamsGroupHeartbeat",
            "group_id": self._group_id,
            "instance_id": self.instance_id,
            "member_id": self._member_id,
            "holder": None if self.holder is None else self.holder.member_id,
        }
        if self.conflict == ErrorCode.fenced_instance_id:
            return Fenced(
                "instance-fenced",
                f"{other} joined {self._group_id} later with the instance id {self.instance_id} of this member "
                f"({self._member_id}), which therefore ends",
                "give each process a group.instance.id of its own, or stop the one that should not run",
                **facts,
            )
        return BrokerError(
            "instance-taken",
            f"{other} holds the instance id {self.instance_id} in {self._group_id}, so this member "
            f"({self._member_id}) cannot join with it",
            "give each process a group.instance.id of its own; a process that crashed holds its id until its session "
            "ends",
            **facts,
        )
