"""Member of a classic consumer group, pure: join, sync, heartbeat, and the leader's assignment.

Rules:

- Before a rebalance an eager member gives everything back, a cooperative one only topics that it no longer subscribes
  to (KIP-429). What a cooperative rebalance takes away is given back after it, and then the member joins once more.
- While the application gives back or takes over, heartbeats go on; while a join or a sync is in flight there are none.
- `UNKNOWN_MEMBER_ID` and `ILLEGAL_GENERATION` lose everything and join again; after the second the member id stays.
- The leader looks up the partitions of all topics that any member subscribes to, repeats this at `metadata.max.age.ms`,
  and begins a rebalance if they changed. `GroupAssignors` encodes and decodes for the assignors.
- Static members (KIP-345) do not leave: their session waits for their return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.assignors.assignor import NO_GENERATION, Assignor
from headrace.client.membership.group_assignors import GroupAssignors
from headrace.client.membership.group_events import SubscribedTopics
from headrace.client.membership.group_member import COORDINATOR_GONE, RESTING, GroupMember, GroupMemberState
from headrace.client.membership.group_requests import (
    classic_heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)
from headrace.client.membership.request_manager import (
    NEVER_MS,
    PollResult,
    TopicLookup,
    existing_topics,
    partition_counts,
    topics_request,
)
from headrace.errors import UserCodeError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import to_ms

__all__ = ["ClassicMembership"]

# The coordinator answers a join when all members joined, at the latest after the rebalance timeout, and needs a moment.
JOIN_MARGIN_MS = 5_000
HEARTBEAT_TIMEOUT_MS = 30_000

_S = GroupMemberState

JoinReply = m.join_group_response.JoinGroupResponse
SyncReply = m.sync_group_response.SyncGroupResponse
HeartbeatReply = m.heartbeat_response.HeartbeatResponse
LeaveReply = m.leave_group_response.LeaveGroupResponse
Metadata = m.metadata_response.MetadataResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


class ClassicMembership(GroupMember):
    """State machine of one member. Mutable.

    Call `subscribe`, then `poll`, and after each request `on_response` or `on_failure`.
    """

    api = "JoinGroup"

    def __init__(
        self,
        group_id: str,
        assignors: Sequence[Assignor],
        *,
        chance: Callable[[], float],
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        rebalance_timeout_ms: int = 300_000,
        metadata_max_age_ms: int = 300_000,
        instance_id: str | None = None,
        rack_id: str | None = None,
    ) -> None:
        super().__init__(group_id, chance=chance, instance_id=instance_id)
        self._assignors = GroupAssignors(group_id, assignors, rack_id=rack_id, notice=self._warn)
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._topic_lookup = TopicLookup(metadata_max_age_ms)
        self._heartbeat_ms = 0
        self._protocol_name = ""
        self._reason = ""
        self._rejoin = False
        self._joined: JoinReply | None = None
        self._joined_topics: tuple[str, ...] = ()
        self._group_topics: frozenset[str] = frozenset()
        self._counts: Mapping[str, int] | None = None
        self._assignments: Mapping[str, bytes] = {}
        self._resolved = SubscribedTopics()

    def subscribe(self, wanted: SubscribedTopics, now_ms: int) -> None:
        """Join with this subscription, or change it."""
        self._wanted = wanted
        self._topic_lookup.due_ms = now_ms if wanted.matching is not None else NEVER_MS
        if wanted.matching is None:
            self._take_topics(wanted)
        if self._state in RESTING:
            self._rejoin = False
            self._reason = ""
            self._enter(_S.JOINING)
            self._retry_ms = now_ms

    def acknowledge(self, number: int, now_ms: int) -> None:
        """Note that the application has carried out the event with this number."""
        if number != self._awaited:
            return
        self._awaited = None
        if self._state in {_S.PREPARING, _S.LOST}:
            self._enter(_S.JOINING)
            self._retry_ms = now_ms
        elif self._state is _S.RECONCILING:
            self._enter(_S.STABLE)

    # What the runner calls.

    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""
        if self._state is _S.LEAVING:
            return self._poll_leaving(now_ms)
        if self._state in RESTING:
            return self._wait(NEVER_MS)
        if self._in_flight is not None:
            return self._wait(self._deadline_ms())
        if self._lookup.node is None:
            return self._look_up(now_ms)
        if self._topic_lookup.due_ms <= now_ms and self._state is not _S.ASSIGNING:
            names = None if self._wanted.matching is not None else self._group_topics
            return self._send_with_deadline("look", topics_request(names), now_ms, any_node=True)
        # A rebalance begins only when the application has acknowledged the last one: PREPARING and RECONCILING come
        # first, or it would have to revoke what it has not begun.
        if self._state is _S.STABLE and self._rejoin:
            self._revoke_before_join(now_ms)
        match self._state:
            case _S.JOINING:
                if self._resolved.matching is not self._wanted.matching:
                    return self._wait(self._topic_lookup.due_ms)  # the topics that match the pattern are not known yet
                return self._send_when_due(self._retry_ms, "join", self._join_request, now_ms)
            case _S.ASSIGNING:
                return self._send_when_due(
                    self._retry_ms, "partitions", lambda: topics_request(self._group_topics), now_ms, any_node=True
                )
            case _S.SYNCING:
                return self._send_when_due(self._retry_ms, "sync", self._sync_request, now_ms)
            case _:
                return self._poll_heartbeat(now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return  # the membership that sent the request has ended
        match response:
            case FindCoordinator() if kind == "lookup":
                self._on_lookup(response, now_ms)
            case Metadata() if kind == "look":
                self._on_topics(response, now_ms)
            case Metadata() if kind == "partitions":
                self._on_partitions(response, now_ms)
            case JoinReply() if kind == "join":
                self._on_join(response, now_ms)
            case SyncReply() if kind == "sync":
                self._on_sync(response, now_ms)
            case HeartbeatReply() if kind == "heartbeat":
                self._on_heartbeat(response.error_code, now_ms)
            case LeaveReply() if kind == "leave":
                self._finish_leave(confirmed=True)
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return
        if kind == "lookup":
            self._lookup.on_failure(now_ms)
            return
        if kind == "look":
            self._topic_lookup.on_failure(now_ms)
            return
        self._back_off(now_ms)
        if kind == "heartbeat":
            self._heartbeat_ms = self._retry_ms
        if kind == "sync":  # the assignment may have been in the lost answer; only a new join brings one
            self._rejoin_now("the sync was not answered")
        if kind != "partitions":
            self._lookup.forget()

    # Asking.

    def _send_with_deadline(
        self, kind: str, request: RequestMessage, now_ms: int, *, any_node: bool = False
    ) -> PollResult:
        sent = self._send(kind, request, now_ms, any_node=any_node)
        return PollResult(requests=sent.requests, next_poll_ms=min(sent.next_poll_ms, self._deadline_ms()))

    def _send_when_due(
        self, due_ms: int, kind: str, request: Callable[[], RequestMessage], now_ms: int, *, any_node: bool = False
    ) -> PollResult:
        if due_ms > now_ms:
            return self._wait(due_ms)
        try:
            asking = request()
        except UserCodeError as error:
            self.stop(error)
            return self._wait(NEVER_MS)
        return self._send_with_deadline(kind, asking, now_ms, any_node=any_node)

    def _deadline_ms(self) -> int:
        """Return until when the request in flight may take."""
        match self._in_flight:
            # Both are answered only when every member has joined or the leader has synced, so they may take as long as
            # a rebalance.
            case "join" | "sync":
                return self._sent_ms + self._rebalance_timeout_ms + JOIN_MARGIN_MS
            case "heartbeat":
                return self._sent_ms + min(self._session_timeout_ms, HEARTBEAT_TIMEOUT_MS)
            case _:
                return self._sent_ms + HEARTBEAT_TIMEOUT_MS

    def _poll_leaving(self, now_ms: int) -> PollResult:
        # A static member sends no LeaveGroup: its partitions wait until its session ends (KIP-345).
        silent = self.identity.instance_id is not None and not self._leave_for_good
        if silent or not self.identity.member_id or now_ms >= self._leave_deadline_ms:
            self._finish_leave(confirmed=False)
            return self._wait(NEVER_MS)
        if self._in_flight == "leave":
            return self._wait(self._leave_deadline_ms)
        if self._lookup.node is None:
            return self._wait(self._leave_deadline_ms) if self._in_flight else self._look_up(now_ms)
        if self._retry_ms > now_ms:
            return self._wait(self._retry_ms)
        return self._send_with_deadline(
            "leave", leave_group_request(self._group_id, self.identity, "the consumer was closed"), now_ms
        )

    def _poll_heartbeat(self, now_ms: int) -> PollResult:
        if not self.identity.is_member:
            return self._wait(NEVER_MS)
        if self._heartbeat_ms > now_ms:
            return self._wait(min(self._heartbeat_ms, self._topic_lookup.due_ms))
        return self._send_with_deadline("heartbeat", classic_heartbeat_request(self._group_id, self.identity), now_ms)

    def _join_request(self) -> RequestMessage:
        self._joined_topics = self._resolved.names
        return join_group_request(
            self._group_id,
            self.identity,
            self._assignors.protocols(self._resolved.names, self._owned, self.identity.generation),
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            reason=self._reason,
        )

    def _sync_request(self) -> RequestMessage:
        return sync_group_request(self._group_id, self.identity, self._protocol_name, self._assignments)

    # The steps of a rebalance.

    def _request_rejoin(self, reason: str) -> None:
        self._rejoin = True
        self._reason = reason

    def _revoke_before_join(self, now_ms: int) -> None:
        """Revoke what must be given back before the join."""
        # KIP-429. An eager assignor hands every partition out anew, so no member may own one during the rebalance. With
        # cooperative assignors a member reads on while it joins; only topics it no longer subscribes to go back first.
        # What the rebalance takes away is revoked after it (`_take_assignment`).
        self._rejoin = False
        topics = frozenset(self._resolved.names)
        revoked = (
            tuple(each for each in self._owned if each[0] not in topics)
            if self._assignors.are_cooperative
            else self._owned
        )
        self._retry_ms = now_ms
        if self._assignors.are_cooperative and not revoked:
            self._enter(_S.JOINING)
            return
        self._owned = tuple(each for each in self._owned if each not in set(revoked))
        self._enter(_S.PREPARING)
        self._emit_rebalance(revoked=revoked, assigned=None, all_revoked=not self._assignors.are_cooperative)

    def _on_join(self, reply: JoinReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._reset_backoff()
            self._set_generation(int(reply.generation_id), reply.member_id)
            self._protocol_name = reply.protocol_name or ""
            self._joined = reply
            self._rejoin = False
            self._retry_ms = now_ms
            self._assignments = {}
            # 1. The subscription changed while the join was in flight: the assignment to come is outdated. It is still
            #    taken, because leaving SyncGroup out would make every other member wait for the session timeout.
            if self._joined_topics != self._resolved.names:
                self._request_rejoin("the subscription changed")
            # 2. The leader needs the numbers of partitions before it can assign; a follower syncs at once, and stops
            #    watching them.
            if self._protocol_name not in self._assignors:
                self._fail(ErrorCode.inconsistent_group_protocol)
            elif reply.leader == reply.member_id and reply.members:
                self._start_assigning(reply, now_ms)
            else:
                self._counts = None
                self._enter(_S.SYNCING)
        # 3. The coordinator gives out an id and wants it in a second join, so that a client that retries a first join
        #    does not leave members behind (KIP-394).
        elif code == ErrorCode.member_id_required:
            self._set_generation(NO_GENERATION, reply.member_id)
            self._retry_ms = now_ms
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._back_off(now_ms)
            self._lose("fenced", kafka_name(code))
        elif code == ErrorCode.rebalance_in_progress or is_retriable(code):
            self._back_off(now_ms, to_ms(reply.throttle_time))
            self._forget_moved_coordinator(code)
        else:
            self._fail(code)

    def _start_assigning(self, reply: JoinReply, now_ms: int) -> None:
        # All members' topics, not only the leader's own: members of one group may subscribe to different topics.
        self._group_topics = frozenset(
            topic for each in self._assignors.members(reply).values() for topic in each.topics
        )
        self._enter(_S.ASSIGNING if self._group_topics else _S.SYNCING)
        self._retry_ms = now_ms

    def _on_partitions(self, response: Metadata, now_ms: int) -> None:
        """Compute the assignment as the leader, now that the numbers of partitions are known."""
        joined = self._joined
        if joined is None or self._state is not _S.ASSIGNING:
            return
        counts = {name: count for name, count in partition_counts(response).items() if name in self._group_topics}
        self._counts = counts
        self._topic_lookup.on_success(now_ms, missing=len(counts) < len(self._group_topics))
        self._enter(_S.SYNCING)
        self._retry_ms = now_ms
        if joined.skip_assignment:
            return  # a static leader returned: the coordinator keeps the group's assignment (KIP-814)
        members = self._assignors.members(joined)
        try:
            self._assignments = self._assignors.divided(self._protocol_name, counts, members)
        except UserCodeError as failed:
            self.stop(failed)

    def _on_sync(self, reply: SyncReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._reset_backoff()
            self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
            self._take_assignment(bytes(reply.assignment))
        elif code == ErrorCode.rebalance_in_progress:
            self._retry_ms = now_ms
            self._rejoin_now("the group began another rebalance")
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._lose("fenced", kafka_name(code))
        elif is_retriable(code):
            self._back_off(now_ms, to_ms(reply.throttle_time))
            self._forget_moved_coordinator(code)
            self._rejoin_now("the sync was refused")
        else:
            self._fail(code)

    def _take_assignment(self, data: bytes) -> None:
        generation = self.identity.generation
        try:
            given = self._assignors.taken(self._protocol_name, data, self._resolved.names, generation)
        except UserCodeError as failed:
            self.stop(failed)
            return
        # 1. For an eager member `had` is empty since `_prepare`, so all partitions are added.
        # 2. A cooperative assignor leaves a partition that moves unassigned in this generation. Its owner revokes it,
        #    and joins again: in the next generation it goes to its new owner (KIP-429, "two-phase rebalance").
        had = self._owned
        revoked = tuple(each for each in had if each not in set(given))
        added = tuple(each for each in given if each not in set(had))
        self._owned = given
        self._enter(_S.RECONCILING)
        self._emit_rebalance(revoked=revoked, assigned=added)
        if revoked and self._assignors.are_cooperative:
            self._request_rejoin("revoked partitions that other members are to get")

    def _on_heartbeat(self, code: ErrorCode, now_ms: int) -> None:
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        if code == ErrorCode.none:
            self._reset_backoff()
        # The coordinator announces a rebalance with every heartbeat until the member joins; while it prepares for that
        # join it need not be announced again.
        elif code == ErrorCode.rebalance_in_progress:
            if self._state is not _S.PREPARING:
                self._request_rejoin("the group is rebalancing")
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._lose("fenced", kafka_name(code))
        elif is_retriable(code):
            self._back_off(now_ms)
            self._heartbeat_ms = self._retry_ms
            self._forget_moved_coordinator(code)
        else:
            self._fail(code)

    def _on_topics(self, response: Metadata, now_ms: int) -> None:
        if self._wanted.matching is not None:
            resolved = self._wanted.resolved(existing_topics(response))
            self._topic_lookup.on_success(now_ms, missing=not resolved.names)
            self._take_topics(resolved)
        if self._counts is None:
            if self._wanted.matching is None:
                self._topic_lookup.stop()
            return
        counts = {name: count for name, count in partition_counts(response).items() if name in self._group_topics}
        self._topic_lookup.on_success(now_ms, missing=len(counts) < len(self._group_topics))
        # Kafka's leader compares metadata snapshots in the same way (ConsumerCoordinator.rejoinNeededOrPending).
        if counts != self._counts and self._state in {_S.STABLE, _S.RECONCILING}:
            self._counts = counts
            self._request_rejoin("the topics' partitions changed")

    def _take_topics(self, resolved: SubscribedTopics) -> None:
        changed = resolved.names != self._resolved.names
        self._resolved = resolved
        if changed and self._state not in {*RESTING, _S.JOINING, _S.PREPARING, _S.LOST}:
            self._request_rejoin("the subscription changed")

    def _rejoin_now(self, reason: str) -> None:
        self._reason = reason
        if self._state not in {_S.LEAVING, *RESTING}:
            self._enter(_S.JOINING)

    def _forget_generation(self, code: ErrorCode) -> None:
        # After ILLEGAL_GENERATION the coordinator still knows the member, and joins with its id keep its static or
        # sticky place; an unknown id must be requested anew.
        self._set_generation(NO_GENERATION, "" if code == ErrorCode.unknown_member_id else None)
        self._reason = f"the coordinator answered {kafka_name(code)}"

    def _forget_moved_coordinator(self, code: ErrorCode) -> None:
        if code in COORDINATOR_GONE:
            self._lookup.forget()
