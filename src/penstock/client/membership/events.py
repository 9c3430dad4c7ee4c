"""What a member must be told, as frozen values. Whoever loses tasks hears `Lost`, whatever else is said about why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.client.membership.assignment import AssignmentSnapshot, Tasks
from penstock.errors import PenstockError

__all__ = [
    "Assigned",
    "AssignmentChanged",
    "Fatal",
    "Fenced",
    "Left",
    "Lost",
    "LostReason",
    "MemberEvent",
    "NotReady",
    "Ready",
    "ShutdownRequested",
]

LostReason = Literal["fenced", "session-expired", "left", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The member has joined (again); these are its first tasks, maybe none. To be acknowledged."""

    assignment: AssignmentSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanged:
    """Tasks or the member epoch changed. `revoked` active tasks must be given back: commit, close, acknowledge.

    With nothing added and nothing revoked only the epoch (or standby tasks) changed.
    """

    assignment: AssignmentSnapshot
    added: Tasks
    revoked: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The coordinator does not accept this member's epoch any more (`FENCED_MEMBER_EPOCH`, `UNKNOWN_MEMBER_ID`)."""

    kafka_name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """All tasks are gone: commit nothing any more. The member joins again unless it left or met `Fatal`."""

    reason: LostReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """The coordinator cannot hand out tasks yet: (status code, detail) of missing or wrongly partitioned topics."""

    status: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What `NotReady` told of is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """Some member asked the whole application to stop (KIP-1071, SHUTDOWN_APPLICATION)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member is out of the group. `confirmed` False: the coordinator did not answer the leave in time."""

    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The membership is over; `error` says why and what to do."""

    error: PenstockError


MemberEvent = Assigned | AssignmentChanged | Fenced | Lost | NotReady | Ready | ShutdownRequested | Left | Fatal
