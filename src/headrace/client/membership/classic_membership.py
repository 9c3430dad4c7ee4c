"""A member of a classic consumer group, pure: join, sync, heartbeat, and the leader's work.

Rules it obeys:
- Before a rebalance an eager member gives everything back, a cooperative one only topics it does not read any more
  (KIP-429). What a cooperative rebalance takes away is given back after it, and then the member joins once more.
- While the application gives back or takes over, heartbeats go on; while a join or a sync is out there are none.
- `UNKNOWN_MEMBER_ID` and `ILLEGAL_GENERATION` lose everything and join again; with the second the id stays.
- The leader asks for the partitions of all topics that anybody reads, looks at them again at `metadata.max.age.ms`, and
  begins a rebalance when they changed. What goes to and from the assignors is in `group_assignors`.
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
from headrace.protocol.kio_units import to_ms

__all__ = ["ClassicMembership"]

JOIN_MARGIN_MS = 5_000  # behind the rebalance timeout: so long the coordinator may take to answer a join
HEARTBEAT_TIMEOUT_MS = 30_000

_S = GroupMemberState
_BEATING = frozenset({_S.PREPARING, _S.RECONCILING, _S.STABLE})

Joined = m.join_group_response.JoinGroupResponse
Synced = m.sync_group_response.SyncGroupResponse
Beaten = m.heartbeat_response.HeartbeatResponse
LeftGroup = m.leave_group_response.LeaveGroupResponse
Metadata = m.metadata_response.MetadataResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


class ClassicMembership(GroupMember):
    """Mutable. `subscribe`, then `poll` and `on_response` or `on_failure` in turn."""

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
        self._assignors = GroupAssignors(group_id, assignors, rack_id=rack_id, notice=self._notice)
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._look = TopicLookup(metadata_max_age_ms)
        self._heartbeat_ms = 0
        self._protocol_name = ""
        self._reason = ""
        self._rejoin = False
        self._joined: Joined | None = None
        self._joined_topics: tuple[str, ...] = ()
        self._group_topics: frozenset[str] = frozenset()
        self._counts: Mapping[str, int] | None = None
        self._assignments: Mapping[str, bytes] = {}
        self._resolved = SubscribedTopics()

    def subscribe(self, wanted: SubscribedTopics, now_ms: int) -> None:
        """Begins, or changes what is read."""
        self._wanted = wanted
        self._look.due_ms = now_ms if wanted.matching is not None else NEVER_MS
        if wanted.matching is None:
            self._take_topics(wanted)
        if self._state in RESTING:
            self._rejoin = False
            self._reason = ""
            self._enter(_S.JOINING)
            self._retry_ms = now_ms

    def acknowledge(self, number: int, now_ms: int) -> None:
        """The application has done what the event with this number asked for."""
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
        """The request to send now, if any, and when to poll again at the latest."""
        if self._state is _S.LEAVING:
            return self._poll_leaving(now_ms)
        if self._state in RESTING:
            return self._wait(NEVER_MS)
        if self._in_flight is not None:
            return self._wait(self._deadline_ms())
        if self._lookup.node is None:
            return self._look_up(now_ms)
        if self._look.due_ms <= now_ms and self._state is not _S.ASSIGNING:
            names = None if self._wanted.matching is not None else self._group_topics
            return self._asked("look", topics_request(names), now_ms, any_node=True)
        if self._state is _S.STABLE and self._rejoin:
            self._prepare(now_ms)
        match self._state:
            case _S.JOINING:
                if self._resolved.matching is not self._wanted.matching:
                    return self._wait(self._look.due_ms)  # nothing is known yet of what the pattern matches
                return self._when(self._retry_ms, "join", self._join_request, now_ms)
            case _S.ASSIGNING:
                return self._when(
                    self._retry_ms, "partitions", lambda: topics_request(self._group_topics), now_ms, any_node=True
                )
            case _S.SYNCING:
                return self._when(self._retry_ms, "sync", self._sync_request, now_ms)
            case _:
                return self._poll_beating(now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """The answer to the one request that is out."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return  # asked in a membership that has ended meanwhile
        match response:
            case FindCoordinator() if kind == "lookup":
                self._on_lookup(response, now_ms)
            case Metadata() if kind == "look":
                self._on_look(response, now_ms)
            case Metadata() if kind == "partitions":
                self._on_partitions(response, now_ms)
            case Joined() if kind == "join":
                self._on_join(response, now_ms)
            case Synced() if kind == "sync":
                self._on_sync(response, now_ms)
            case Beaten() if kind == "heartbeat":
                self._on_heartbeat(response.error_code, now_ms)
            case LeftGroup() if kind == "leave":
                self._left(confirmed=True)
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """The request that was out has no answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return
        if kind == "lookup":
            self._lookup.on_failure(now_ms)
            return
        if kind == "look":
            self._look.failed(now_ms)
            return
        self._try_later(now_ms)
        if kind == "heartbeat":
            self._heartbeat_ms = self._retry_ms
        if kind == "sync":
            self._begin_again("the sync was not answered")
        if kind != "partitions":
            self._lookup.forget()

    # Asking.

    def _asked(self, kind: str, request: object, now_ms: int, *, any_node: bool = False) -> PollResult:
        sent = self._send(kind, request, now_ms, any_node=any_node)
        return PollResult(requests=sent.requests, next_poll_ms=min(sent.next_poll_ms, self._deadline_ms()))

    def _when(
        self, due_ms: int, kind: str, request: Callable[[], object], now_ms: int, *, any_node: bool = False
    ) -> PollResult:
        if due_ms > now_ms:
            return self._wait(due_ms)
        try:
            asking = request()
        except UserCodeError as error:
            self.stop(error)
            return self._wait(NEVER_MS)
        return self._asked(kind, asking, now_ms, any_node=any_node)

    def _deadline_ms(self) -> int:
        """Until when the request that is out may take."""
        match self._in_flight:
            case "join" | "sync":
                return self._sent_ms + self._rebalance_timeout_ms + JOIN_MARGIN_MS
            case "heartbeat":
                return self._sent_ms + min(self._session_timeout_ms, HEARTBEAT_TIMEOUT_MS)
            case _:
                return self._sent_ms + HEARTBEAT_TIMEOUT_MS

    def _poll_leaving(self, now_ms: int) -> PollResult:
        silent = self.identity.instance_id is not None and not self._leave_for_good
        if silent or not self.identity.member_id or now_ms >= self._leave_deadline_ms:
            self._left(confirmed=False)
            return self._wait(NEVER_MS)
        if self._in_flight == "leave":
            return self._wait(self._leave_deadline_ms)
        if self._lookup.node is None:
            return self._wait(self._leave_deadline_ms) if self._in_flight else self._look_up(now_ms)
        if self._retry_ms > now_ms:
            return self._wait(self._retry_ms)
        return self._asked(
            "leave", leave_group_request(self._group_id, self.identity, "the consumer was closed"), now_ms
        )

    def _poll_beating(self, now_ms: int) -> PollResult:
        if not self.identity.is_member:
            return self._wait(NEVER_MS)
        if self._heartbeat_ms > now_ms:
            return self._wait(min(self._heartbeat_ms, self._look.due_ms))
        return self._asked("heartbeat", classic_heartbeat_request(self._group_id, self.identity), now_ms)

    def _join_request(self) -> object:
        self._joined_topics = self._resolved.names
        return join_group_request(
            self._group_id,
            self.identity,
            self._assignors.protocols(self._resolved.names, self._owned, self.identity.generation),
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            reason=self._reason,
        )

    def _sync_request(self) -> object:
        return sync_group_request(self._group_id, self.identity, self._protocol_name, self._assignments)

    # The steps of a rebalance.

    def _wants_rejoin(self, reason: str) -> None:
        self._rejoin = True
        self._reason = reason

    def _prepare(self, now_ms: int) -> None:
        """Gives back what must be given back before the join."""
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
        self._tell(revoked=revoked, assigned=None, all_revoked=not self._assignors.are_cooperative)

    def _on_join(self, reply: Joined, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._went_well()
            self._set_generation(int(reply.generation_id), reply.member_id)
            self._protocol_name = reply.protocol_name or ""
            self._joined = reply
            self._rejoin = False
            self._retry_ms = now_ms
            self._assignments = {}
            if self._joined_topics != self._resolved.names:
                self._wants_rejoin("the subscription changed")  # while the join was out
            if self._protocol_name not in self._assignors:
                self._refused(ErrorCode.inconsistent_group_protocol)
            elif reply.leader == reply.member_id and reply.members:
                self._lead(reply, now_ms)
            else:
                self._counts = None
                self._enter(_S.SYNCING)
        elif code == ErrorCode.member_id_required:
            self._set_generation(NO_GENERATION, reply.member_id)
            self._retry_ms = now_ms
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._try_later(now_ms)
            self._lose("fenced", kafka_name(code))
        elif code == ErrorCode.rebalance_in_progress or is_retriable(code):
            self._try_later(now_ms, to_ms(reply.throttle_time))
            self._maybe_forget_coordinator(code)
        else:
            self._refused(code)

    def _lead(self, reply: Joined, now_ms: int) -> None:
        self._group_topics = frozenset(
            topic for each in self._assignors.members(reply).values() for topic in each.topics
        )
        self._enter(_S.ASSIGNING if self._group_topics else _S.SYNCING)
        self._retry_ms = now_ms

    def _on_partitions(self, response: Metadata, now_ms: int) -> None:
        """The leader's work, now that it knows what there is to divide."""
        joined = self._joined
        if joined is None or self._state is not _S.ASSIGNING:
            return
        counts = {name: count for name, count in partition_counts(response).items() if name in self._group_topics}
        self._counts = counts
        self._look.seen(now_ms, missing=len(counts) < len(self._group_topics))
        self._enter(_S.SYNCING)
        self._retry_ms = now_ms
        if joined.skip_assignment:
            return  # a static leader came back: the group's assignment stands (KIP-814)
        members = self._assignors.members(joined)
        try:
            self._assignments = self._assignors.divided(self._protocol_name, counts, members)
        except UserCodeError as failed:
            self.stop(failed)

    def _on_sync(self, reply: Synced, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._went_well()
            self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
            self._take_assignment(bytes(reply.assignment))
        elif code == ErrorCode.rebalance_in_progress:
            self._retry_ms = now_ms
            self._begin_again("the group began another rebalance")
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._lose("fenced", kafka_name(code))
        elif is_retriable(code):
            self._try_later(now_ms, to_ms(reply.throttle_time))
            self._maybe_forget_coordinator(code)
            self._begin_again("the sync was refused")
        else:
            self._refused(code)

    def _take_assignment(self, data: bytes) -> None:
        generation = self.identity.generation
        try:
            given = self._assignors.taken(self._protocol_name, data, self._resolved.names, generation)
        except UserCodeError as failed:
            self.stop(failed)
            return
        had = self._owned
        revoked = tuple(each for each in had if each not in set(given))
        added = tuple(each for each in given if each not in set(had))
        self._owned = given
        self._enter(_S.RECONCILING)
        self._tell(revoked=revoked, assigned=added)
        if revoked and self._assignors.are_cooperative:
            self._wants_rejoin("gave partitions back that others are to get")

    def _on_heartbeat(self, code: ErrorCode, now_ms: int) -> None:
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        if code == ErrorCode.none:
            self._went_well()
        elif code == ErrorCode.rebalance_in_progress:
            if self._state is not _S.PREPARING:
                self._wants_rejoin("the group is rebalancing")
        elif code in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            self._forget_generation(code)
            self._lose("fenced", kafka_name(code))
        elif is_retriable(code):
            self._try_later(now_ms)
            self._heartbeat_ms = self._retry_ms
            self._maybe_forget_coordinator(code)
        else:
            self._refused(code)

    def _on_look(self, response: Metadata, now_ms: int) -> None:
        if self._wanted.matching is not None:
            resolved = self._wanted.resolved(existing_topics(response))
            self._look.seen(now_ms, missing=not resolved.names)
            self._take_topics(resolved)
        if self._counts is None:
            if self._wanted.matching is None:
                self._look.stop()
            return
        counts = {name: count for name, count in partition_counts(response).items() if name in self._group_topics}
        self._look.seen(now_ms, missing=len(counts) < len(self._group_topics))
        if counts != self._counts and self._state in {_S.STABLE, _S.RECONCILING}:
            self._counts = counts
            self._wants_rejoin("the topics' partitions changed")

    def _take_topics(self, resolved: SubscribedTopics) -> None:
        changed = resolved.names != self._resolved.names
        self._resolved = resolved
        if changed and self._state not in {*RESTING, _S.JOINING, _S.PREPARING, _S.LOST}:
            self._wants_rejoin("the subscription changed")

    def _begin_again(self, reason: str) -> None:
        self._reason = reason
        if self._state not in {_S.LEAVING, *RESTING}:
            self._enter(_S.JOINING)

    def _forget_generation(self, code: ErrorCode) -> None:
        self._set_generation(NO_GENERATION, "" if code == ErrorCode.unknown_member_id else None)
        self._reason = f"the coordinator answered {kafka_name(code)}"

    def _maybe_forget_coordinator(self, code: ErrorCode) -> None:
        if code in COORDINATOR_GONE:
            self._lookup.forget()
