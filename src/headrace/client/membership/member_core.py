"""Common part of members that run tasks: states, snapshots and their events, the lease, losses, leaving. Pure.

`StreamsMembership` (streams groups, KIP-1071) and `ClassicStreamsMembership` (classic groups whose leader assigns
tasks) derive from it and have the same calls and events. The states have the names of Kafka's Java client
(`MemberState`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Literal

from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, OwnedTasks, TaskId, difference
from headrace.client.membership.endpoints import EndpointMap
from headrace.client.membership.events import Status, StatusTracker
from headrace.client.membership.request_manager import NEVER_MS, CoordinatorLookup, Outgoing, PollResult
from headrace.errors import HeadraceError
from headrace.protocol.framing import RequestMessage

__all__ = ["ACKNOWLEDGING", "LEAVE_TIMEOUT_MS", "RESTING", "VALID_PREVIOUS", "InFlight", "MemberCore", "MemberState"]


class MemberState(Enum):
    """State of a member; the comment at each value describes it."""

    UNSUBSCRIBED = "unsubscribed"  # not in the group: not joined yet, or left
    JOINING = "joining"  # the join is due or in flight
    RECONCILING = "reconciling"  # the application received an assignment that it has not acknowledged
    ACKNOWLEDGING = "acknowledging"  # it has; the heartbeat for the coordinator is due or in flight (streams groups)
    STABLE = "stable"  # no acknowledgement is outstanding on either side
    FENCED = "fenced"  # all tasks are lost; the next poll joins again
    LEAVING = "leaving"  # the leave is due or in flight
    FATAL = "fatal"  # the coordinator refused the member for good


_ACTIVE = frozenset({MemberState.JOINING, MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE})

VALID_PREVIOUS = MappingProxyType(
    {
        MemberState.UNSUBSCRIBED: frozenset({MemberState.LEAVING}),
        MemberState.JOINING: frozenset({MemberState.UNSUBSCRIBED, MemberState.FENCED}),
        MemberState.RECONCILING: _ACTIVE,
        MemberState.ACKNOWLEDGING: frozenset({MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE}),
        MemberState.STABLE: _ACTIVE,
        MemberState.FENCED: _ACTIVE,
        MemberState.LEAVING: _ACTIVE | {MemberState.UNSUBSCRIBED, MemberState.FENCED},
        MemberState.FATAL: _ACTIVE | {MemberState.FENCED, MemberState.LEAVING},
    }
)


RESTING = frozenset({MemberState.UNSUBSCRIBED, MemberState.FATAL})
# A leave is a courtesy: without it the session timeout ends the membership. So a stopping application waits at most 5 s
# for a coordinator that does not answer.
LEAVE_TIMEOUT_MS = 5_000
ACKNOWLEDGING = frozenset({MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE})

InFlight = Literal[
    "lookup",
    "join",
    "leave",
    # Streams groups.
    "versions",
    "steady",
    "release",
    "look",
    "holder",
    # Classic groups.
    "sync",
    "heartbeat",
    "partitions",
    "create",
    "counts",
]
"""Purpose of the request in flight."""


class MemberCore(ABC):
    """Soft state of a member that runs tasks. Mutable.

    Call `join`, then `poll`, and after each request `on_response` or `on_failure`. One request is in flight at a time.
    """

    def __init__(self, group_id: str, member_id: str, *, chance: Callable[[], float], session_timeout_ms: int) -> None:
        """Args:
        group_id: The group.
        member_id: The member's id; empty if the coordinator gives it out.
        chance: Returns random numbers in [0, 1) for jitter.
        session_timeout_ms: Time without an answer after which the member gives up its tasks by itself.
        """
        self._group_id = group_id
        self._session_timeout_ms = session_timeout_ms
        self._lookup = CoordinatorLookup(group_id, chance=chance)
        self._statuses = StatusTracker()
        self._events: list[e.MemberEvent] = []
        self._state = MemberState.UNSUBSCRIBED
        self._assignment = AssignmentSnapshot(member_id=member_id)
        self._assigned_once = False  # whether the application has an assignment of this membership, which it can lose
        self._endpoints: EndpointMap = MappingProxyType({})
        self._shutdown_wanted = False
        self._in_flight: InFlight | None = None
        self._sent_ms = 0
        self._last_answered_ms: int | None = None
        self._leave_deadline_ms = NEVER_MS
        self._leaving_for_a_while = False

    @property
    def state(self) -> MemberState:
        """The state of the member."""
        return self._state

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot."""
        return self._assignment

    @property
    def endpoints(self) -> EndpointMap:
        """The endpoints for interactive queries, as last received."""
        return self._endpoints

    @property
    def coordinator(self) -> int | None:
        """The coordinator's node id, None while it is unknown."""
        return self._lookup.node

    @property
    def last_answered_ms(self) -> int | None:
        """Time from which the session counts: that at which the last answered heartbeat was sent."""
        return self._last_answered_ms

    def take_events(self) -> tuple[e.MemberEvent, ...]:
        """Return the events since the last call, in order."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    # Calls of the application.

    @abstractmethod
    def join(self, now_ms: int) -> None:
        """Start joining: the next poll looks up the coordinator."""

    @abstractmethod
    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        now_ms: int,
        *,
        standby: Mapping[str, Sequence[int]] | None = None,
        warmup: Mapping[str, Sequence[int]] | None = None,
        version: int | None = None,
    ) -> None:
        """Acknowledge an assignment: the application works on exactly these active tasks now.

        Acknowledgements cross new assignments, so each names the version that the application acted on.

        Args:
            owned: The active tasks.
            now_ms: The time now.
            standby: The standby tasks; None: as assigned.
            warmup: The warm-up tasks; None: as assigned.
            version: Version of the snapshot that the application acted on; None: the newest. Tasks of later snapshots
                still count as possibly opened.
        """

    @abstractmethod
    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Set cumulative changelog offsets of stores and the ends of their changelogs, replacing the last call.

        `at_once`: the group learns of them at once, because another instance waits for a copy.
        """

    @abstractmethod
    def request_shutdown(self, now_ms: int) -> None:
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""

    def leave(self, now_ms: int, *, for_a_while: bool = False) -> None:
        """Leave; the tasks are given up at once.

        Args:
            now_ms: The time now.
            for_a_while: A static member's tasks wait for its return until its session ends.
        """
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        # The tasks are lost before anything is sent: once the leave is in the coordinator, another member may own them.
        self._lose("left")
        self._enter(MemberState.LEAVING)
        self._leaving_for_a_while = for_a_while
        self._leave_deadline_ms = now_ms + LEAVE_TIMEOUT_MS
        self._begin_leave(now_ms)

    def stop(self, error: HeadraceError) -> None:
        """End the membership with an error; also called by the runner, for instance for a broker without the API."""
        self._lose("fatal")
        self._enter(MemberState.FATAL)
        self._leave_deadline_ms = NEVER_MS
        self._events.append(e.Fatal(error=error))

    # Calls of the runner.

    @abstractmethod
    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""

    @abstractmethod
    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""

    @abstractmethod
    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""

    # For the two kinds.

    @property
    @abstractmethod
    def _member_id(self) -> str:
        """The id under which the member is, or was last, in the group."""

    @property
    @abstractmethod
    def _keeps_tasks(self) -> bool:
        """Whether the tasks wait for the return of this member, which leaves or has left."""

    @abstractmethod
    def _begin_leave(self, now_ms: int) -> None:
        """Make the leave due, or finish it where nothing is to be sent."""

    def _end(self, error: HeadraceError) -> None:
        """Stop for an error of the coordinator; a leave has reached its goal."""
        # Whatever the error is, the group goes on without this member, which is what a leave asks for.
        if self._state is MemberState.LEAVING:
            self._finish_leave(confirmed=False)
        else:
            self.stop(error)

    def _send(self, kind: InFlight, request: RequestMessage, now_ms: int, *, node: int | None) -> PollResult:
        self._in_flight = kind
        self._sent_ms = now_ms
        return PollResult(
            requests=(Outgoing(request=request, node=node),), next_poll_ms=self._next_poll_ms(self._deadline_ms())
        )

    def _wait(self, until_ms: int = NEVER_MS) -> PollResult:
        return PollResult(requests=(), next_poll_ms=self._next_poll_ms(until_ms))

    def _next_poll_ms(self, until_ms: int) -> int:
        return min(until_ms, self._lease_end_ms(), self._leave_deadline_ms)

    def _deadline_ms(self) -> int:
        """Return until when the request in flight may take; `NEVER_MS` leaves it to the runner."""
        return NEVER_MS

    def _lease_end_ms(self) -> int:
        if self._last_answered_ms is None or self._state in {MemberState.LEAVING, *RESTING}:
            return NEVER_MS
        # Counted from when the answered heartbeat was *sent*: the coordinator restarted its timer at some point between
        # then and the answer. The time of the answer would end the lease here after it ended there.
        return self._last_answered_ms + self._session_timeout_ms

    def _replace_assignment(
        self, tasks: OwnedTasks, *, member_epoch: int, status: Status, held_since: Mapping[TaskId, int] | None = None
    ) -> AssignmentSnapshot:
        """Make the next snapshot of this membership; return the former one. The version rises when the tasks change."""
        before = self._assignment
        self._assignment = AssignmentSnapshot(
            member_id=self._member_id,
            member_epoch=member_epoch,
            active=tasks.active,
            standby=tasks.standby,
            warmup=tasks.warmup,
            status=status,
            version=before.version + 1 if tasks != before.tasks else before.version,
            held_since=held_since,
        )
        return before

    def _emit_assignment(self, before: AssignmentSnapshot) -> None:
        """Emit the differences between two snapshots of one membership."""
        now = self._assignment
        if not self._assigned_once:
            self._assigned_once = True
            self._events.append(e.Assigned(assignment=now))
        elif now.tasks != before.tasks or now.member_epoch != before.member_epoch:
            self._events.append(
                e.AssignmentChanged(
                    assignment=now,
                    added=difference(now.active, before.active),
                    revoked=difference(before.active, now.active),
                    standby_added=difference(now.standby, before.standby),
                    standby_removed=difference(before.standby, now.standby),
                    warmup_added=difference(now.warmup, before.warmup),
                    warmup_removed=difference(before.warmup, now.warmup),
                )
            )
        self._events.extend(self._statuses.take(now.status))

    def _replace_endpoints(self, endpoints: EndpointMap) -> None:
        if endpoints != self._endpoints:
            self._endpoints = endpoints
            self._events.append(e.EndpointsChanged(endpoints=endpoints))

    def _lose(self, reason: e.LostReason) -> None:
        was_assigned, self._assigned_once = self._assigned_once, False
        self._statuses.forget()
        self._forget_membership()
        # An application that never received an assignment need not be notified of its loss.
        if was_assigned:
            self._events.append(e.Lost(reason=reason))

    def _forget_membership(self) -> None:
        """Reset all that described the old membership."""
        self._last_answered_ms = None
        self._assignment = AssignmentSnapshot(member_id=self._member_id, version=self._assignment.version + 1)

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._enter(MemberState.UNSUBSCRIBED)
        self._leave_deadline_ms = NEVER_MS
        self._events.append(e.Left(confirmed=confirmed, will_return=self._keeps_tasks))

    def _enter(self, state: MemberState) -> None:
        # An error in the state machine must not go on silently: the member would process tasks that it does not own.
        if self._state not in VALID_PREVIOUS[state]:
            raise AssertionError(f"{self._state} does not lead to {state}")
        self._state = state
