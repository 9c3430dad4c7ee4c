"""What a member must be told, as frozen values. Whoever loses tasks hears `Lost`, whatever else is said about why."""

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

LostReason = Literal["fenced", "session-expired", "left", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The member has joined (again); these are its first tasks, maybe none. To be acknowledged."""

    assignment: AssignmentSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChanged:
    """Tasks or the member epoch changed. `revoked` active tasks must be given back: commit, close, acknowledge.

    With all differences empty only the epoch changed. A standby task that became active is in `added` and in
    `standby_removed`: its state stays. Without an acknowledgement the coordinator waits for the application.
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
class TargetSeen:
    """What the member is going to get, before it gets it: restore ahead, but process nothing of it.

    `to_come` are the active tasks it does not have yet. Only with `early_look`; told when it differs from the last.
    """

    target: TargetAssignment
    to_come: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsChanged:
    """Who serves which partitions to interactive queries."""

    endpoints: EndpointMap


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingIgnored:
    """The coordinator does not take something that was asked for; the member goes on without it. Told once."""

    setting: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceIdTaken:
    """Another member holds this member's instance id; it tries again until that one's session must be over.

    `holder` None: the group may not be described, or the holder is gone already.
    """

    instance_id: str
    member_id: str
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member is out of the group. `confirmed` False: the coordinator did not answer the leave in time.

    `will_return`: a static member that left for a while; its tasks wait for it until its session ends.
    """

    confirmed: bool
    will_return: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatal:
    """The membership is over; `error` says why and what to do."""

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

_NOT_READY = frozenset(
    {
        StatusCode.STALE_TOPOLOGY,
        StatusCode.MISSING_SOURCE_TOPICS,
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        StatusCode.MISSING_INTERNAL_TOPICS,
    }
)


def is_ready(status: Status) -> bool:
    """Whether nothing keeps the coordinator from handing out tasks."""
    return all(code not in _NOT_READY for code, _ in status)


class StatusTracker:
    """Mutable: what was told last."""

    def __init__(self) -> None:
        self._problems: Status = ()
        self._shutdown_told = False

    def forget(self) -> None:
        """The member begins anew: whoever asked for the end is asked again."""
        self._shutdown_told = False
        self._problems = ()

    def take(self, status: Status) -> Iterator[e.MemberEvent]:
        """What is new in these statuses."""
        problems = tuple(entry for entry in status if entry[0] in _NOT_READY)
        if problems != self._problems:
            self._problems = problems
            yield e.NotReady(status=problems) if problems else e.Ready()
        if not self._shutdown_told and any(code == StatusCode.SHUTDOWN_APPLICATION for code, _ in status):
            self._shutdown_told = True
            yield e.ShutdownRequested()
