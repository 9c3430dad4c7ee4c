"""State of a member of a classic group with tasks, the application's calls, and transitions of several steps. Pure.

`ClassicStreamsMembership` derives from it and decides which request is sent and how an answer is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from headrace.assignors.assignor import NO_GENERATION
from headrace.client.membership import events as e
from headrace.client.membership.assignment import TaskId, task_ids, tasks_from
from headrace.client.membership.classic_task_leader import (
    REQUEST_TIMEOUT_MS,
    ClassicTaskLeader,
    TaskProtocol,
    TaskTopics,
)
from headrace.client.membership.group_events import GroupIdentity, TopicPartition
from headrace.client.membership.group_member import COORDINATOR_GONE, group_error
from headrace.client.membership.member_core import RESTING, MemberCore, MemberState
from headrace.client.membership.request_manager import (
    NEVER_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from headrace.client.membership.task_ownership import TaskOwnership
from headrace.client.membership.topology import Topology
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.error_codes import ErrorCode, kafka_name

__all__ = ["ClassicStreamsTransitions", "RebalancePhase"]

# The coordinator answers a join when all members joined, at the latest after the rebalance timeout, and needs a moment.
JOIN_MARGIN_MS = 5_000


class RebalancePhase(Enum):
    """Step of the rebalance."""

    IDLE = "idle"  # heartbeats only
    JOIN = "join"  # JoinGroup is due or in flight
    ASSIGN = "assign"  # the leader looks up partitions and creates internal topics
    SYNC = "sync"  # SyncGroup is due or in flight


class ClassicStreamsTransitions(MemberCore):
    """Soft state of a member of a classic group with tasks. Mutable."""

    def __init__(
        self,
        group_id: str,
        protocol: TaskProtocol,
        topology: Topology,
        *,
        chance: Callable[[], float],
        rebalance_timeout_ms: int = 300_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        metadata_max_age_ms: int = 300_000,
        probing_rebalance_interval_ms: int = 60_000,
        rack_id: str | None = None,
        instance_id: str | None = None,
        member_id: str = "",
    ) -> None:
        """Args:
        group_id: The classic group.
        protocol: Codec and the leader's rules.
        topology: The application's topology; all members have the same one.
        chance: Returns random numbers in [0, 1) for jitter.
        rebalance_timeout_ms: How long the coordinator waits for members to join again.
        session_timeout_ms: `session.timeout.ms`, after which the coordinator removes a silent member.
        heartbeat_interval_ms: `heartbeat.interval.ms`.
        metadata_max_age_ms: How often the leader compares the numbers of partitions.
        probing_rebalance_interval_ms: Time until the rebalance that an assignment announces (`follow_up`).
        rack_id: The member's rack.
        instance_id: `group.instance.id` of a static member (KIP-345).
        member_id: Id of a member that this one continues: it joins under it, and claims nothing. Empty: the
            coordinator gives out an id.
        """
        super().__init__(group_id, member_id, chance=chance, session_timeout_ms=session_timeout_ms)
        self._protocol = protocol
        self._topics = TaskTopics(topology)
        self._leader = ClassicTaskLeader(group_id, protocol, self._topics, metadata_max_age_ms=metadata_max_age_ms)
        self._chance = chance
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._probing_interval_ms = probing_rebalance_interval_ms
        self._rack_id = rack_id
        self._ownership = TaskOwnership()
        self._phase = RebalancePhase.IDLE
        self._identity = GroupIdentity(member_id=member_id, instance_id=instance_id)
        self._assigned_partitions: frozenset[TopicPartition] = frozenset()
        self._claimed: frozenset[TaskId] = frozenset()
        self._offsets: Mapping[TaskId, int] = {}
        self._end_offsets: Mapping[TaskId, int] = {}
        self._rejoin = False
        self._reason = ""
        self._assignments: Mapping[str, bytes] = {}  # of all members, if this one is the leader
        # Times.
        self._retry_ms = 0
        self._backoff_ms = RETRY_BACKOFF_MS
        self._heartbeat_ms = 0
        self._probing_ms = NEVER_MS

    @property
    def ownership(self) -> TaskOwnership:
        """The held tasks; read the generation of a commit from it."""
        return self._ownership

    # Calls of the application.

    def join(self, now_ms: int) -> None:
        """Start joining: the next poll looks up the coordinator."""
        self._in_flight = None
        self._enter(MemberState.JOINING)
        self._begin_join(now_ms, "the application started")

    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        now_ms: int,  # noqa: ARG002
        *,
        standby: Mapping[str, Sequence[int]] | None = None,  # noqa: ARG002
        warmup: Mapping[str, Sequence[int]] | None = None,  # noqa: ARG002
        version: int | None = None,
    ) -> None:
        """See `MemberCore.acknowledge`. Copies are exclusive to no member, so they need no acknowledgement."""
        if not self._assigned_once:
            return
        # 1. Acknowledgements cross new assignments. One of an older assignment gives nothing back: the application may
        #    be about to open tasks of a snapshot in between. Assigned tasks stay held while they are not open yet.
        if version is not None and version < self._assignment.version:
            return
        active = task_ids(self._assignment.active)
        self._ownership.keep_only(tasks_from(active | task_ids(owned)))
        if task_ids(owned) <= active:
            self._enter(MemberState.STABLE)
        # 2. The last join claimed tasks that are given back now: the others get them with the next generation.
        if self._claimed - self._ownership.held_since.keys():
            self._request_rejoin("revoked tasks were given back")

    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """See `MemberCore.report_offsets`. Joins carry them; `at_once`: the member joins again."""
        self._offsets = dict(offsets)
        self._end_offsets = dict(end_offsets or {})
        if at_once:
            self._request_rejoin("a copy has caught up")

    def request_shutdown(self, now_ms: int) -> None:  # noqa: ARG002
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""
        self._shutdown_wanted = True
        self._request_rejoin("the application is to stop")

    def stop(self, error: HeadraceError) -> None:
        """End the membership with an error; also called by the runner."""
        self._in_flight = None
        super().stop(error)

    # Times of requests and of the lease.

    def _deadline_ms(self) -> int:
        # A join is answered when every member has joined, a sync when the leader has synced.
        if self._in_flight in {"join", "sync"}:
            return self._sent_ms + self._rebalance_timeout_ms + JOIN_MARGIN_MS
        if self._in_flight == "heartbeat":
            return self._sent_ms + min(self._session_timeout_ms, REQUEST_TIMEOUT_MS)
        return self._sent_ms + REQUEST_TIMEOUT_MS

    def _lease_end_ms(self) -> int:
        # The session of a member whose join or sync waits does not run (`ClassicGroupMember.hasSatisfiedHeartbeat`).
        if self._in_flight in {"join", "sync"} and self._last_answered_ms is not None:
            return self._deadline_ms() + self._session_timeout_ms
        return super()._lease_end_ms()

    # Transitions.

    def _request_rejoin(self, reason: str) -> None:
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        self._rejoin = True
        self._reason = reason

    def _begin_join(self, at_ms: int, reason: str) -> None:
        self._phase = RebalancePhase.JOIN
        self._reason = reason
        self._rejoin = False
        self._probing_ms = NEVER_MS
        self._retry_ms = at_ms

    # Losses.

    def _on_fenced(self, code: ErrorCode, now_ms: int) -> None:
        if self._assigned_once:
            self._events.append(e.Fenced(kafka_name=kafka_name(code), message=""))
        # After ILLEGAL_GENERATION the coordinator still knows the member; an unknown id must be requested anew.
        forget_id = code == ErrorCode.unknown_member_id
        self._lose_and_join("fenced", now_ms, member_id="" if forget_id else None)

    def _lose_and_join(self, reason: e.LostReason, now_ms: int, *, member_id: str | None = None) -> None:
        self._lose(reason)
        self._identify(NO_GENERATION, self._identity.member_id if member_id is None else member_id)
        if self._state is not MemberState.FENCED:
            self._enter(MemberState.FENCED)
        self._enter(MemberState.JOINING)
        self._begin_join(now_ms, f"the tasks were lost: {reason}")

    def _forget_membership(self) -> None:
        super()._forget_membership()
        self._ownership.lose_all()
        self._claimed = frozenset()
        self._assigned_partitions = frozenset()
        self._leader.follow()
        self._probing_ms = NEVER_MS
        self._rejoin = False
        self._phase = RebalancePhase.IDLE

    def _identify(self, generation: int, member_id: str) -> None:
        self._identity = GroupIdentity(
            member_id=member_id, generation=generation, instance_id=self._identity.instance_id
        )

    def _on_retriable(self, code: ErrorCode, now_ms: int, throttle_ms: int) -> None:
        self._back_off(now_ms, throttle_ms)
        if code in COORDINATOR_GONE:
            self._lookup.forget()

    def _back_off(self, now_ms: int, throttle_ms: int = 0) -> None:
        pause_ms = max(1, round(self._backoff_ms * (1.0 - 0.2 * self._chance())), throttle_ms)
        self._retry_ms = now_ms + pause_ms
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _fail(self, code: ErrorCode, message: str = "") -> None:
        if code == ErrorCode.fenced_instance_id and self._assigned_once:
            self._events.append(e.Fenced(kafka_name=kafka_name(code), message=message))
        self._end(self._refusal(code, message))

    def _refusal(self, code: ErrorCode, message: str) -> HeadraceError:
        """Return the error for a final code; those of consumers would name their settings."""
        facts = {"kafka_code": int(code), "kafka_name": kafka_name(code), "kafka_message": message, "retriable": False}
        match code:
            case ErrorCode.inconsistent_group_protocol:
                return BrokerError(
                    "group-kind",
                    f"The group {self._group_id} has members of another kind: consumers, or members of a streams group",
                    "Use another name for the application, or stop these members first.",
                    **facts,
                    api="JoinGroup",
                    group_id=self._group_id,
                )
            case ErrorCode.invalid_session_timeout:
                return BrokerError(
                    "heartbeat-refused",
                    f"The coordinator of {self._group_id} refused session.timeout.ms={self._session_timeout_ms} "
                    "(INVALID_SESSION_TIMEOUT)",
                    "Set session.timeout.ms between group.min.session.timeout.ms and group.max.session.timeout.ms of "
                    "the brokers, by default 6,000 to 1,800,000.",
                    **facts,
                    api="JoinGroup",
                    group_id=self._group_id,
                )
        instance_id = self._identity.instance_id
        return group_error(code, message, group_id=self._group_id, api="JoinGroup", instance_id=instance_id)

    # Leaving.

    @property
    def _member_id(self) -> str:
        return self._identity.member_id

    @property
    def _keeps_tasks(self) -> bool:
        # A static member that returns sends nothing: its tasks wait until its session ends.
        return self._leaving_for_a_while and self._identity.instance_id is not None

    def _begin_leave(self, now_ms: int) -> None:
        # A leave replaces the request in flight: a join may wait for all other members.
        self._in_flight = None
        self._retry_ms = now_ms

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._in_flight = None
        super()._finish_leave(confirmed=confirmed)
        self._identify(NO_GENERATION, "")
