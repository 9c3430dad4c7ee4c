"""A member of a streams group (KIP-1071), pure: `poll(now_ms)` gives requests, `on_response` takes answers.

Rules it obeys:
- Epoch 0 joins with everything and empty lists; then one heartbeat per interval, at once when something is to be
  acknowledged. One request is out at a time; the runner answers each with `on_response` or `on_failure`.
- The owned lists go out in full when they changed and after any lost or refused request: null lists would fence a
  member whose last reply was lost. What the application was told of and may have opened counts as owned.
- `FENCED_MEMBER_EPOCH` and `UNKNOWN_MEMBER_ID` lose all tasks and join again with the same member id. The same happens
  when no heartbeat was answered for the session timeout: the coordinator has given the tasks away by then. The lease
  is counted from when an answered heartbeat was sent, so `now_ms` must go on while the machine sleeps.
- Events wait in a queue until `take_events`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from penstock.client.membership import events as e
from penstock.client.membership.assignment import AssignmentSnapshot, OwnedTasks, StatusCode, difference, tasks_of
from penstock.client.membership.coordinator_lookup import CoordinatorLookup
from penstock.client.membership.heartbeat_errors import Reaction, fatal_error, reaction_to
from penstock.client.membership.heartbeat_messages import (
    JOIN_EPOCH,
    MemberIdentity,
    join_request,
    leave_request,
    steady_request,
    tasks_in,
)
from penstock.client.membership.heartbeat_schedule import HeartbeatSchedule
from penstock.client.membership.member_state import VALID_PREVIOUS, MemberState
from penstock.client.membership.request_manager import NEVER_MS, Outgoing, PollResult
from penstock.client.membership.topology import Topology
from penstock.errors import PenstockError
from penstock.protocol import messages as m
from penstock.protocol.error_codes import ErrorCode, kafka_name
from penstock.protocol.units import to_ms

__all__ = ["StreamsMembership"]

LEAVE_TIMEOUT_MS = 5_000
_NOT_READY = frozenset(
    {
        StatusCode.STALE_TOPOLOGY,
        StatusCode.MISSING_SOURCE_TOPICS,
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        StatusCode.MISSING_INTERNAL_TOPICS,
    }
)
_RESTING = frozenset({MemberState.UNSUBSCRIBED, MemberState.FATAL})

Heartbeat = m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse
InFlight = Literal["lookup", "join", "steady", "leave"]


class StreamsMembership:
    """Mutable: the member's own soft state. `chance` yields numbers in [0, 1) for jitter."""

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
    ) -> None:
        self._identity = MemberIdentity(
            group_id=group_id,
            member_id=member_id,
            process_id=process_id,
            topology=topology,
            rebalance_timeout_ms=rebalance_timeout_ms,
            rack_id=rack_id,
        )
        self._session_timeout_ms = session_timeout_ms
        self._schedule = HeartbeatSchedule(max_interval_ms=heartbeat_max_interval_ms, chance=chance)
        self._lookup = CoordinatorLookup(group_id, chance=chance)
        self._events: list[e.MemberEvent] = []
        self._state = MemberState.UNSUBSCRIBED
        self._assignment = AssignmentSnapshot(member_id=member_id)
        self._joined_once_told = False
        self._owned = OwnedTasks()  # what the application acknowledged last
        self._maybe_opened = OwnedTasks()  # what it was told of since
        self._send_owned = True
        self._endpoint_epoch = -1
        self._shutdown_told = False
        self._in_flight: InFlight | None = None
        self._discard_answer = False  # the answer belongs to a membership that was given up meanwhile
        self._sent_ms = 0
        self._last_answered_ms: int | None = None
        self._leave_deadline_ms = NEVER_MS

    # What others may look at.

    @property
    def state(self) -> MemberState:
        return self._state

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot."""
        return self._assignment

    @property
    def coordinator(self) -> int | None:
        """The coordinator's node id, None while it is unknown."""
        return self._lookup.node

    @property
    def last_answered_ms(self) -> int | None:
        """When the last heartbeat that was answered had been sent."""
        return self._last_answered_ms

    def take_events(self) -> tuple[e.MemberEvent, ...]:
        """What happened since the last call, in order."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    # What the runner calls.

    def join(self, now_ms: int) -> None:
        """Begins: the first poll after it looks for the coordinator."""
        self._discard_answer = self._in_flight is not None
        self._enter(MemberState.JOINING)
        self._schedule.beat_now(now_ms)

    def poll(self, now_ms: int) -> PollResult:
        """The request to send now, if any, and when to poll again at the latest."""
        self._fence_myself(now_ms)
        if self._state is MemberState.FENCED:
            self._enter(MemberState.JOINING)
        if self._state is MemberState.LEAVING and now_ms >= self._leave_deadline_ms:
            self._finish_leave(confirmed=False)
        if self._state in _RESTING:
            return PollResult(requests=(), next_poll_ms=NEVER_MS)
        if self._in_flight is not None:
            return PollResult(requests=(), next_poll_ms=min(self._lease_end_ms(), self._leave_deadline_ms))
        if self._lookup.node is None:
            return self._ask("lookup", self._lookup.due_ms, now_ms)
        kind: InFlight = "leave" if self._state is MemberState.LEAVING else "steady"
        if self._state is MemberState.JOINING:
            kind = "join"
        return self._ask(kind, self._schedule.due_ms, now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """The answer to the one request that is out."""
        kind, self._in_flight = self._in_flight, None
        if isinstance(response, FindCoordinator):
            code, message = self._lookup.on_response(response, now_ms)
            if code != ErrorCode.none:
                self._stop(code, message)
            return
        if not isinstance(response, Heartbeat) or kind is None:
            raise TypeError(f"{type(response).__name__} answers nothing that this member asked")
        if self._discard_answer:
            self._discard_answer = False
            return
        if kind == "leave":
            self._on_leave_answer(response, now_ms)
        elif response.error_code == ErrorCode.none:
            self._on_success(response, now_ms)
        else:
            self._on_refusal(response, now_ms, joining=kind == "join")

    def on_failure(self, now_ms: int) -> None:
        """The request that was out has no answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        self._discard_answer = False
        self._send_owned = True
        if kind == "lookup":
            self._lookup.on_failure(now_ms)
        else:
            self._schedule.failed(now_ms)
            self._lookup.forget()

    # What the application says.

    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        now_ms: int,
        *,
        standby: Mapping[str, Sequence[int]] | None = None,
        version: int | None = None,
    ) -> None:
        """The application works on exactly these active tasks now. The coordinator hears it at once.

        `version` is that of the snapshot the application acted on (None: the newest); tasks it was told of later
        still count as possibly opened. `standby` None: the standby tasks as assigned.
        """
        if self._state not in {MemberState.RECONCILING, MemberState.ACKNOWLEDGING, MemberState.STABLE}:
            return
        told = self._assignment
        self._owned = OwnedTasks(
            active=tasks_of(owned),
            standby=told.standby if standby is None else tasks_of(standby),
            warmup=told.warmup,
        )
        if version is not None and version < told.version:
            return  # what was told later comes with an acknowledgement of its own
        self._maybe_opened = OwnedTasks()
        self._send_owned = True
        self._schedule.hurry()
        self._schedule.beat_now(now_ms)
        self._enter(MemberState.ACKNOWLEDGING if self._owned.within(told.tasks) else MemberState.RECONCILING)

    def leave(self, now_ms: int) -> None:
        """Leaves as soon as the request that is out is answered. Tasks are given up at once."""
        if self._state in _RESTING or self._state is MemberState.LEAVING:
            return
        self._lose("left")
        self._enter(MemberState.LEAVING)
        self._leave_deadline_ms = now_ms + LEAVE_TIMEOUT_MS
        self._schedule.beat_now(now_ms)

    # One step each.

    def _ask(self, kind: InFlight, due_ms: int, now_ms: int) -> PollResult:
        if due_ms > now_ms:
            return PollResult(requests=(), next_poll_ms=min(due_ms, self._lease_end_ms(), self._leave_deadline_ms))
        self._in_flight = kind
        self._sent_ms = now_ms
        outgoing = Outgoing(request=self._request(kind), node=None if kind == "lookup" else self._lookup.node)
        return PollResult(requests=(outgoing,), next_poll_ms=min(self._lease_end_ms(), self._leave_deadline_ms))

    def _request(self, kind: InFlight) -> object:
        if kind == "lookup":
            return self._lookup.request()
        if kind == "leave":
            return leave_request(self._identity)
        if kind == "join":
            return join_request(self._identity, endpoint_epoch=self._endpoint_epoch)
        owned = self._owned.union(self._maybe_opened) if self._send_owned else None
        self._send_owned = False  # what is acknowledged while this request is out goes into the next one
        return steady_request(
            self._identity,
            member_epoch=self._assignment.member_epoch,
            endpoint_epoch=self._endpoint_epoch,
            owned=owned,
        )

    def _on_success(self, reply: Heartbeat, now_ms: int) -> None:
        self._last_answered_ms = self._sent_ms
        self._endpoint_epoch = int(reply.endpoint_information_epoch)
        status = tuple((int(s.status_code), s.status_detail) for s in reply.status or ())
        changed = self._take_assignment(reply, status)
        delayed = any(code == StatusCode.ASSIGNMENT_DELAYED for code, _ in status)
        if changed:
            self._schedule.hurry()
        self._schedule.answered(
            now_ms,
            interval_ms=to_ms(reply.heartbeat_interval),
            throttle_ms=to_ms(reply.throttle_time),
            delayed=delayed,
        )
        if self._state is MemberState.LEAVING or self._send_owned:  # asked for while this one was out
            self._schedule.beat_now(now_ms)

    def _take_assignment(self, reply: Heartbeat, status: tuple[tuple[int, str], ...]) -> bool:
        """Makes the next snapshot and tells what differs from the last one. True when tasks or epoch changed."""
        before = self._assignment
        tasks = tasks_in(reply) or before.tasks
        tasks_changed = tasks != before.tasks
        epoch_changed = int(reply.member_epoch) != before.member_epoch
        self._assignment = AssignmentSnapshot(
            member_id=before.member_id,
            member_epoch=int(reply.member_epoch),
            active=tasks.active,
            standby=tasks.standby,
            warmup=tasks.warmup,
            status=status,
            version=before.version + 1 if tasks_changed else before.version,
        )
        if self._state is MemberState.LEAVING:
            return False
        if self._state is MemberState.JOINING:
            self._send_owned = False
        if tasks_changed:
            self._maybe_opened = self._maybe_opened.union(tasks)
        if not self._joined_once_told:
            self._joined_once_told = True
            self._events.append(e.Assigned(assignment=self._assignment))
        elif tasks_changed or epoch_changed:
            self._events.append(
                e.AssignmentChanged(
                    assignment=self._assignment,
                    added=difference(tasks.active, before.active),
                    revoked=difference(before.active, tasks.active),
                )
            )
        self._tell_status(before.status, status)
        if tasks_changed:
            self._enter(MemberState.RECONCILING)
        elif self._state is MemberState.JOINING or (self._state is MemberState.ACKNOWLEDGING and not self._send_owned):
            self._enter(MemberState.STABLE)
        return tasks_changed or epoch_changed

    def _tell_status(self, before: tuple[tuple[int, str], ...], status: tuple[tuple[int, str], ...]) -> None:
        problems = tuple(entry for entry in status if entry[0] in _NOT_READY)
        problems_before = tuple(entry for entry in before if entry[0] in _NOT_READY)
        if problems != problems_before:
            self._events.append(e.NotReady(status=problems) if problems else e.Ready())
        if not self._shutdown_told and any(code == StatusCode.SHUTDOWN_APPLICATION for code, _ in status):
            self._shutdown_told = True
            self._events.append(e.ShutdownRequested())

    def _on_refusal(self, reply: Heartbeat, now_ms: int, *, joining: bool) -> None:
        self._send_owned = True
        reaction = reaction_to(reply.error_code)
        message = reply.error_message or ""
        if self._state is MemberState.LEAVING:
            self._schedule.beat_now(now_ms)
        elif reaction is Reaction.STOP:
            self._stop(reply.error_code, message, joining=joining)
        elif reaction is Reaction.REJOIN:
            self._events.append(e.Fenced(kafka_name=kafka_name(reply.error_code), message=message))
            self._begin_again("fenced")
            # Once at once; a coordinator that goes on fencing a joiner is asked less and less often.
            if joining:
                self._schedule.failed(now_ms)
            else:
                self._schedule.beat_now(now_ms)
        else:
            self._schedule.failed(now_ms, throttle_ms=to_ms(reply.throttle_time))
            if reaction is Reaction.FIND_COORDINATOR:
                self._lookup.forget()

    def _on_leave_answer(self, reply: Heartbeat, now_ms: int) -> None:
        reaction = reaction_to(reply.error_code)
        if reply.error_code == ErrorCode.none or reaction in {Reaction.STOP, Reaction.REJOIN}:
            # Unknown or fenced: the group has gone on without this member, which is what was asked for.
            self._finish_leave(confirmed=True)
            return
        self._schedule.failed(now_ms)
        if reaction is Reaction.FIND_COORDINATOR:
            self._lookup.forget()

    def _fence_myself(self, now_ms: int) -> None:
        if now_ms >= self._lease_end_ms():
            self._discard_answer = self._in_flight not in {None, "lookup"}
            self._begin_again("session-expired")
            self._schedule.beat_now(now_ms)

    def _lease_end_ms(self) -> int:
        if self._last_answered_ms is None or self._state in {MemberState.LEAVING, *_RESTING}:
            return NEVER_MS
        return self._last_answered_ms + self._session_timeout_ms

    def _begin_again(self, reason: e.LostReason) -> None:
        self._lose(reason)
        if self._state is not MemberState.FENCED:
            self._enter(MemberState.FENCED)

    def _lose(self, reason: e.LostReason) -> None:
        joined = self._joined_once_told
        self._joined_once_told = False
        self._shutdown_told = False
        self._last_answered_ms = None
        self._owned = self._maybe_opened = OwnedTasks()
        self._send_owned = True
        self._assignment = AssignmentSnapshot(
            member_id=self._identity.member_id, member_epoch=JOIN_EPOCH, version=self._assignment.version + 1
        )
        if joined:
            self._events.append(e.Lost(reason=reason))

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._enter(MemberState.UNSUBSCRIBED)
        self._leave_deadline_ms = NEVER_MS
        self._discard_answer = self._in_flight is not None
        self._events.append(e.Left(confirmed=confirmed))

    def _stop(self, code: ErrorCode, message: str, *, joining: bool = True) -> None:
        if self._state is MemberState.LEAVING:
            self._finish_leave(confirmed=False)
            return
        self.stop(fatal_error(code, message, group_id=self._identity.group_id, joining=joining))

    def stop(self, error: PenstockError) -> None:
        """The membership is over, also when the runner finds a reason (a broker without the API)."""
        self._lose("fatal")
        self._enter(MemberState.FATAL)
        self._events.append(e.Fatal(error=error))

    def _enter(self, state: MemberState) -> None:
        if self._state not in VALID_PREVIOUS[state]:
            raise AssertionError(f"{self._state} does not lead to {state}")
        self._state = state
