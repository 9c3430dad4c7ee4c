"""What a static member (`group.instance.id`, KIP-345 for streams groups in Kafka 4.4) needs beyond a dynamic one.

Rules it obeys:
- The id is sent only to a coordinator that speaks heartbeat v1: older ones refuse the whole heartbeat. There the member
  goes on as a dynamic one, and says so once.
- `UNRELEASED_INSTANCE_ID` at a join: somebody holds the id, and be it this member's own former self: the reply to its
  join was lost, its lease ran out, or its guardian died and was replaced. So the member first lets go of the id (epoch
  -2 with its own member id, which can only release what is its own). When somebody else holds it, the member looks
  who, tells the application, and tries again until the session of a crashed former process must have ended.
- `FENCED_INSTANCE_ID`: a newer process took the id over. This one looks who, and stops: the newer one is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.membership.events import InstanceIdTaken
from headrace.errors import BrokerError, Fenced, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["Holder", "StaticMember"]

RELEASE_MARGIN_MS = (
    5_000  # behind the session timeout: the coordinator's timer starts with the last heartbeat's arrival
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The member that has an instance id, as StreamsGroupDescribe shows it."""

    member_id: str
    client_id: str
    client_host: str

    def __str__(self) -> str:
        return f"{self.member_id} ({self.client_id} at {self.client_host.removeprefix('/')})"


class StaticMember:
    """Mutable: where this member stands with its instance id. `instance_id` None: a dynamic member."""

    def __init__(self, instance_id: str | None, *, group_id: str, member_id: str, session_timeout_ms: int) -> None:
        self.instance_id = instance_id
        self._group_id = group_id
        self._member_id = member_id
        self._patience_ms = session_timeout_ms + RELEASE_MARGIN_MS
        self._refused_since_ms: int | None = None
        self.maybe_held_by_us = instance_id is not None
        self.conflict: ErrorCode | None = None
        self.release_first = False
        self.look_is_due = False
        self.holder: Holder | None = None
        self._told = False

    def held(self) -> None:
        """The coordinator accepted the id, or may have."""
        self.maybe_held_by_us = self.instance_id is not None

    def joined(self) -> None:
        """The coordinator said so."""
        self.held()
        self._refused_since_ms = None
        self.conflict = None
        self.release_first = False
        self.look_is_due = False
        self.holder = None
        self._told = False

    def given_up(self) -> None:
        """The coordinator has no member of ours under this id."""
        self.maybe_held_by_us = False
        self.release_first = False

    def refused(self, code: ErrorCode, now_ms: int) -> None:
        """The coordinator names a conflict; `release_first` or `look_is_due` says what comes next."""
        if code == ErrorCode.unreleased_instance_id and self.maybe_held_by_us:
            self.release_first = True
            return
        self.release_first = False
        self.conflict = code
        self.look_is_due = True
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms

    def found(self, members: tuple[m.streams_group_describe_response.Member, ...]) -> bool:
        """Who holds the id, out of all members. True when the application is to be told."""
        self.look_is_due = False
        before = self.holder
        self.holder = next(
            (
                Holder(member_id=other.member_id, client_id=other.client_id, client_host=other.client_host)
                for other in members
                if other.instance_id == self.instance_id and other.member_id != self._member_id
            ),
            None,
        )
        is_news = not self._told or self.holder != before
        self._told = True
        return is_news and self.conflict == ErrorCode.unreleased_instance_id

    def taken(self) -> InstanceIdTaken:
        """What the application is told."""
        return InstanceIdTaken(
            instance_id=self.instance_id or "",
            member_id=self._member_id,
            holder=None if self.holder is None else str(self.holder),
        )

    def is_final(self, now_ms: int) -> bool:
        """Whether the conflict ends the membership."""
        if self.conflict == ErrorCode.fenced_instance_id:
            return True
        return self._refused_since_ms is not None and now_ms - self._refused_since_ms >= self._patience_ms

    def fatal_error(self) -> HeadraceError:
        """Both lives by name, and what to do."""
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
