"""Member of a streams group (KIP-1071), pure: `poll(now_ms)` returns requests, `on_response` applies answers.

Rules:

- Epoch 0 joins with everything and empty lists; then one heartbeat per interval, and at once when there is something to
  acknowledge. One request is in flight at a time; the runner ends each with `on_response` or `on_failure`.
- The owned lists are sent in full when they changed and after any lost or refused request (`OwnedReport`).
- `FENCED_MEMBER_EPOCH` and `UNKNOWN_MEMBER_ID` lose all tasks and join again with the same member id. The same happens
  when no heartbeat was answered for the session timeout: the coordinator has reassigned the tasks by then. The lease is
  counted from when an answered heartbeat was sent, so `now_ms` must advance while the machine sleeps.
- Fields of heartbeat v1 (instance ids, task offsets) are sent only after the coordinator offered version 1.
- Events wait in a queue until `take_events`.
"""

from __future__ import annotations

from headrace.client.membership import events as e
from headrace.client.membership.assignment import StatusCode, difference
from headrace.client.membership.endpoints import Endpoint, endpoints_in
from headrace.client.membership.events import Status, is_ready
from headrace.client.membership.member_core import ACKNOWLEDGING, RESTING, InFlight, MemberState
from headrace.client.membership.request_manager import PollResult
from headrace.client.membership.streams_heartbeat import (
    INSTANCE_CONFLICTS,
    Extras,
    Reaction,
    fatal_error,
    join_request,
    leave_request,
    reaction_to,
    regular_request,
    tasks_in,
)
from headrace.client.membership.streams_transitions import StreamsTransitions
from headrace.client.membership.target_assignment_poller import describe_request, described_group
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import to_ms

__all__ = ["StreamsMembership"]

EXPECT_MS = 30_000  # how long fast heartbeats go on for tasks to come, if nothing changes

Heartbeat = m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse
ApiVersions = m.api_versions_response.ApiVersionsResponse
Described = m.streams_group_describe_response.StreamsGroupDescribeResponse


class StreamsMembership(StreamsTransitions):
    """State machine of one member. Mutable.

    Call `join`, then `poll`, and after each request `on_response` or `on_failure`.
    """

    # Calls of the runner.

    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""
        # 1. Deadlines come first, whatever is in flight: the end of the lease, and of the time for a leave.
        self._fence_after_session_timeout(now_ms)
        if self._state is MemberState.FENCED:
            self._enter(MemberState.JOINING)
        if self._state is MemberState.LEAVING and now_ms >= self._leave_deadline_ms:
            self._finish_leave(confirmed=False)
        if self._state in RESTING:
            return self._wait()
        # 2. One request at a time. Heartbeats carry changes since the last one, so a second in flight could overtake
        #    the first (KIP-1071 allows only one; Kafka's HeartbeatRequestState does the same).
        if self._in_flight is not None:
            return self._wait()
        # 3. Everything below needs the coordinator; what version it offers matters only for v1 fields.
        if self._lookup.node is None:
            return self._send_when_due("lookup", self._lookup.due_ms, now_ms)
        if self._version.number is None and (self._static.instance_id is not None or self._offsets):
            return self._send_when_due("versions", self._schedule.due_ms, now_ms)
        if self._state is MemberState.LEAVING:
            return self._send_when_due("leave", self._schedule.due_ms, now_ms)
        # 4. After a conflict over the instance id a joiner first finds out who holds it, or releases what may be its
        #    own former membership (see `static_member`).
        if self._state is MemberState.JOINING:
            if self._static.look_is_due:
                return self._send_when_due("holder", now_ms, now_ms)
            return self._send_when_due(
                "release" if self._static.release_first else "join", self._schedule.due_ms, now_ms
            )
        # 5. A look at the target never delays a heartbeat that has an acknowledgement to send.
        if self._target_poller.due_ms < self._schedule.due_ms and not self._owned.is_due:
            return self._send_when_due("look", self._schedule.not_before(self._target_poller.due_ms), now_ms)
        return self._send_when_due("steady", self._schedule.due_ms, now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""
        kind, self._in_flight = self._in_flight, None
        discarded, self._discard_answer = self._discard_answer, False
        match response:
            case FindCoordinator() if kind == "lookup":
                code, message = self._lookup.on_response(response, now_ms)
                if code != ErrorCode.none:
                    self._end(fatal_error(code, message, group_id=self._group_id, joining=True))
            case ApiVersions() if kind == "versions":
                self._take_version(response, now_ms)
            case Described() if kind in {"look", "holder"}:
                if not discarded:
                    self._take_description(response, now_ms, for_holder=kind == "holder")
            case Heartbeat() if kind in {"join", "steady", "leave", "release"}:
                if discarded:
                    self._static.mark_held()  # a join may have succeeded
                else:
                    self._on_heartbeat(kind, response, now_ms)
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        self._discard_answer = False
        # The coordinator may have applied the request and only its answer was lost. If it moved the member to a new
        # epoch, a heartbeat with null lists and the old epoch is fenced; with full lists it is accepted as a repetition
        # (KIP-1071, as KIP-848). So everything that was sent incrementally is sent in full again.
        self._owned.resend()
        self._offsets.resend()
        self._endpoint.on_failure()
        if kind == "lookup":
            self._lookup.on_failure(now_ms)
            return
        if kind == "join":
            self._static.mark_held()  # it may have succeeded: the next conflict may be with this member itself
        elif kind == "look":
            self._target_poller.on_failure(now_ms)
        self._schedule.on_failure(now_ms)
        self._forget_coordinator()

    # Requests.

    def _send_when_due(self, kind: InFlight, due_ms: int, now_ms: int) -> PollResult:
        if due_ms > now_ms:
            return self._wait(due_ms)
        node = None if kind == "lookup" else self._lookup.node
        return self._send(kind, self._request(kind, now_ms), now_ms, node=node)

    def _request(self, kind: InFlight, now_ms: int) -> RequestMessage:
        match kind:
            case "lookup":
                return self._lookup.request()
            case "versions":
                return self._version.request()
            case "look" | "holder":
                if kind == "look":
                    self._target_poller.request_sent()
                return describe_request(self._group_id)
        self._schedule.on_sent(now_ms)
        if kind == "join":
            extras = self._extras(now_ms, with_offsets=bool(self._offsets), endpoint=self._endpoint.for_join())
            return join_request(self._identity, extras)
        if kind == "steady":
            # Where `_on_success` joins again, the endpoint is never held back here while the group is ready.
            endpoint = self._endpoint.for_heartbeat(is_ready=is_ready(self._assignment.status))
            return regular_request(
                self._identity,
                self._extras(now_ms, with_offsets=self._offsets.is_due(now_ms), endpoint=endpoint),
                member_epoch=self._assignment.member_epoch,
                owned=self._owned.take(),
            )
        for_a_while = kind == "release" or self._will_return
        return leave_request(self._identity, self._extras(now_ms, with_offsets=False), for_a_while=for_a_while)

    def _extras(self, now_ms: int, *, with_offsets: bool, endpoint: Endpoint | None = None) -> Extras:
        takes_v1 = self._version.is_newest
        offsets = self._offsets.lists() if takes_v1 and with_offsets else (None, None)
        if takes_v1 and with_offsets:
            self._offsets.on_sent(now_ms)
        return Extras(
            instance_id=self._static.instance_id if takes_v1 else None,
            endpoint=endpoint,
            endpoint_epoch=self._endpoint_epoch,
            task_offsets=offsets[0],
            task_end_offsets=offsets[1],
            shutdown_application=self._shutdown_wanted,
        )

    def _take_version(self, response: ApiVersions, now_ms: int) -> None:
        # An answer without the version (an error) is treated like a failed request: guessing v0 would join a static
        # member as a dynamic one, and its tasks would not wait for it.
        self._version.on_response(response)
        ignored = self._version.ignored(self._static.instance_id, keeps_member_id=self._keeps_member_id)
        if ignored is not None:
            self._events.append(ignored)
        if self._version.number is None:
            self._schedule.on_failure(now_ms)
            self._forget_coordinator()

    def _take_description(self, response: Described, now_ms: int, *, for_holder: bool) -> None:
        self._schedule.on_throttle(now_ms, to_ms(response.throttle_time))
        group = described_group(response, self._group_id)
        if for_holder:
            if self._static.set_holder(group.members if group is not None else ()):
                self._events.append(self._static.taken_event())
            if self._static.is_final(now_ms):
                self.stop(self._static.fatal_error())
            return
        target = None if group is None else self._target_poller.on_group(group, self._identity.member_id, now_ms)
        if target is None or self._state not in ACKNOWLEDGING:
            return
        before, self._target = self._target, target
        # Emitted only if it is news: repeated looks usually return the same target.
        if target.tasks != (before.tasks if before is not None else self._assignment.tasks):
            self._events.append(e.TargetSeen(target=target, to_come=difference(target.active, self._assignment.active)))
        self._compare_with_target(now_ms)

    def _compare_with_target(self, now_ms: int) -> None:
        """Send fast heartbeats while tasks are to come; stop polling the target once the assignment equals it."""
        target = self._target
        if target is None:
            return
        to_come = difference(target.active, self._assignment.active)
        self._schedule.expect_until(now_ms, now_ms + EXPECT_MS if to_come else now_ms)
        if target.is_final and target.tasks == self._assignment.tasks:
            self._target_poller.end()

    def _on_heartbeat(self, kind: InFlight | None, reply: Heartbeat, now_ms: int) -> None:
        if kind == "leave":
            self._on_leave_answer(reply, now_ms)
        elif kind == "release":
            self._on_release_answer(reply, now_ms)
        elif reply.error_code == ErrorCode.none:
            self._on_success(reply, now_ms, joining=kind == "join")
        else:
            self._on_refusal(reply, now_ms, joining=kind == "join")

    def _on_success(self, reply: Heartbeat, now_ms: int, *, joining: bool) -> None:
        # 1. The lease counts from sending (`MemberCore._lease_end_ms`).
        self._last_answered_ms = self._sent_ms
        self._endpoint.on_success()
        self._take_endpoints(reply, joining=joining)
        self._offsets.set_interval(to_ms(reply.task_offset_interval))
        if joining:
            self._static.on_joined()
        else:
            self._shutdown_wanted = False
        # 2. A reply after which the member joins again with its endpoint: its tasks are not taken, so the application
        #    has nothing to lose.
        status = tuple((int(s.status_code), s.status_detail) for s in reply.status or ())
        if self._must_rejoin(status):
            self._events.extend(self._statuses.take(status))
            self._schedule_next(reply, now_ms, delayed=False)
            self._rejoin_with_endpoint(now_ms)
            return
        # 3. A change of tasks, of the epoch, or the beginning of a delay means that the group is converging. No broker
        #    notifies members of the next step; fast heartbeats find it.
        was_delayed = _is_delayed(self._assignment.status)
        changed = self._take_assignment(reply, status)
        if changed or (_is_delayed(status) and not was_delayed):
            self._expect_changes(now_ms)
        self._schedule_next(reply, now_ms, delayed=_is_delayed(status))
        self._compare_with_target(now_ms)
        # 4. Calls of the application while this heartbeat was in flight could not be sent with it.
        if self._state is MemberState.LEAVING or self._owned.is_due or self._shutdown_wanted:
            self._schedule.heartbeat_now(now_ms)

    def _schedule_next(self, reply: Heartbeat, now_ms: int, *, delayed: bool) -> None:
        self._schedule.on_success(
            now_ms,
            interval_ms=to_ms(reply.heartbeat_interval),
            throttle_ms=to_ms(reply.throttle_time),
            delayed=delayed,
        )

    def _must_rejoin(self, status: Status) -> bool:
        """Return whether the endpoint has to be announced with another join.

        Coordinators with heartbeat version 1 take it from any heartbeat. That version is the only one with static
        members, whose second join would be refused (UNRELEASED_INSTANCE_ID).
        """
        needs_rejoin = self._endpoint.needs_rejoin(is_ready=is_ready(status))
        return needs_rejoin and not self._version.is_newest and self._state is not MemberState.LEAVING

    def _take_endpoints(self, reply: Heartbeat, *, joining: bool) -> None:
        found = endpoints_in(reply)
        # The reply to a group's very first join contains endpoint epoch 0 without a map. Taking that epoch would make
        # the coordinator believe that the member has the map of epoch 0, and it would never be sent.
        if found is None and joining:
            return
        self._endpoint_epoch = int(reply.endpoint_information_epoch)
        if found is not None:
            self._replace_endpoints(found)

    def _take_assignment(self, reply: Heartbeat, status: Status) -> bool:
        """Build the next snapshot and emit what differs from the last one.

        Returns:
            Whether tasks or epoch changed.
        """
        # 1. Null lists mean that the tasks are unchanged; the epoch may rise without them.
        tasks = tasks_in(reply) or self._assignment.tasks
        before = self._replace_assignment(tasks, member_epoch=int(reply.member_epoch), status=status)
        tasks_changed = tasks != before.tasks
        epoch_changed = self._assignment.member_epoch != before.member_epoch
        if self._state is MemberState.LEAVING:
            return False
        # 2. From now on the application may open these tasks, so they count as owned before it acknowledges: if the
        #    next request is lost, the full lists must not deny a task that is being processed.
        if self._state is MemberState.JOINING:
            self._owned.on_joined()
        if tasks_changed:
            self._owned.add_assigned(tasks)
        self._emit_assignment(before)
        # 3. ACKNOWLEDGING ends only when the lists were sent and answered (`is_due` is false).
        if tasks_changed:
            self._enter(MemberState.RECONCILING)
        elif self._state is MemberState.JOINING or (
            self._state is MemberState.ACKNOWLEDGING and not self._owned.is_due
        ):
            self._enter(MemberState.STABLE)
        return tasks_changed or epoch_changed

    def _on_refusal(self, reply: Heartbeat, now_ms: int, *, joining: bool) -> None:
        # A refusal tells nothing about which fields the coordinator applied, so the next heartbeat sends everything.
        # The order of the cases: a leave is repeated until its deadline; conflicts of instance ids and Kafka's error
        # for endpoints come before the table of reactions, which would stop the member for both.
        self._owned.resend()
        self._offsets.resend()
        reaction = reaction_to(reply.error_code)
        message = reply.error_message or ""
        if self._state is MemberState.LEAVING:
            self._schedule.heartbeat_now(now_ms)
        elif reply.error_code in INSTANCE_CONFLICTS and self._static.instance_id is not None:
            self._on_instance_conflict(reply, now_ms, joining=joining)
        elif reply.error_code == ErrorCode.unknown_server_error and self._endpoint.on_server_error():
            self._schedule.on_failure(now_ms)
        elif reaction is Reaction.STOP:
            self._end(fatal_error(reply.error_code, message, group_id=self._group_id, joining=joining))
        elif reaction is Reaction.REJOIN:
            self._events.append(e.Fenced(kafka_name=kafka_name(reply.error_code), message=message))
            self._rejoin("fenced")
            # The first join follows at once; if the coordinator fences that one too, back off.
            if joining:
                self._schedule.on_failure(now_ms)
            else:
                self._schedule.heartbeat_now(now_ms)
        else:
            self._schedule.on_failure(now_ms, throttle_ms=to_ms(reply.throttle_time))
            if reaction is Reaction.FIND_COORDINATOR:
                self._forget_coordinator()

    def _on_instance_conflict(self, reply: Heartbeat, now_ms: int, *, joining: bool) -> None:
        # A running member that meets a conflict was replaced by a newer process: its tasks are lost at once.
        self._static.on_conflict(reply.error_code, now_ms)
        if not joining:
            self._events.append(e.Fenced(kafka_name=kafka_name(reply.error_code), message=reply.error_message or ""))
            self._rejoin("fenced")
        if self._static.release_first:
            self._schedule.heartbeat_now(now_ms)
        else:
            self._schedule.on_failure(now_ms, throttle_ms=to_ms(reply.throttle_time))

    def _on_release_answer(self, reply: Heartbeat, now_ms: int) -> None:
        """Join next, whatever the answer: the join shows who owns the instance id."""
        reaction = reaction_to(reply.error_code)
        if reply.error_code == ErrorCode.none or reaction in {Reaction.STOP, Reaction.REJOIN}:
            self._static.mark_released()
            self._schedule.heartbeat_now(now_ms)
            return
        self._schedule.on_failure(now_ms)
        if reaction is Reaction.FIND_COORDINATOR:
            self._forget_coordinator()

    def _on_leave_answer(self, reply: Heartbeat, now_ms: int) -> None:
        reaction = reaction_to(reply.error_code)
        if reply.error_code == ErrorCode.none or reaction in {Reaction.STOP, Reaction.REJOIN}:
            # Unknown or fenced: the group has gone on without this member, which is what was asked for.
            self._finish_leave(confirmed=True)
            return
        self._schedule.on_failure(now_ms)
        if reaction is Reaction.FIND_COORDINATOR:
            self._forget_coordinator()


def _is_delayed(status: Status) -> bool:
    return any(code == StatusCode.ASSIGNMENT_DELAYED for code, _ in status)
