"""State of a streams group member, its state machine, and the transitions that several steps share.

`StreamsMembership` derives from it and decides which request is sent and how an answer is applied. The states have the
names of Kafka's Java client (`MemberState`); diagrams in the documentation are drawn from `VALID_PREVIOUS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Literal

from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, OwnedTasks, tasks_of
from headrace.client.membership.endpoints import NO_ENDPOINT_EPOCH, Endpoint, EndpointMap, OwnEndpoint
from headrace.client.membership.events import StatusTracker
from headrace.client.membership.request_manager import NEVER_MS, CoordinatorLookup, HeartbeatSchedule
from headrace.client.membership.static_member import StaticMember
from headrace.client.membership.streams_heartbeat import (
    JOIN_EPOCH,
    HeartbeatVersion,
    MemberIdentity,
    OwnedReport,
    TaskId,
    TaskOffsetReport,
    fatal_error,
)
from headrace.client.membership.target_assignment_poller import TargetAssignment, TargetAssignmentPoller
from headrace.client.membership.topology import Topology
from headrace.errors import HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["ACKNOWLEDGING", "RESTING", "VALID_PREVIOUS", "InFlight", "MemberCore", "MemberState"]


class MemberState(Enum):
    """State of a member; the comment at each value describes it."""

    UNSUBSCRIBED = "unsubscribed"  # not in the group: not joined yet, or left
    JOINING = "joining"  # a heartbeat with epoch 0 is due or in flight
    RECONCILING = "reconciling"  # the application received an assignment that it has not acknowledged
    ACKNOWLEDGING = "acknowledging"  # it has; the heartbeat for the coordinator is due or in flight
    STABLE = "stable"  # no acknowledgement is outstanding on either side
    FENCED = "fenced"  # all tasks are lost; the next poll joins again
    LEAVING = "leaving"  # the heartbeat with epoch -1 is due or in flight
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
InFlight = Literal["lookup", "versions", "join", "steady", "leave", "release", "look", "holder"]


class MemberCore:
    """Soft state of a streams group member. Mutable."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        process_id: str,
        topology: Topology,
        *,
        chance: Callable[[], float],
        rebalance_timeout_ms: int = 300_000,
        session_timeout_ms: int = 45_000,
        heartbeat_max_interval_ms: int = 500,
        rack_id: str | None = None,
        instance_id: str | None = None,
        endpoint: Endpoint | None = None,
        early_look: bool = False,
        keeps_member_id: bool = False,
    ) -> None:
        """Args:
        group_id: The streams group.
        member_id: A UUID that the member generated (KIP-1082).
        process_id: Identifies the process; members of one process share state directories.
        topology: The application's topology, sent with the join.
        chance: Returns random numbers in [0, 1) for jitter.
        rebalance_timeout_ms: How long a revoked task may take to be given back.
        session_timeout_ms: The group's session timeout, after which the member gives up its tasks by itself.
        heartbeat_max_interval_ms: Upper bound of the coordinator's heartbeat interval.
        rack_id: The member's rack.
        instance_id: `group.instance.id` of a static member.
        endpoint: The member's endpoint for interactive queries.
        early_look: Whether to poll the target assignment during rebalances.
        keeps_member_id: The next process of this instance joins with the same member id. To a coordinator without
            static members it is then the same member, while its session lasts, so a temporary leave sends nothing
            there.
        """
        self._identity = MemberIdentity(
            group_id=group_id,
            member_id=member_id,
            process_id=process_id,
            topology=topology,
            rebalance_timeout_ms=rebalance_timeout_ms,
            rack_id=rack_id,
        )
        self._endpoint = OwnEndpoint(endpoint)
        self._session_timeout_ms = session_timeout_ms
        self._schedule = HeartbeatSchedule(max_interval_ms=heartbeat_max_interval_ms, chance=chance)
        self._lookup = CoordinatorLookup(group_id, chance=chance)
        self._version = HeartbeatVersion()
        self._static = StaticMember(
            instance_id, group_id=group_id, member_id=member_id, session_timeout_ms=session_timeout_ms
        )
        self._target_poller = TargetAssignmentPoller(enabled=early_look)
        self._statuses = StatusTracker()
        self._owned = OwnedReport()
        self._offsets = TaskOffsetReport()
        self._events: list[e.MemberEvent] = []
        self._state = MemberState.UNSUBSCRIBED
        self._assignment = AssignmentSnapshot(member_id=member_id)
        self._target: TargetAssignment | None = None
        self._joined_once_told = False
        self._endpoint_epoch = NO_ENDPOINT_EPOCH
        self._endpoints: EndpointMap = MappingProxyType({})
        self._shutdown_wanted = False
        self._in_flight: InFlight | None = None
        self._discard_answer = False  # the answer belongs to a membership that was given up meanwhile
        self._sent_ms = 0
        self._last_answered_ms: int | None = None
        self._leave_deadline_ms = NEVER_MS
        self._leaving_for_a_while = False
        self._keeps_member_id = keeps_member_id

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
        """Time at which the last answered heartbeat was sent."""
        return self._last_answered_ms

    def take_events(self) -> tuple[e.MemberEvent, ...]:
        """Return the events since the last call, in order."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    # Calls of the application.

    def join(self, now_ms: int) -> None:
        """Start joining: the next poll looks up the coordinator."""
        # An answer to a request of the former membership may still come; `on_response` discards it once.
        self._discard_answer = self._in_flight is not None
        self._enter(MemberState.JOINING)
        self._schedule.heartbeat_now(now_ms)

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

        The coordinator is notified at once.

        Args:
            owned: The active tasks.
            now_ms: The time now.
            standby: The standby tasks; None: as assigned.
            warmup: The warm-up tasks; None: as assigned.
            version: Version of the snapshot that the application acted on; None: the newest. Tasks of later snapshots
                still count as possibly opened.
        """
        if self._state not in ACKNOWLEDGING:
            return
        # 1. Acknowledgements name a version because they cross new assignments: the application answers the one it has
        #    seen. An older version updates what is owned, but the member stays RECONCILING.
        assignment = self._assignment
        tasks = OwnedTasks(
            active=tasks_of(owned),
            standby=assignment.standby if standby is None else tasks_of(standby),
            warmup=assignment.warmup if warmup is None else tasks_of(warmup),
        )
        is_newest = version is None or version >= assignment.version
        self._owned.acknowledge(tasks, is_newest=is_newest)
        # 2. Tasks revoked but still open (`within` is false) keep the member RECONCILING: the coordinator gives them to
        #    others as soon as they are missing from the lists.
        if is_newest:
            self._expect_changes(now_ms)
            self._schedule.heartbeat_now(now_ms)
            self._enter(MemberState.ACKNOWLEDGING if tasks.within(assignment.tasks) else MemberState.RECONCILING)

    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Set cumulative changelog offsets of stores and the ends of their changelogs, replacing the last call.

        Heartbeats carry them, once per interval of the coordinator, if it supports version 1. `at_once`: with the next
        heartbeat, because another instance waits for a copy.
        """
        self._offsets.update(offsets, end_offsets or {}, at_once=at_once)

    def request_shutdown(self, now_ms: int) -> None:
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""
        self._shutdown_wanted = True
        if self._state in ACKNOWLEDGING:
            self._schedule.heartbeat_now(now_ms)

    def leave(self, now_ms: int, *, for_a_while: bool = False) -> None:
        """Leave when the request in flight is answered; the tasks are given up at once.

        Args:
            now_ms: The time now.
            for_a_while: A static member's tasks wait for its return until its session ends. A dynamic member leaves,
                unless it keeps its member id: then it sends nothing.
        """
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        # 1. The tasks are lost before anything is sent: once the leave is in the coordinator, another member may own
        #    them.
        self._lose("left")
        self._enter(MemberState.LEAVING)
        self._leaving_for_a_while = for_a_while
        self._leave_deadline_ms = now_ms + LEAVE_TIMEOUT_MS
        # 2. A member that keeps its id on a coordinator without static members: sending nothing is what lets the next
        #    process find its tasks (`keeps_member_id`).
        if self._leaves_silently:
            self._finish_leave(confirmed=False)
            return
        self._schedule.heartbeat_now(now_ms)

    # Transitions.

    @property
    def _will_return(self) -> bool:
        return self._leaving_for_a_while and self._static.instance_id is not None and self._version.is_newest

    @property
    def _leaves_silently(self) -> bool:
        return self._leaving_for_a_while and self._keeps_member_id and not self._version.is_newest

    def _expect_changes(self, now_ms: int) -> None:
        self._schedule.speed_up()
        self._target_poller.begin(now_ms)

    def _forget_coordinator(self) -> None:
        self._lookup.forget()
        # The next coordinator may be another broker in a rolling upgrade.
        self._version.forget()
        # Everything soft belongs to one coordinator: its address, the version it offers, the epoch of its endpoint map.
        self._endpoint_epoch = NO_ENDPOINT_EPOCH  # soft state there: another coordinator counts anew

    def _fence_after_session_timeout(self, now_ms: int) -> None:
        # The coordinator removes a member after the session timeout and assigns its tasks to others. The member gives
        # them up by itself at that time, so that two never process one task: a partitioned network shows neither side
        # the other. An answer to a request of the old membership may still arrive and must not be applied.
        if now_ms >= self._lease_end_ms():
            self._discard_answer = self._in_flight not in {None, "lookup"}
            self._rejoin("session-expired")
            self._schedule.heartbeat_now(now_ms)

    def _lease_end_ms(self) -> int:
        if self._last_answered_ms is None or self._state in {MemberState.LEAVING, *RESTING}:
            return NEVER_MS
        # Counted from when the answered heartbeat was *sent*: the coordinator restarted its timer at some point between
        # then and the answer. The time of the answer would end the lease here after it ended there.
        return self._last_answered_ms + self._session_timeout_ms

    def _rejoin(self, reason: e.LostReason) -> None:
        self._lose(reason)
        if self._state is not MemberState.FENCED:
            self._enter(MemberState.FENCED)

    def _rejoin_with_endpoint(self, now_ms: int) -> None:
        """Join again to announce the endpoint that the last join left out.

        A join reports that the member owns nothing, so an application that may have tasks open loses them first.
        """
        self._endpoint.on_rejoin_with_endpoint()
        if self._owned.is_empty:
            self._forget_membership()
            self._enter(MemberState.FENCED)
        else:
            self._rejoin("rejoined")
        self._schedule.heartbeat_now(now_ms)

    def _lose(self, reason: e.LostReason) -> None:
        joined = self._joined_once_told
        self._joined_once_told = False
        self._statuses.forget()
        self._forget_membership()
        # An application that never received an assignment need not be notified of its loss.
        if joined:
            self._events.append(e.Lost(reason=reason))

    def _forget_membership(self) -> None:
        """Reset all that described the old membership; the next heartbeat is a join with empty lists."""
        self._last_answered_ms = None
        self._target = None
        self._target_poller.end()
        self._owned.clear()
        self._offsets.resend()
        self._endpoint.on_rejoin()
        self._assignment = AssignmentSnapshot(
            member_id=self._identity.member_id, member_epoch=JOIN_EPOCH, version=self._assignment.version + 1
        )

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._enter(MemberState.UNSUBSCRIBED)
        self._leave_deadline_ms = NEVER_MS
        self._discard_answer = self._in_flight is not None
        self._static.mark_released()
        self._events.append(e.Left(confirmed=confirmed, will_return=self._will_return or self._leaves_silently))

    def _stop(self, code: ErrorCode, message: str, *, joining: bool = True) -> None:
        if self._state is MemberState.LEAVING:
            self._finish_leave(confirmed=False)
            return
        self.stop(fatal_error(code, message, group_id=self._identity.group_id, joining=joining))

    def stop(self, error: HeadraceError) -> None:
        """End the membership with an error; also called by the runner, for instance for a broker without the API."""
        self._lose("fatal")
        self._enter(MemberState.FATAL)
        self._events.append(e.Fatal(error=error))

    def _enter(self, state: MemberState) -> None:
        # An error in the state machine must not go on silently: the member would process tasks that it does not own.
        if self._state not in VALID_PREVIOUS[state]:
            raise AssertionError(f"{self._state} does not lead to {state}")
        self._state = state
