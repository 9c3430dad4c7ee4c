"""Events of a streams membership as frozen values, and the tracker that derives them from statuses.

A member that loses its tasks gets `Lost`, whatever other event names the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, StatusCode, Tasks
from headrace.client.membership.endpoints import EndpointMap
from headrace.client.membership.target_assignment_poller import TargetAssignment
from headrace.errors import HeadraceError

__all__ = [
    "Assigned",
    "AssignmentChanged",
    "EndpointsChanged",
    "Fatal",
    "Fenced",
    "InstanceIdTaken",
    "Left",
    "Lost",
    "LostReason",
    "MemberEvent",
    "NotReady",
    "Ready",
    "SettingIgnored",
    "ShutdownRequested",
    "Status",
    "StatusTracker",
    "TargetSeen",
    "is_ready",
]

LostReason = Literal["fenced", "session-expired", "rejoined", "left", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The member joined (again) with these first tasks, maybe none. Must be acknowledged."""

    assignment: AssignmentSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanged:
    """Tasks or the member epoch changed. Give back `revoked` active tasks: commit, close, acknowledge.

    If all differences are empty only the epoch changed. A standby task that became active is in `added` and in
    `standby_removed`: its state stays. The coordinator waits for the acknowledgement.
    """

    assignment: AssignmentSnapshot
    added: Tasks
    revoked: Tasks
    standby_added: Tasks = field(default_factory=dict)
    standby_removed: Tasks = field(default_factory=dict)
    warmup_added: Tasks = field(default_factory=dict)
    warmup_removed: Tasks = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The coordinator no longer accepts this member's epoch (`FENCED_MEMBER_EPOCH`, `UNKNOWN_MEMBER_ID`)."""

    kafka_name: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """All tasks are lost: commit nothing any more. The member joins again unless it left or `Fatal` follows."""

    reason: LostReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """The coordinator cannot assign tasks yet: (status code, detail) of missing or wrongly partitioned topics."""

    status: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The end of `NotReady`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """A member asked the whole application to stop (KIP-1071, SHUTDOWN_APPLICATION)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSeen:
    """The member's target assignment, before it comes true: restore state ahead, but process nothing of it.

    `to_come` are the active tasks that the member does not have yet. Emitted only with `early_look`, when the target
    differs from the last one.
    """

    target: TargetAssignment
    to_come: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsChanged:
    """The endpoints for interactive queries changed."""

    endpoints: EndpointMap


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingIgnored:
    """The coordinator does not support a configured setting; the member continues without it. Emitted once."""

    setting: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIdTaken:
    """Another member holds this member's instance id; it tries again until that member's session must be over.

    `holder` is None if the group may not be described, or the holder is gone already.
    """

    instance_id: str
    member_id: str
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member left the group.

    `confirmed` is False if the coordinator did not answer the leave in time. `will_return`: a static member that left
    temporarily; its tasks wait for it until its session ends.
    """

    confirmed: bool
    will_return: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The membership is over; `error` has the reason and the fix."""

    error: HeadraceError


MemberEvent = (
    Assigned
    | AssignmentChanged
    | Fenced
    | Lost
    | NotReady
    | Ready
    | ShutdownRequested
    | TargetSeen
    | EndpointsChanged
    | SettingIgnored
    | InstanceIdTaken
    | Left
    | Fatal
)


Status = tuple[tuple[int, str], ...]
"""(code, detail) of each status in a reply."""

# Statuses with which the coordinator assigns no tasks, besides a stale topology, whose member still gets tasks
# (KIP-1071). ASSIGNMENT_DELAYED ends by itself and SHUTDOWN_APPLICATION has its own event.
_NOT_READY = frozenset(
    {
        StatusCode.STALE_TOPOLOGY,
        StatusCode.MISSING_SOURCE_TOPICS,
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        StatusCode.MISSING_INTERNAL_TOPICS,
    }
)


def is_ready(status: Status) -> bool:
    """Return whether no status keeps the coordinator from assigning tasks."""
    return all(code not in _NOT_READY for code, _ in status)


class StatusTracker:
    """Turns the statuses of heartbeat replies into events, each emitted once (KIP-1071, "Status"). Mutable."""

    def __init__(self) -> None:
        self._problems: Status = ()
        self._shutdown_told = False

    def forget(self) -> None:
        """Reset for a new membership: a shutdown request is emitted again."""
        self._shutdown_told = False
        self._problems = ()

    def take(self, status: Status) -> Iterator[e.MemberEvent]:
        """Yield an event for each change against the last statuses."""
        # Replies repeat all statuses; only a change becomes an event, or an application would log the same sentence
        # every 500 ms.
        problems = tuple(entry for entry in status if entry[0] in _NOT_READY)
        if problems != self._problems:
            self._problems = problems
            yield e.NotReady(status=problems) if problems else e.Ready()
        if not self._shutdown_told and any(code == StatusCode.SHUTDOWN_APPLICATION for code, _ in status):
            self._shutdown_told = True
            yield e.ShutdownRequested()
