"""State of a streams group member, the application's calls, and the transitions that several steps share. Pure.

`StreamsMembership` derives from it and decides which request is sent and how an answer is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.client.membership import events as e
from headrace.client.membership.assignment import OwnedTasks, TaskId, tasks_of
from headrace.client.membership.endpoints import NO_ENDPOINT_EPOCH, Endpoint, OwnEndpoint
from headrace.client.membership.member_core import ACKNOWLEDGING, MemberCore, MemberState
from headrace.client.membership.request_manager import HeartbeatSchedule
from headrace.client.membership.static_member import StaticMember
from headrace.client.membership.streams_heartbeat import (
    HeartbeatVersion,
    MemberIdentity,
    OwnedReport,
    TaskOffsetReport,
)
from headrace.client.membership.target_assignment_poller import TargetAssignment, TargetAssignmentPoller
from headrace.client.membership.topology import Topology

__all__ = ["StreamsTransitions"]


class StreamsTransitions(MemberCore):
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
        super().__init__(group_id, member_id, chance=chance, session_timeout_ms=session_timeout_ms)
        self._identity = MemberIdentity(
            group_id=group_id,
            member_id=member_id,
            process_id=process_id,
            topology=topology,
            rebalance_timeout_ms=rebalance_timeout_ms,
            rack_id=rack_id,
        )
        self._endpoint = OwnEndpoint(endpoint)
        self._schedule = HeartbeatSchedule(max_interval_ms=heartbeat_max_interval_ms, chance=chance)
        self._version = HeartbeatVersion()
        self._static = StaticMember(
            instance_id, group_id=group_id, member_id=member_id, session_timeout_ms=session_timeout_ms
        )
        self._target_poller = TargetAssignmentPoller(enabled=early_look)
        self._owned = OwnedReport()
        self._offsets = TaskOffsetReport()
        self._target: TargetAssignment | None = None
        self._endpoint_epoch = NO_ENDPOINT_EPOCH
        self._discard_answer = False  # the answer belongs to a membership that was given up meanwhile
        self._keeps_member_id = keeps_member_id

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
        """See `MemberCore.acknowledge`. The coordinator is notified at once."""
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
        """See `MemberCore.report_offsets`.

        Heartbeats carry them, once per interval of the coordinator, or with the next one (`at_once`), if it supports
        version 1.
        """
        self._offsets.update(offsets, end_offsets or {}, at_once=at_once)

    def request_shutdown(self, now_ms: int) -> None:
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""
        self._shutdown_wanted = True
        if self._state in ACKNOWLEDGING:
            self._schedule.heartbeat_now(now_ms)

    # Transitions.

    def _begin_leave(self, now_ms: int) -> None:
        # The leave waits for the answer to the request in flight. A member that keeps its id on a coordinator without
        # static members sends nothing: that is what lets the next process find its tasks (`keeps_member_id`).
        if self._leaves_silently:
            self._finish_leave(confirmed=False)
            return
        self._schedule.heartbeat_now(now_ms)

    @property
    def _member_id(self) -> str:
        return self._identity.member_id

    @property
    def _keeps_tasks(self) -> bool:
        return self._will_return or self._leaves_silently

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

    def _forget_membership(self) -> None:
        super()._forget_membership()
        # The next heartbeat is a join with empty lists.
        self._target = None
        self._target_poller.end()
        self._owned.clear()
        self._offsets.resend()
        self._endpoint.on_rejoin()

    def _finish_leave(self, *, confirmed: bool) -> None:
        super()._finish_leave(confirmed=confirmed)
        self._discard_answer = self._in_flight is not None
        self._static.mark_released()
