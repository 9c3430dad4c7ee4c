"""Member of a classic group whose leader assigns tasks, for clusters without streams groups. Pure, as
`StreamsMembership`, with the same calls and events.

Rules:

- A join claims every active task that the application may have open. The leader assigns a claimed task to no other
  member; one that is to move is left out of the assignment first (KIP-429's two phases, on tasks). When the application
  has given it back, the member joins again without the claim.
- A rebalance pauses no task and waits for no application: the member joins at once, and heartbeats follow the sync.
- `member_epoch` of the snapshot is the generation. It rises with the answer to a join: the coordinator refuses commits
  with the former one from then on (`TaskOwnership`).
- `UNKNOWN_MEMBER_ID` and `ILLEGAL_GENERATION` lose all tasks and join again; `FENCED_INSTANCE_ID` ends the membership.
- The leader looks up the partitions of all topics of the topology, creates missing internal topics, and begins a
  rebalance when the numbers of partitions change. `TaskProtocol` encodes, decodes and assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from headrace.assignors.assignor import NO_GENERATION, Subscription
from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, encode_subscription
from headrace.client.membership import events as e
from headrace.client.membership.assignment import OwnedTasks, TaskId, task_ids, tasks_from, tasks_of
from headrace.client.membership.classic_task_leader import (
    PROTOCOL_NAME,
    REQUEST_TIMEOUT_MS,
    ClassicTaskLeader,
    TaskAssignment,
    TaskProtocol,
    TaskReport,
    TaskTopics,
)
from headrace.client.membership.group_events import GroupIdentity, TopicPartition
from headrace.client.membership.group_member import COORDINATOR_GONE, group_error
from headrace.client.membership.group_requests import (
    classic_heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)
from headrace.client.membership.member_core import RESTING, MemberCore, MemberState
from headrace.client.membership.request_manager import (
    NEVER_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    PollResult,
)
from headrace.client.membership.task_ownership import TaskOwnership
from headrace.client.membership.topology import Topology
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import to_ms

__all__ = ["ClassicStreamsMembership"]

# The coordinator answers a join when all members joined, at the latest after the rebalance timeout, and needs a moment.
JOIN_MARGIN_MS = 5_000

JoinReply = m.join_group_response.JoinGroupResponse
SyncReply = m.sync_group_response.SyncGroupResponse
HeartbeatReply = m.heartbeat_response.HeartbeatResponse
LeaveReply = m.leave_group_response.LeaveGroupResponse
Metadata = m.metadata_response.MetadataResponse
Created = m.create_topics_response.CreateTopicsResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


class _Phase(Enum):
    """Step of the rebalance."""

    IDLE = "idle"  # heartbeats only
    JOIN = "join"  # JoinGroup is due or in flight
    ASSIGN = "assign"  # the leader looks up partitions and creates internal topics
    SYNC = "sync"  # SyncGroup is due or in flight


class ClassicStreamsMembership(MemberCore):
    """State machine of one member. Mutable.

    Call `join`, then `poll`, and after each request `on_response` or `on_failure`. One request is in flight at a time;
    a request while another one is in flight replaces it.
    """

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
        self._phase = _Phase.IDLE
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

    # Calls of the runner.

    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""
        if self._state in RESTING:
            return self._wait()
        if self._state is MemberState.LEAVING:
            return self._poll_leaving(now_ms)
        # 1. The end of the lease comes first. Commits of a removed member are refused anyway; the lease stops work that
        #    cannot be committed any more.
        if now_ms >= self._lease_end_ms():
            self._in_flight = None
            self._lose_and_join("session-expired", now_ms)
        if self._in_flight is not None:
            return self._wait(self._deadline_ms())
        if self._lookup.node is None:
            return self._look_up(now_ms)
        # 2. A probing rebalance, and everything else that asks for a join, waits for the end of the present rebalance.
        if self._phase is _Phase.IDLE and now_ms >= self._probing_ms:
            self._request_rejoin("warmed-up tasks may move")
        if self._phase is _Phase.IDLE and self._rejoin:
            self._begin_join(max(now_ms, self._retry_ms), self._reason)
        # 3. The session runs while the leader assigns, and between the retries of each step.
        waits = self._phase in {_Phase.IDLE, _Phase.ASSIGN} or self._retry_ms > now_ms
        if waits and self._identity.is_member and now_ms >= self._heartbeat_ms:
            request = classic_heartbeat_request(self._group_id, self._identity)
            return self._send("heartbeat", request, now_ms, node=self._lookup.node)
        return self._poll_idle(now_ms) if self._phase is _Phase.IDLE else self._poll_rebalance(now_ms)

    def _poll_idle(self, now_ms: int) -> PollResult:
        look_ms = self._leader.look_ms
        if look_ms <= now_ms:
            return self._send("counts", self._leader.partitions_request(), now_ms, node=None)
        return self._wait(min(self._heartbeat_ms, self._probing_ms, look_ms))

    def _poll_rebalance(self, now_ms: int) -> PollResult:
        if self._retry_ms > now_ms:
            return self._wait(min(self._retry_ms, self._heartbeat_ms if self._identity.is_member else NEVER_MS))
        match self._phase:
            case _Phase.JOIN:
                return self._send("join", self._join_request(), now_ms, node=self._lookup.node)
            case _Phase.ASSIGN if self._leader.creates_topics:
                return self._send("create", self._leader.create_request(), now_ms, node=self._leader.controller)
            case _Phase.ASSIGN:
                return self._send("partitions", self._leader.partitions_request(), now_ms, node=None)
            case _:
                request = sync_group_request(self._group_id, self._identity, PROTOCOL_NAME, self._assignments)
                return self._send("sync", request, now_ms, node=self._lookup.node)

    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return  # the membership that sent the request has ended
        match response:
            case FindCoordinator() if kind == "lookup":
                code, message = self._lookup.on_response(response, now_ms)
                if code != ErrorCode.none:
                    self._fail(code, message)
            case JoinReply() if kind == "join":
                self._on_join(response, now_ms)
            case Metadata() if kind == "partitions":
                self._on_partitions(response, now_ms)
            case Metadata() if kind == "counts":
                if self._leader.on_look(response, now_ms):
                    self._request_rejoin("the topics' partitions changed")
            case Created() if kind == "create":
                self._on_created(response, now_ms)
            case SyncReply() if kind == "sync":
                self._on_sync(response, now_ms)
            case HeartbeatReply() if kind == "heartbeat":
                self._on_heartbeat(response, now_ms)
            case LeaveReply() if kind == "leave":
                self._finish_leave(confirmed=True)
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        match kind:
            case None:
                return
            case "lookup":
                self._lookup.on_failure(now_ms)
                return
            case "counts":
                self._leader.on_look_failure(now_ms)
                return
            case "partitions" | "create":
                self._back_off(now_ms)
                return
            case "heartbeat":
                self._back_off(now_ms)
                self._heartbeat_ms = self._retry_ms
            case "sync":
                # The assignment may have been in the lost answer, and only a new join brings one.
                self._begin_join(now_ms, "the sync was not answered")
                self._back_off(now_ms)
            case _:
                self._back_off(now_ms)
        # A join that was not answered may have completed at any time since it was sent, and the session with it.
        if kind in {"join", "sync"} and self._last_answered_ms is not None:
            self._last_answered_ms = max(self._last_answered_ms, self._sent_ms)
        self._lookup.forget()

    # Requests.

    def _look_up(self, now_ms: int) -> PollResult:
        if self._lookup.due_ms > now_ms:
            return self._wait(self._lookup.due_ms)
        return self._send("lookup", self._lookup.request(), now_ms, node=None)

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

    def _poll_leaving(self, now_ms: int) -> PollResult:
        if not self._identity.member_id or self._keeps_tasks or now_ms >= self._leave_deadline_ms:
            self._finish_leave(confirmed=False)
            return self._wait()
        if self._in_flight is not None:
            return self._wait()
        if self._lookup.node is None:
            return self._look_up(now_ms)
        if self._retry_ms > now_ms:
            return self._wait(self._retry_ms)
        request = leave_group_request(self._group_id, self._identity, "the application was stopped")
        return self._send("leave", request, now_ms, node=self._lookup.node)

    def _join_request(self) -> RequestMessage:
        held = self._ownership.held_since
        self._claimed = frozenset(held)
        self._rejoin = False
        report = TaskReport(
            owned=OwnedTasks(
                active=self._ownership.tasks, standby=self._assignment.standby, warmup=self._assignment.warmup
            ),
            task_offsets=self._offsets,
            task_end_offsets=self._end_offsets,
            shutdown_application=self._shutdown_wanted,
        )
        subscription = Subscription(
            topics=self._topics.sources,
            user_data=self._protocol.encode_report(report),
            owned_partitions=tuple(self._topics.partitions_of(held.keys(), self._assigned_partitions)),
            generation_id=self._identity.generation,
            rack_id=self._rack_id,
        )
        return join_group_request(
            self._group_id,
            self._identity,
            ((PROTOCOL_NAME, encode_subscription(subscription)),),
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            reason=self._reason,
        )

    # The steps of a rebalance.

    def _request_rejoin(self, reason: str) -> None:
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        self._rejoin = True
        self._reason = reason

    def _begin_join(self, at_ms: int, reason: str) -> None:
        self._phase = _Phase.JOIN
        self._reason = reason
        self._rejoin = False
        self._probing_ms = NEVER_MS
        self._retry_ms = at_ms

    def _on_join(self, reply: JoinReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._take_generation(reply, now_ms)
        # The coordinator gives out an id and requires it in a second join, so that a client that repeats a first join
        # leaves no members behind (KIP-394).
        elif code == ErrorCode.member_id_required:
            self._identify(NO_GENERATION, reply.member_id)
            self._retry_ms = now_ms
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
            self._back_off(now_ms)
        elif code == ErrorCode.rebalance_in_progress or is_retriable(code):
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
        else:
            self._fail(code)

    def _take_generation(self, reply: JoinReply, now_ms: int) -> None:
        self._backoff_ms = RETRY_BACKOFF_MS
        generation, former = int(reply.generation_id), self._ownership.generation
        self._identify(generation, reply.member_id)
        if (reply.protocol_name or "") != PROTOCOL_NAME:
            self._fail(ErrorCode.inconsistent_group_protocol)
            return
        # 1. The session begins anew when the join is answered: it may have waited for longer than the session.
        self._last_answered_ms = now_ms
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        self._retry_ms = now_ms
        self._shutdown_wanted = False
        # 2. A static member is not removed when it misses a generation (KIP-345), and what it was assigned after its
        #    last join was not claimed in that one: another member may have had it. A dynamic member can skip a
        #    generation only if the answer to a join was lost, in which it claimed everything. A lower generation means
        #    that the coordinator lost its data.
        skipped = former is not None and self._identity.instance_id is not None and generation > former + 1
        if former is not None and (generation < former or skipped):
            self._on_fenced(ErrorCode.illegal_generation, now_ms)
            return
        # 3. From now on the coordinator accepts commits with this generation only. The tasks are those of the join.
        self._ownership.on_generation(self._identity.generation)
        before = self._replace_assignment(
            self._assignment.tasks,
            member_epoch=generation,
            status=self._assignment.status,
            held_since=self._ownership.held_since,
        )
        if self._assigned_once:
            self._emit_assignment(before)
        # 4. The leader assigns first; a follower syncs at once, and stops watching the partitions.
        self._assignments = {}
        if reply.leader == reply.member_id and reply.members:
            self._leader.begin(reply)
            self._phase = _Phase.ASSIGN
        else:
            self._leader.follow()
            self._phase = _Phase.SYNC

    def _on_partitions(self, response: Metadata, now_ms: int) -> None:
        """Assign as the leader, now that the numbers of partitions are known."""
        if self._phase is not _Phase.ASSIGN:
            return
        self._retry_ms = now_ms
        assignments = self._leader.assign(response, now_ms)
        if assignments is not None:
            self._assignments = assignments
            self._phase = _Phase.SYNC

    def _on_created(self, response: Created, now_ms: int) -> None:
        error = self._leader.on_created(response)
        if error is not None:
            self.stop(error)
            return
        # Brokers learn of a new topic a moment after its creation, and a refused creation is repeated later.
        self._back_off(now_ms, to_ms(response.throttle_time))

    def _on_sync(self, reply: SyncReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._backoff_ms = RETRY_BACKOFF_MS
            self._last_answered_ms = now_ms
            self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
            self._phase = _Phase.IDLE
            self._retry_ms = now_ms
            self._take_assignment(bytes(reply.assignment), now_ms)
        elif code == ErrorCode.rebalance_in_progress:
            self._begin_join(now_ms, "the group began another rebalance")
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
        elif is_retriable(code):
            self._begin_join(now_ms, f"the sync was refused with {kafka_name(code)}")
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
        else:
            self._fail(code)

    def _take_assignment(self, data: bytes, now_ms: int) -> None:
        try:
            given = decode_assignment(data)
            # A leader that left this member out assigned nothing to it.
            assigned = TaskAssignment() if not given.user_data else self._protocol.decode_assignment(given.user_data)
        except MalformedUserData as malformed:
            self.stop(_malformed(malformed, self._group_id))
            return
        tasks = OwnedTasks(
            active=tasks_of(assigned.tasks.active),
            standby=tasks_of(assigned.tasks.standby),
            warmup=tasks_of(assigned.tasks.warmup),
        )
        self._ownership.on_assigned(task_ids(tasks.active))
        self._assigned_partitions |= frozenset(given.partitions)
        before = self._replace_assignment(
            tasks,
            member_epoch=self._assignment.member_epoch,
            status=assigned.status,
            held_since=self._ownership.held_since,
        )
        if not self._assigned_once or tasks != before.tasks:
            self._enter(MemberState.RECONCILING)
        self._emit_assignment(before)
        self._replace_endpoints(assigned.endpoints)
        self._probing_ms = now_ms + self._probing_interval_ms if assigned.follow_up else NEVER_MS

    def _on_heartbeat(self, reply: HeartbeatReply, now_ms: int) -> None:
        code = reply.error_code
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        if code == ErrorCode.none:
            self._backoff_ms = RETRY_BACKOFF_MS
            self._last_answered_ms = self._sent_ms
        # The answer keeps the session as well (`ClassicGroup`: PREPARING_REBALANCE restarts the timer). The other
        # members wait for this one, so the join follows at once, whatever the application does.
        elif code == ErrorCode.rebalance_in_progress:
            self._last_answered_ms = self._sent_ms
            self._begin_join(now_ms, "the group is rebalancing")
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
        elif is_retriable(code):
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
            self._heartbeat_ms = self._retry_ms
        else:
            self._fail(code)

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
        self._phase = _Phase.IDLE

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


_FENCED = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})


def _malformed(malformed: MalformedUserData, group_id: str) -> HeadraceError:
    return BrokerError(
        "heartbeat-refused",
        f"The leader of {group_id} sent an assignment that cannot be decoded: {malformed}",
        "Run the same version of Headrace in all members of the group.",
        kafka_code=int(ErrorCode.inconsistent_group_protocol),
        kafka_name=kafka_name(ErrorCode.inconsistent_group_protocol),
        retriable=False,
        api="SyncGroup",
        group_id=group_id,
        why=str(malformed),
    )
