"""Member of a consumer group (KIP-848), pure: one heartbeat carries everything, and the coordinator assigns.

Rules:

- Epoch 0 joins with every field and an empty list; then one heartbeat per interval with only what changed. After a lost
  or refused request everything is sent once more, and the answer contains the whole assignment.
- A new target becomes one `Rebalance` for the application: what to give back, then what to begin. Its acknowledgement
  makes the target the owned partitions, and the next heartbeat, sent at once, reports them. A newer target waits for
  the acknowledgement. Partitions of a topic whose name is not known yet wait for Metadata; the others do not wait for
  them.
- `FENCED_MEMBER_EPOCH` and `UNKNOWN_MEMBER_ID` lose everything; the member joins again with the same id when the
  application has acknowledged the loss.
- `UNRELEASED_INSTANCE_ID`: the instance id is held, possibly by this member's crashed former process. The member
  retries until that session must have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from headrace.client.membership.group_events import SubscribedTopics
from headrace.client.membership.group_member import COORDINATOR_GONE, RESTING, GroupMember, GroupMemberState
from headrace.client.membership.group_requests import (
    JOIN_EPOCH,
    HeartbeatSettings,
    TopicIdPartition,
    assigned_partitions,
    consumer_heartbeat_request,
    consumer_leave_request,
    topic_names,
    topic_names_request,
)
from headrace.client.membership.request_manager import (
    NEVER_MS,
    HeartbeatSchedule,
    PollResult,
    TopicLookup,
    existing_topics,
    topics_request,
)
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import to_ms

__all__ = ["ConsumerMembership"]

REQUEST_TIMEOUT_MS = 30_000
# A crashed process holds its instance id until its session ends: Kafka's default of 45 s and a margin. The group's own
# timeout is a setting of the coordinator that members cannot read.
INSTANCE_PATIENCE_MS = 50_000

_S = GroupMemberState
_FENCED = frozenset({ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id})

Heartbeat = m.consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse
Metadata = m.metadata_response.MetadataResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


class ConsumerMembership(GroupMember):
    """State machine of one member. Mutable.

    Call `subscribe`, then `poll`, and after each request `on_response` or `on_failure`. The caller generates
    `member_id` (KIP-1082).
    """

    api = "ConsumerGroupHeartbeat"

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        chance: Callable[[], float],
        rebalance_timeout_ms: int = 300_000,
        heartbeat_max_interval_ms: int = 500,
        metadata_max_age_ms: int = 300_000,
        instance_id: str | None = None,
        rack_id: str | None = None,
        server_assignor: str | None = None,
    ) -> None:
        super().__init__(group_id, chance=chance, instance_id=instance_id, member_id=member_id)
        self._settings = HeartbeatSettings(
            group_id=group_id,
            rebalance_timeout_ms=rebalance_timeout_ms,
            rack_id=rack_id,
            server_assignor=server_assignor,
        )
        self._schedule = HeartbeatSchedule(max_interval_ms=heartbeat_max_interval_ms, chance=chance)
        self._topic_lookup = TopicLookup(metadata_max_age_ms)
        self._resolved = SubscribedTopics()
        self._target: frozenset[TopicIdPartition] = frozenset()
        self._current: frozenset[TopicIdPartition] = frozenset()
        self._announced: frozenset[TopicIdPartition] = frozenset()
        self._names: dict[UUID, str] = {}
        self._names_due_ms = NEVER_MS
        self._subscription_due = False
        self._owned_due = False
        self._full_due = False
        self._regex_sent = self._regex_reset = False
        self._refused_since_ms: int | None = None
        self._release_first = False
        self._may_hold_id = instance_id is not None

    def subscribe(self, wanted: SubscribedTopics, now_ms: int) -> None:
        """Join with this subscription, or change it."""
        self._wanted = wanted
        self._topic_lookup.due_ms = now_ms if wanted.matching is not None else NEVER_MS
        if wanted.matching is None:
            self._take_topics(wanted, now_ms)
        if self._state in RESTING:
            self._current = self._announced = self._target = frozenset()  # of an earlier membership
            self._enter(_S.JOINING)
            self._schedule.heartbeat_now(now_ms)

    def acknowledge(self, number: int, now_ms: int) -> None:
        """Note that the application has carried out the event with this number."""
        if number != self._awaited:
            return
        self._awaited = None
        self._schedule.heartbeat_now(now_ms)
        if self._state is _S.LOST:
            self._enter(_S.JOINING)
        elif self._state is _S.RECONCILING:
            self._current = self._announced
            self._owned = self._named(self._current)
            self._owned_due = True
            self._schedule.speed_up()
            self._enter(_S.STABLE)
            self._reconcile()

    # What the runner calls.

    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""
        # 1. A leave is the only request that may replace one in flight.
        if self._state is _S.LEAVING:
            return self._poll_leaving(now_ms)
        # 2. LOST waits for the application: it must have stopped before the member may be assigned anything again.
        if self._state in RESTING or self._state is _S.LOST:
            return self._wait(NEVER_MS)
        if self._in_flight is not None:
            return self._wait(self._sent_ms + REQUEST_TIMEOUT_MS)
        # 3. Requests that a heartbeat depends on: the coordinator, the topics that a client-side pattern matches, and
        #    the names of assigned topics. Names do not hold a heartbeat up (`_names_due_ms` backs off).
        if self._lookup.node is None:
            return self._look_up(now_ms)
        if self._topic_lookup.due_ms <= now_ms:
            return self._send_with_deadline("look", topics_request(None), now_ms, any_node=True)
        if self._resolved.matching is not self._wanted.matching:
            return self._wait(self._topic_lookup.due_ms)
        if self._names_due_ms <= now_ms:
            return self._send_with_deadline("names", topic_names_request(self._unnamed()), now_ms, any_node=True)
        due_ms = self._schedule.due_ms
        if due_ms > now_ms:
            return self._wait(min(due_ms, self._topic_lookup.due_ms, self._names_due_ms))
        self._schedule.on_sent(now_ms)
        if self._release_first:
            return self._send_with_deadline("release", self._leave_request(for_a_while=True), now_ms)
        if self._state is _S.JOINING:
            return self._send_with_deadline("join", self._request(JOIN_EPOCH, full=True), now_ms)
        return self._send_with_deadline("beat", self._request(self.identity.generation, full=self._full_due), now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return  # asked in a membership that has ended meanwhile
        match response:
            case FindCoordinator() if kind == "lookup":
                self._on_lookup(response, now_ms)
            case Metadata() if kind == "look":
                resolved = self._wanted.resolved(existing_topics(response))
                self._topic_lookup.on_success(now_ms, missing=not resolved.names)
                self._take_topics(resolved, now_ms)
            case Metadata() if kind == "names":
                self._take_names(topic_names(response), now_ms)
            case Heartbeat() if kind == "leave":
                self._finish_leave(confirmed=True)
            case Heartbeat() if kind == "release":
                self._release_first = False
                self._may_hold_id = False
                self._schedule.heartbeat_now(now_ms)
            case Heartbeat() if kind in {"join", "beat"}:
                if response.error_code == ErrorCode.none:
                    self._on_success(response, now_ms)
                else:
                    self._on_refusal(response, now_ms, joining=kind == "join")
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        match kind:
            case None:
                pass
            case "lookup":
                self._lookup.on_failure(now_ms)
            case "look":
                self._topic_lookup.on_failure(now_ms)
            case "names":
                self._names_due_ms = now_ms + 200
            case _:
                if kind == "join":
                    self._may_hold_id = self.identity.instance_id is not None
                self._full_due = True
                self._schedule.on_failure(now_ms)
                self._lookup.forget()

    # Asking.

    def _send_with_deadline(
        self, kind: str, request: RequestMessage, now_ms: int, *, any_node: bool = False
    ) -> PollResult:
        return self._send(kind, request, now_ms, until_ms=now_ms + REQUEST_TIMEOUT_MS, any_node=any_node)

    def _request(self, member_epoch: int, *, full: bool) -> RequestMessage:
        joining = member_epoch == JOIN_EPOCH
        # 1. A member that does not list a partition gives it up: the coordinator assigns it to others at once. So the
        #    lists contain what the application owns, what it is about to begin, and the newest target. Listing only
        #    what was acknowledged, as a reading of KIP-848 suggests, was rejected: if the answer that takes a partition
        #    away is lost, the application still begins it, and two members read it.
        owned = frozenset[TopicIdPartition]() if joining else self._current | self._announced | self._target
        wanted = self._resolved if full or self._subscription_due else None
        request = consumer_heartbeat_request(
            self._settings,
            self.identity,
            member_epoch=member_epoch,
            wanted=wanted,
            forget_regex=self._regex_sent,
            owned=owned if full or self._owned_due else None,
            full=full,
        )
        # 2. A regular expression stays at the coordinator until an empty one arrives, so it counts as set until the
        #    reset is answered (`_on_success`), not only sent.
        self._regex_reset = wanted is not None and wanted.broker_regex is None
        if wanted is not None and not self._regex_reset:
            self._regex_sent = True
        # 3. Cleared when sent, not when answered: a change while this request is in flight is due again, and without
        #    an answer everything is (`_full_due`). Kafka's HeartbeatState resets its sent fields likewise.
        self._subscription_due = self._owned_due = self._full_due = False
        return request

    def _leave_request(self, *, for_a_while: bool) -> RequestMessage:
        return consumer_leave_request(self._settings, self.identity, for_a_while=for_a_while)

    def _poll_leaving(self, now_ms: int) -> PollResult:
        # A join in flight may have made this a member, so a leave follows it; without one there is nothing to leave.
        if now_ms >= self._leave_deadline_ms or not (self.identity.is_member or self._in_flight in {"join", "leave"}):
            self._finish_leave(confirmed=False)
            return self._wait(NEVER_MS)
        if self._in_flight == "leave":
            return self._wait(self._leave_deadline_ms)
        if self._lookup.node is None:
            return self._wait(self._leave_deadline_ms) if self._in_flight else self._look_up(now_ms)
        if self._retry_ms > now_ms:
            return self._wait(self._retry_ms)
        for_a_while = self.identity.instance_id is not None and not self._leave_for_good
        self._retry_ms = now_ms + 200
        return self._send_with_deadline("leave", self._leave_request(for_a_while=for_a_while), now_ms)

    # Answers.

    def _on_success(self, reply: Heartbeat, now_ms: int) -> None:
        self._reset_backoff()
        self._refused_since_ms = None
        self._may_hold_id = self.identity.instance_id is not None
        if self._regex_reset:
            self._regex_sent = False
        before = self.identity.generation
        self._set_generation(int(reply.member_epoch), reply.member_id or self.identity.member_id)
        if self._state is _S.LEAVING:
            return
        if self._state is _S.JOINING:
            self._enter(_S.STABLE)
            self._schedule.speed_up()
        assigned = assigned_partitions(reply)
        if assigned is not None and assigned != self._target:
            self._target = assigned
            self._schedule.speed_up()
        elif before != self.identity.generation:
            self._schedule.speed_up()
        self._schedule.on_success(
            now_ms, interval_ms=to_ms(reply.heartbeat_interval), throttle_ms=to_ms(reply.throttle_time), delayed=False
        )
        if self._subscription_due or self._owned_due:
            self._schedule.heartbeat_now(now_ms)  # changed while this heartbeat was in flight
        if self._unnamed():
            self._names_due_ms = min(self._names_due_ms, now_ms)
        self._reconcile()

    def _on_refusal(self, reply: Heartbeat, now_ms: int, *, joining: bool) -> None:
        code, message = reply.error_code, reply.error_message or ""
        self._full_due = True
        if self._state is _S.LEAVING:
            return
        # Fenced: the coordinator has a newer epoch, or no longer knows the member, so its partitions belong to others.
        # A member that owned some rejoins at once; a joiner that is fenced backs off, or it would join in a loop.
        if code in _FENCED:
            self._set_generation(-1)
            self._current = self._announced = self._target = frozenset()
            if joining:
                self._schedule.on_failure(now_ms)
            else:
                self._schedule.heartbeat_now(now_ms)
            self._lose("fenced", f"{kafka_name(code)} {message}".strip())
        elif code == ErrorCode.unreleased_instance_id and joining:
            self._on_unreleased(code, message, now_ms)
        elif code in COORDINATOR_GONE or is_retriable(code):
            self._schedule.on_failure(now_ms, throttle_ms=to_ms(reply.throttle_time))
            if code in COORDINATOR_GONE:
                self._lookup.forget()
        else:
            self._fail(code, message)

    def _on_unreleased(self, code: ErrorCode, message: str, now_ms: int) -> None:
        """Release the id if this member's own earlier join may hold it; otherwise wait for the session of its former
        process.
        """
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
            self._warn(
                f"{self._group_id}: another member holds the instance id {self.identity.instance_id}; retrying until "
                "its session must have ended"
            )
        if now_ms - self._refused_since_ms > INSTANCE_PATIENCE_MS:
            self._fail(code, message)
            return
        # Release once: if the id was this member's own, the next join succeeds; otherwise only time helps.
        self._release_first = self._may_hold_id
        self._may_hold_id = False
        self._schedule.on_failure(now_ms)

    def _take_names(self, names: Mapping[UUID, str], now_ms: int) -> None:
        self._names.update(names)
        # A topic that was just created may be missing from another broker's metadata for a moment.
        self._names_due_ms = now_ms + 200 if self._unnamed() else NEVER_MS
        self._reconcile()

    def _take_topics(self, resolved: SubscribedTopics, now_ms: int) -> None:
        changed = resolved != self._resolved
        self._resolved = resolved
        if changed and self._state not in RESTING:
            self._subscription_due = True
            self._schedule.heartbeat_now(now_ms)

    def _reconcile(self) -> None:
        """Emit the difference between the owned and the target partitions, unless the application is busy with an
        event.
        """
        # 1. One event at a time: a newer target waits until the application has acknowledged the last one.
        if self._state is not _S.STABLE or self._awaited is not None:
            return
        # 2. Partitions without a name stay out for now. They are in the heartbeat's list (`_target`), so they are not
        #    given away meanwhile; Metadata brings the name and calls this again.
        known = frozenset(each for each in self._target if each[0] in self._names)
        if known == self._current:
            return
        self._announced = known
        self._enter(_S.RECONCILING)
        self._emit_rebalance(revoked=self._named(self._current - known), assigned=self._named(known - self._current))

    def _unnamed(self) -> frozenset[UUID]:
        return frozenset(topic_id for topic_id, _ in self._target if topic_id not in self._names)

    def _named(self, partitions: frozenset[TopicIdPartition]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((self._names[topic_id], partition) for topic_id, partition in partitions))
