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

from headrace.assignors.assignor import NO_GENERATION, Subscription
from headrace.assignors.consumer_protocol import MalformedUserData, decode_assignment, encode_subscription
from headrace.client.membership.assignment import OwnedTasks, task_ids, tasks_of
from headrace.client.membership.classic_streams_transitions import ClassicStreamsTransitions, RebalancePhase
from headrace.client.membership.classic_task_leader import (
    PROTOCOL_NAME,
    TaskAssignment,
    TaskReport,
)
from headrace.client.membership.group_requests import (
    classic_heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)
from headrace.client.membership.member_core import RESTING, MemberState
from headrace.client.membership.request_manager import (
    NEVER_MS,
    RETRY_BACKOFF_MS,
    PollResult,
)
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import to_ms

__all__ = ["ClassicStreamsMembership"]

JoinReply = m.join_group_response.JoinGroupResponse
SyncReply = m.sync_group_response.SyncGroupResponse
HeartbeatReply = m.heartbeat_response.HeartbeatResponse
LeaveReply = m.leave_group_response.LeaveGroupResponse
Metadata = m.metadata_response.MetadataResponse
Created = m.create_topics_response.CreateTopicsResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


class ClassicStreamsMembership(ClassicStreamsTransitions):
    """State machine of one member. Mutable.

    Call `join`, then `poll`, and after each request `on_response` or `on_failure`. One request is in flight at a time;
    a request while another one is in flight replaces it.
    """

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
        if self._phase is RebalancePhase.IDLE and now_ms >= self._probing_ms:
            self._request_rejoin("warmed-up tasks may move")
        if self._phase is RebalancePhase.IDLE and self._rejoin:
            self._begin_join(max(now_ms, self._retry_ms), self._reason)
        # 3. The session runs while the leader assigns, and between the retries of each step.
        waits = self._phase in {RebalancePhase.IDLE, RebalancePhase.ASSIGN} or self._retry_ms > now_ms
        if waits and self._identity.is_member and now_ms >= self._heartbeat_ms:
            request = classic_heartbeat_request(self._group_id, self._identity)
            return self._send("heartbeat", request, now_ms, node=self._lookup.node)
        return self._poll_idle(now_ms) if self._phase is RebalancePhase.IDLE else self._poll_rebalance(now_ms)

    def _poll_idle(self, now_ms: int) -> PollResult:
        look_ms = self._leader.look_ms
        if look_ms <= now_ms:
            return self._send("counts", self._leader.partitions_request(), now_ms, node=None)
        return self._wait(min(self._heartbeat_ms, self._probing_ms, look_ms))

    def _poll_rebalance(self, now_ms: int) -> PollResult:
        if self._retry_ms > now_ms:
            return self._wait(min(self._retry_ms, self._heartbeat_ms if self._identity.is_member else NEVER_MS))
        match self._phase:
            case RebalancePhase.JOIN:
                return self._send("join", self._join_request(), now_ms, node=self._lookup.node)
            case RebalancePhase.ASSIGN if self._leader.creates_topics:
                return self._send("create", self._leader.create_request(), now_ms, node=self._leader.controller)
            case RebalancePhase.ASSIGN:
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
            self._phase = RebalancePhase.ASSIGN
        else:
            self._leader.follow()
            self._phase = RebalancePhase.SYNC

    def _on_partitions(self, response: Metadata, now_ms: int) -> None:
        """Assign as the leader, now that the numbers of partitions are known."""
        if self._phase is not RebalancePhase.ASSIGN:
            return
        self._retry_ms = now_ms
        assignments = self._leader.assign(response, now_ms)
        if assignments is not None:
            self._assignments = assignments
            self._phase = RebalancePhase.SYNC

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
            self._phase = RebalancePhase.IDLE
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
